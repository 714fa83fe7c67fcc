"""Everything that can go away does while jobs run: nothing is lost, and coverage is true."""

from __future__ import annotations

import re
import signal
import time
from typing import Any

import pytest

from tests.slurm.jobs import ALICE, BOB, burn, script
from tests.slurm.site import Site

SECOND = 1_000_000_000


def close(one: float, other: float) -> bool:
    return abs(one - other) <= max(0.05 * SECOND, 0.01 * max(one, other))


def told(site: Site, user: str, job: int) -> int:
    """What the job read from its own cgroup as its last act."""
    found = re.findall(r"^truth \S+ (\d+) \d+$", site.cluster.output(user, job), re.MULTILINE)
    return int(found[-1])


def start(site: Site, user: str, seconds: float, *options: str) -> int:
    job = site.cluster.submit(user, script(burn(seconds), "truth"), "--mem=100", *options)
    site.cluster.wait(job, "RUNNING", timeout=60)
    time.sleep(2)
    return job


def finished(site: Site, user: str, job: int, timeout: float = 90) -> dict[str, Any]:
    site.cluster.wait(job, timeout=timeout)
    report = site.ended(job, timeout=timeout)
    assert report["state"] == "COMPLETED"
    assert close(report["cpu"]["time"], told(site, user, job))
    return report


def test_the_agent_is_killed_and_comes_back(site: Site) -> None:
    node = site.cluster.nodes[1]
    job = start(site, ALICE, 7, f"--nodelist={node}")
    site.stop_agent(node, signal.SIGKILL)
    time.sleep(1)
    site.start_agent(node)
    report = finished(site, ALICE, job)
    assert len(report["node_rows"]) == 1
    named = sum(row["cpu_time"] for row in report["executables"] if row["kind"] == "executable")
    # What ran while nobody looked is not attributed, and is said to be so; nothing is doubled.
    assert named <= report["cpu"]["time"]
    assert [row for row in report["executables"] if row["kind"] == "remainder"]


def test_the_controller_and_a_slurmd_go_and_come_back(site: Site) -> None:
    node = site.cluster.nodes[2]
    job = start(site, BOB, 8, f"--nodelist={node}")
    site.cluster.stop_slurmd(node)
    time.sleep(1)
    # slurmd registers with the controller when it starts, so it goes and comes first.
    site.cluster.start_slurmd(node)
    site.cluster.stop_controller()
    time.sleep(3)
    site.cluster.start_controller()
    report = finished(site, BOB, job)
    assert (report["user"], report["account"]) == (BOB, "beta")


@pytest.mark.parametrize(
    "away", [8, pytest.param(120, marks=[pytest.mark.long, pytest.mark.timeout(400)])]
)
def test_the_server_is_away(site: Site, away: int) -> None:
    job = start(site, ALICE, 4)
    site.stop_server(signal.SIGKILL)
    site.cluster.wait(job, timeout=60)
    time.sleep(max(0, away - 4))
    site.start_server()
    report = finished(site, ALICE, job, timeout=180)
    # The first sample was taken before the server went, the last after: all of them are there.
    reply = site.get(f"/api/v1/jobs/{job}/series?metrics=cpu.time&points=2000")
    times = reply["nodes"][0]["times"]
    assert times[-1] - times[0] >= 3
    assert report["coverage"]["executables"]["events_lost"] == 0
