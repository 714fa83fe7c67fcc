"""The scripts of the packages, with a systemctl that records its arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "deploy" / "packages" / "scripts"


class Machine:
    """A directory in place of the root of a machine with systemd."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        for name in ("run/systemd/system", "opt/jobsight", "bin", "var/spool"):
            (root / name).mkdir(parents=True)
        systemctl = root / "bin/systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$@" >>{self.log}\n')
        systemctl.chmod(0o755)

    def run(
        self, script: str, *words: str, name: str = "jobsight-agent", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        text = (SCRIPTS / f"{script}.sh").read_text()
        text = text.replace("@NAME@", name).replace("@VERSION@", "0.2.0")
        for directory in ("/run/", "/opt/", "/var/"):
            text = text.replace(directory, f"{self.root}{directory}")
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-c", text, script, *words], env=os.environ | variables | {"PATH": path},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("word", ["remove", "0"])
def test_removal_stops_all_services_of_a_node(machine: Machine, word: str) -> None:
    assert machine.run("preremove", word).returncode == 0
    assert machine.asked() == [
        "--no-reload disable --now jobsight-agent.service jobs_exporter.service",
        "--no-reload stop softwareaccounting@*.service",
    ]


@pytest.mark.parametrize("word", ["upgrade", "1"])
def test_an_upgrade_stops_nothing(machine: Machine, word: str) -> None:
    assert machine.run("preremove", word).returncode == 0
    assert machine.asked() == []


def test_an_upgrade_restarts_what_runs(machine: Machine) -> None:
    assert machine.run("postinstall", "configure").returncode == 0
    assert machine.asked() == [
        "daemon-reload", "try-restart jobsight-agent.service jobs_exporter.service",
    ]  # fmt: skip


@pytest.mark.parametrize("installed", ["0.2.1", "0.3.0", "0.10.0"])
def test_an_older_package_is_refused(machine: Machine, installed: str) -> None:
    (machine.root / "opt/jobsight/VERSION").write_text(f"{installed}\n")
    answer = machine.run("preinstall", "upgrade")
    assert answer.returncode == 1
    assert f"version {installed} is installed, and a downgrade to 0.2.0 is refused" in answer.stderr
    assert machine.run("preinstall", "upgrade", JOBSIGHT_ALLOW_DOWNGRADE="1").returncode == 0


@pytest.mark.parametrize("installed", ["0.2.0", "0.1.0", ""])
def test_the_same_or_a_newer_package_is_installed(machine: Machine, installed: str) -> None:
    if installed:
        (machine.root / "opt/jobsight/VERSION").write_text(f"{installed}\n")
    assert machine.run("preinstall", "install").returncode == 0


def test_purge_leaves_nothing_in_run(machine: Machine) -> None:
    (machine.root / "run/jobsight").mkdir()
    (machine.root / "run/jobsight/first-seen.json").write_text("{}")
    assert machine.run("postremove", "remove").returncode == 0
    assert (machine.root / "run/jobsight").exists()
    assert machine.run("postremove", "purge").returncode == 0
    assert not (machine.root / "run/jobsight").exists()
