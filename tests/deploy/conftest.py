"""The packages of an earlier version, built once for all tests of packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.packages.build import PROJECT, project_version
from tests.history import git, releases


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the version before, built from the commit that released it."""
    given = os.environ.get("JOBSIGHT_PREVIOUS_DIST")
    if given:
        return Path(given)
    older = [commit for version, commit in releases().items() if version != project_version()]
    if not older:
        pytest.skip("the history of the project in git does not reach back to another version")
    dist = tmp_path_factory.mktemp("previous") / "dist"
    tree = dist.with_name("tree")
    git("worktree", "add", "--detach", str(tree), older[0])
    try:
        subprocess.run(
            [sys.executable, "-m", "deploy.packages.build",
             "--interpreter", PROJECT / "build/interpreter",
             "--nfpm", PROJECT / "build/tools/bin/nfpm", "--wheels", PROJECT / "build/wheels",
             "--work", dist.with_name("work"), "--dist", dist],
            cwd=tree, check=True, timeout=1400, capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{tree}:{tree}/src"},
        )  # fmt: skip
    finally:
        git("worktree", "remove", "--force", str(tree))
        shutil.rmtree(dist.with_name("work"), ignore_errors=True)
    return dist
