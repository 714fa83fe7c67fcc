"""The agent on cgroup v2, with Debian's kernel and Slurm in a guest: totals are the kernel's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.guest.image import PROJECT

pytestmark = pytest.mark.guest

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One start of the guest for all tests below."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to build the guest's file system")
    result = tmp_path_factory.mktemp("guest") / "result"
    run = subprocess.run(
        [sys.executable, "-m", "tests.guest", "run", "--seconds", "900", "--quiet",
         "--result", str(result), "--", "python3", "-m", "tests.guest.measure"],
        cwd=PROJECT, capture_output=True, text=True, timeout=1400, check=False,
    )  # fmt: skip
    console = result / "console.log"
    tail = console.read_text(errors="replace")[-3000:] if console.exists() else ""
    assert run.returncode == 0, f"{run.stdout}{run.stderr}{tail}"
    found: dict[str, Any] = json.loads((Path(result) / "result.json").read_text())
    return found


def parts_of(measured: dict[str, Any], name: str) -> list[dict[str, Any]]:
    job = measured["jobs"][name]["id"]
    return [part for part in measured["parts"] if part["job"] == job]


NAMES = ("cpu", "memory", "out of memory", "two nodes", "storm")


@pytest.mark.parametrize("name", NAMES)
def test_cpu_time_is_the_cgroup_s(measured: dict[str, Any], name: str) -> None:
    parts = parts_of(measured, name)
    assert len(parts) == (2 if name == "two nodes" else 1)
    for part in parts:
        steps = measured["watched"][f"{part['node']} {part['job']}"]["cpu"]
        assert part["source"] == "cgroup v2"
        # The extern step has no process of the user, only Slurm's own sleep.
        watched = sum(cpu for step, cpu in steps.items() if step != "step_extern")
        if part["cpu_quality"] == "exact":
            assert part["cpu"] >= watched
        # Whatever was used between the watcher's last reading and the end, nothing counts twice.
        assert part["cpu"] < 1.5 * (sum(steps.values()) + part["overhead"])


def test_the_cpu_time_of_jobs_is_exact(measured: dict[str, Any]) -> None:
    # A busy machine may remove one cgroup before its last reading, but not each of them.
    assert "exact" in {part["cpu_quality"] for part in measured["parts"]}
    (part,) = parts_of(measured, "cpu")
    if part["cpu_quality"] == "exact":
        # The program has read its own clock.
        assert part["cpu"] >= 5 * SECOND


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_is_the_cgroup_s(measured: dict[str, Any], name: str) -> None:
    for part in parts_of(measured, name):
        truth = measured["watched"][f"{part['node']} {part['job']}"]["peak"]
        assert 0.9 * truth <= part["memory_peak"] <= truth + 2**25


def test_an_out_of_memory_step_is_seen(measured: dict[str, Any]) -> None:
    (part,) = parts_of(measured, "out of memory")
    assert part["oom_kills"] == 1
    assert part["steps"]["0"][2] == 1


def test_every_program_of_a_storm_is_counted_and_named(measured: dict[str, Any]) -> None:
    (part,) = parts_of(measured, "storm")
    assert part["executables"]["/usr/bin/true"][0] == 200
    assert part["events_lost"] == 0


def test_slurmstepd_is_kept_apart(measured: dict[str, Any]) -> None:
    (part,) = parts_of(measured, "cpu")
    assert part["overhead"] > 0
    burnt = part["executables"]["/usr/bin/python3.11"][1]
    assert 0.9 * 5 * SECOND <= burnt <= part["cpu"]
