"""The Debian packages with systemd as PID 1, in the guest: what `tests.guest.packages` saw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.packages.build import PROJECT, project_version

pytestmark = [pytest.mark.packages, pytest.mark.root]

SERVER, AGENT = "jobsight-server.service", "jobsight-agent.service"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, previous: Path) -> dict[str, Any]:
    """One boot of the guest for all tests below."""
    result = tmp_path_factory.mktemp("packages") / "result"
    added = []
    for directory, name in ((previous, "previous"), (PROJECT / "dist", "dist")):
        for file in directory.glob("*.deb"):
            if "plugin" not in file.name:
                added += ["--add", f"{file}={name}/{file.name}"]
    run = subprocess.run(
        [sys.executable, "-m", "tests.guest", "run", "--systemd", "--quiet", "--seconds", "1350",
         "--result", str(result), *added, "--", "python3", "-m", "tests.guest.packages"],
        cwd=PROJECT, capture_output=True, text=True, timeout=1480, check=False,
    )  # fmt: skip
    tails = [
        file.read_text(errors="replace")[-4000:]
        for name in ("console.log", "journal.txt")
        if (file := result / name).exists()
    ]
    assert run.returncode == 0, "\n".join([run.stdout, run.stderr, *tails])
    found: dict[str, Any] = json.loads((result / "result.json").read_text())
    return found


def test_an_installation_enables_nothing(seen: dict[str, Any]) -> None:
    assert seen["enabled_by_installation"] == []


def test_an_upgrade_restarts_what_runs_and_keeps_the_data(seen: dict[str, Any]) -> None:
    assert seen["newer"] == project_version()
    assert seen["restarted"] == [SERVER, AGENT]
    for unit in (SERVER, AGENT):
        assert seen["after_upgrade"][unit]["ActiveState"] == "active"
    assert seen["settings_kept"]
    assert seen["job_after"] == seen["job_before"]


def test_the_restricted_service_of_the_packages_makes_a_pdf(seen: dict[str, Any]) -> None:
    assert seen["pdf"] == [200, "%PDF-"]
    assert seen["security"][SERVER] <= 2.0
    assert seen["security"][AGENT] <= 3.5


def test_doctor_finds_nothing_wrong_with_the_installation(seen: dict[str, Any]) -> None:
    assert seen["doctor"]["status"] == 0, seen["doctor"]["text"]


def test_a_downgrade_is_refused_and_the_services_go_on(seen: dict[str, Any]) -> None:
    assert seen["older"] != seen["newer"]
    assert seen["downgrade"]["status"] != 0
    assert f"a downgrade to {seen['older']} is refused" in seen["downgrade"]["text"]
    assert seen["after_downgrade"] == {"version": seen["newer"], "running": True, "health": 200}


def test_removal_ends_the_services_and_purge_leaves_nothing(seen: dict[str, Any]) -> None:
    assert seen["running_after_removal"] == []
    assert seen["wanted_after_removal"] == []
    assert seen["kept"] == ["/etc/jobsight/jobsight.toml", "/var/lib/jobsight/store.db"]
    assert seen["left_after_purge"] == []
    assert not seen["user_after_purge"]


def test_a_new_installation_listens_where_setup_says(seen: dict[str, Any]) -> None:
    assert seen["fresh"]["ActiveState"] == "active"
    assert seen["fresh"]["health"] == 200
    assert "0.0.0.0:8443" in seen["fresh"]["listening"]
    assert "8080" not in seen["fresh"]["listening"]
    assert not seen["socket_after_purge"]
