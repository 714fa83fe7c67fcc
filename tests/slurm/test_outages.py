"""Everything that can go away does while jobs run: nothing is lost, and coverage is true."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.slurm.jobs import ALICE, BOB, Gate, agrees, burn, script
from tests.slurm.site import Site
from tests.waiting import wait_until

SECOND = 1_000_000_000


def told(site: Site, user: str, job: int) -> int:
    """What the job read from its own cgroup as its last act."""
    found = re.findall(r"^truth \S+ (\d+) \d+$", site.cluster.output(user, job), re.MULTILINE)
    return int(found[-1])


@pytest.fixture
def gate(site: Site) -> Iterator[Gate]:
    with Gate(site.cluster.settings.path()) as made:
        yield made


def start(site: Site, user: str, seconds: float, gate: Gate, node: str) -> int:
    """A job that is at work, and does not end before the gate is open."""
    text = script(burn(seconds), gate.line, burn(0.5), "truth")
    job = site.cluster.submit(user, text, "--mem=100", f"--nodelist={node}")
    site.cluster.wait(job, "RUNNING", timeout=60)
    wait_until(lambda: used(site, job, node) > 1.5 * SECOND)
    return job


def used(site: Site, job: int, node: str) -> int:
    """CPU time of a job that runs, as the kernel says."""
    folder = site.cluster.cgroup_of(job, node, "cpuacct")
    return int((folder / "cpuacct.usage").read_text())


def finished(site: Site, user: str, job: int, timeout: float = 90) -> dict[str, Any]:
    site.cluster.wait(job, timeout=timeout)
    report = site.ended(job, timeout=timeout)
    assert report["state"] == "COMPLETED"
    assert agrees(report, report["cpu"]["cpu_seconds"], told(site, user, job) / SECOND)
    return report


@pytest.mark.long
def test_the_agent_is_killed_and_comes_back(site: Site, gate: Gate) -> None:
    node = site.cluster.nodes[1]
    job = start(site, ALICE, 4, gate, node)
    site.stop_agent(node, signal.SIGKILL)
    wait_until(lambda: used(site, job, node) > 2.5 * SECOND)
    site.start_agent(node)
    gate.open()
    report = finished(site, ALICE, job)
    assert len(report["node_rows"]) == 1
    named = sum(
        row["cpu_seconds"] * SECOND for row in report["executables"] if row["kind"] == "executable"
    )
    # What ran while nobody looked is not attributed, and is said to be so; nothing is doubled.
    assert named <= report["cpu"]["cpu_seconds"] * SECOND
    assert [row for row in report["executables"] if row["kind"] == "remainder"]
    # Fault 1: what was not observed is not exact.
    assert report["coverage"]["executables"]["quality"] == "estimate"
    assert "not observed" in report["coverage"]["executables"]["reason"]


@pytest.mark.long
def test_the_controller_and_a_slurmd_go_and_come_back(site: Site, gate: Gate) -> None:
    node = site.cluster.nodes[2]
    job = start(site, BOB, 4, gate, node)
    site.cluster.stop_slurmd(node)
    time.sleep(1)
    # slurmd registers with the controller when it starts, so it goes and comes first.
    site.cluster.start_slurmd(node)
    site.cluster.stop_controller()
    time.sleep(3)
    site.cluster.start_controller()
    gate.open()
    report = finished(site, BOB, job)
    assert (report["user"], report["account"]) == (BOB, "beta")


@pytest.mark.parametrize(
    "away", [8, pytest.param(120, marks=[pytest.mark.long, pytest.mark.timeout(400)])]
)
def test_the_server_is_away(site: Site, gate: Gate, away: int) -> None:
    node = site.cluster.nodes[0]
    job = start(site, ALICE, 3, gate, node)
    # Samples are taken every second: one of them before the server goes.
    wait_until(lambda: times_of(site, job))
    site.stop_server(signal.SIGKILL)
    gone = time.time()
    time.sleep(3)
    gate.open()
    site.cluster.wait(job, timeout=60)
    time.sleep(max(0, away - 4))
    site.start_server()
    report = finished(site, ALICE, job, timeout=180)
    # The first sample was taken before the server went, the last after: all of them are there.
    times = times_of(site, job)
    assert times[0] < gone
    assert times[-1] > gone + 2
    assert times[-1] - times[0] >= 3
    assert report["coverage"]["executables"]["events_lost"] == 0


def times_of(site: Site, job: int) -> list[float]:
    """When the job's samples were taken, as far as the server knows."""
    if site.report(job) is None:
        return []
    reply = site.get(f"/api/v1/jobs/{job}/series?metrics=cpu.time&points=2000")
    return [float(time) for row in reply["nodes"] for time in row["times_seconds"]]
