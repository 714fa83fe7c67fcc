"""A real Slurm for the tests below: one cluster for all of them, brought up when first needed.

Under xdist a worker that gets any of them brings up a cluster of its own, under another name.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bed import BedUnavailableError, Cluster, packages
from tests.slurm.site import HOOKS, Site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__) + os.sep
    for item in items:
        if not str(item.path).startswith(here):
            continue
        item.add_marker(pytest.mark.slurm)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))  # installing the packages is part of it


@pytest.fixture(scope="session")
def slurm_packages() -> None:
    """Skip with the reason where this machine cannot have a Slurm."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for the cgroups and the test users of a real Slurm")
    try:
        packages.install(packages.wanted())
    except BedUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster(slurm_packages: None) -> Iterator[Cluster]:
    """Three nodes, jobsight-alice (account alpha) and jobsight-bob (beta)."""
    bed = Cluster.unused("t")
    try:
        bed.__enter__()
    except BedUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield bed
    finally:
        bed.__exit__(None, None, None)


def write_hook(folder: Path, name: str) -> Path:
    """The deployed hook, pointed at the agent of its node."""
    hook = folder / name
    hook.write_text(
        f"#!/bin/sh\nexport JOBSIGHT_SOCKET={folder}/site/$SLURMD_NODENAME/run/agent.sock\n"
        f"exec {HOOKS / name}\n"
    )
    hook.chmod(0o755)
    return hook


@contextmanager
def complete_site(folder: Path, *, agents_more: str = "", **choices: Any) -> Iterator[Site]:
    """A cluster with an agent on each node, told by the deployed hooks, and one server."""
    folder.chmod(0o755)
    hooks = {name: str(write_hook(folder, name)) for name in ("prolog", "epilog")}
    (folder / "site").mkdir()
    with Cluster.unused("p", **hooks, **choices) as cluster:
        whole = Site(cluster, folder / "site")
        whole.agents_more = agents_more
        with whole:
            yield whole


@pytest.fixture(scope="session")
def site(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all tests."""
    with complete_site(tmp_path_factory.mktemp("path")) as whole:
        yield whole
