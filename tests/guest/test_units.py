"""The units with systemd as PID 1, in the guest: what `tests.guest.units` saw there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.guest.image import PROJECT
from tests.guest.units import KEEPING_CLIENTS, RESTARTS

pytestmark = pytest.mark.guest

SERVER, AGENT = "jobsight-server.service", "jobsight-agent.service"
#: CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_SYS_PTRACE.
CAPABILITIES = 1 << 2 | 1 << 12 | 1 << 19


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two boots of the guest for all tests below."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to build the guest's file system")
    result = tmp_path_factory.mktemp("units") / "result"
    run = subprocess.run(
        [sys.executable, "-m", "tests.guest", "run", "--systemd", "--reboot", "--quiet",
         "--seconds", "1300", "--result", str(result), "--", "python3", "-m", "tests.guest.units"],
        cwd=PROJECT, capture_output=True, text=True, timeout=1450, check=False,
    )  # fmt: skip
    console = result / "console.log"
    tail = console.read_text(errors="replace")[-3000:] if console.exists() else ""
    assert run.returncode == 0, f"{run.stdout}{run.stderr}{tail}"
    found: dict[str, Any] = json.loads((Path(result) / "result.json").read_text())
    return found


def test_both_units_start_and_report_that_they_are_ready(seen: dict[str, Any]) -> None:
    for unit in (SERVER, AGENT):
        # With Type=notify it is active only after READY=1.
        assert seen["started"][unit]["ActiveState"] == "active"
        assert seen["started"][unit]["Type"] == "notify"
        assert seen["started"][unit]["NRestarts"] == "0"
    assert seen["health"] == 200


def test_the_agent_has_three_capabilities_and_the_server_is_not_root(seen: dict[str, Any]) -> None:
    assert seen["agent_capabilities"] == CAPABILITIES
    assert seen["user"] != "0"
    assert seen["started"][AGENT]["MemoryMax"] == str(256 << 20)


def test_the_exposure_that_systemd_computes(seen: dict[str, Any]) -> None:
    assert seen["security"][SERVER] <= 2.0
    assert seen["security"][AGENT] <= 3.5


def test_a_job_is_measured_through_both_units(seen: dict[str, Any]) -> None:
    job = seen["job"]
    assert job["coverage"]["cpu"]["quality"] == "exact"
    (python,) = [row for row in job["executables"] if row["path"] == "/usr/bin/python3.11"]
    # Executions are known from process events alone: the capabilities suffice.
    assert python["executions"] == 1
    assert job["coverage"]["executables"]["events_lost"] == 0


@pytest.mark.parametrize(
    ("event", "result"), [("after_kill", "signal"), ("after_hang", "watchdog")]
)
def test_a_killed_and_a_hung_process_are_restarted(
    seen: dict[str, Any], event: str, result: str
) -> None:
    for unit in (SERVER, AGENT):
        assert seen[event][unit]["ActiveState"] == "active"
        assert seen[event][unit]["result"] == result
    assert seen[event]["health"] == 200


def test_a_restart_under_load_loses_no_request(seen: dict[str, Any]) -> None:
    load = seen["load"]
    assert load["errors"] == []
    # A kept connection is closed at most once by each restart, and its request is sent again.
    assert len(load["retried"]) <= RESTARTS * KEEPING_CLIENTS, load["retried"]
    assert len(set(load["pids"])) == 1 + RESTARTS
    # Some came while no server ran, and were answered by the next one.
    assert load["waited"] > 0
    assert load["answered"] > load["waited"]
    assert load["batches"] > 0
    assert load["lost"] == []


def test_both_units_are_back_after_a_reboot_with_their_data(seen: dict[str, Any]) -> None:
    assert seen["rebooted"]
    after = seen["after_reboot"]
    for unit in (SERVER, AGENT):
        assert after[unit]["ActiveState"] == "active"
        assert after[unit]["NRestarts"] == "0"
    assert after["health"] == 200
    assert after["job"]["run"] == seen["job"]["run"]
