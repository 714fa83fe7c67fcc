"""The path of a careful site: TLS, a certificate of the node, a token of the cluster."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.server.certificates import Papers
from tests.slurm.jobs import ALICE, Gate, agrees, burn, script
from tests.slurm.site import Site
from tests.waiting import wait_until

SECOND = 1_000_000_000


class Tokens:
    """The tokens of a store, by the command that administrators use."""

    def __init__(self, store: Path, cluster: str) -> None:
        self._store = str(store)
        self._cluster = cluster

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "jobsight.cli.main", "token", *arguments]
        done = subprocess.run(
            [*command, "--store", self._store], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, file: Path) -> None:
        self._run("add", "--cluster", self._cluster, "--file", str(file))

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._run("list", "--json"))
        return found

    def revoke(self, number: int) -> None:
        self._run("revoke", str(number))


@pytest.fixture(scope="module")
def secure(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Tokens]]:
    folder = tmp_path_factory.mktemp("secure")
    papers = Papers(tmp_path_factory.mktemp("papers"))
    site = Site(cluster, folder)
    certificate, key = papers.pair("server")
    site.server_more = (
        f'[server]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
        f'tls_client_ca = "{papers.authority}"\n'
    )
    certificate, key = papers.pair("node")
    site.agents_more = (
        f'tls_ca = "{papers.authority}"\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    )
    site.agents_token = folder / "cluster-token"
    site.trust = ssl.create_default_context(cafile=papers.authority)
    site.start_server()
    tokens = Tokens(site.store, cluster.settings.name)
    tokens.add(site.agents_token)
    site.start_agent(cluster.nodes[0])
    yield site, tokens
    site.__exit__()


def run(site: Site, seconds: float) -> int:
    """A job on the node of the agent, which has ended."""
    job = submit(site, burn(seconds), "truth")
    site.cluster.wait(job, "COMPLETED", timeout=120)
    return job


def submit(site: Site, *lines: str) -> int:
    options = ("--mem=50", f"--nodelist={site.cluster.nodes[0]}")
    return site.cluster.submit(ALICE, script(*lines), *options)


def check(site: Site, job: int) -> None:
    """The job is there with the CPU time that its own cgroup said."""
    report = site.ended(job)
    told = re.search(r"^truth \S+ (\d+)", site.cluster.output(ALICE, job), re.MULTILINE)
    assert told is not None
    assert agrees(report, report["cpu"]["cpu_seconds"], int(told[1]) / SECOND)
    assert report["user"] == ALICE
    assert report["coverage"]["executables"]["events_lost"] == 0


def test_a_job_comes_through(secure: tuple[Site, Tokens]) -> None:
    site, tokens = secure
    assert site.url.startswith("https://")
    check(site, run(site, 1))
    # The use of a token is written down now and then, and when the server ends.
    (token,) = tokens.list()
    assert token["cluster"] == site.cluster.settings.name


def test_a_revoked_token_keeps_the_job_on_the_node_until_there_is_a_new_one(
    secure: tuple[Site, Tokens],
) -> None:
    site, tokens = secure
    node = site.cluster.nodes[0]
    (token,) = tokens.list()
    tokens.revoke(token["id"])
    # The server takes it for some seconds more, in which a whole short job could pass.
    with Gate(site.cluster.settings.path()) as gate:
        job = submit(site, burn(0.5), gate.line, "truth")
        wait_until(lambda: "revoked" in site.log(f"agent-{node}")(), 90)
        gate.open()
        site.cluster.wait(job, "COMPLETED", timeout=120)
    assert all(not row["final"] for row in (site.report(job) or {"node_rows": []})["node_rows"])
    site.agents_token.unlink()
    tokens.add(site.agents_token)
    check(site, job)
