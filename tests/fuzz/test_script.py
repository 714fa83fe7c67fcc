"""What `make fuzz` says of targets that could not be run, or not often enough."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: In place of the project's Python: names the targets, and runs the wanted number of cases.
PYTHON = """#!/bin/sh
case "$*" in
    *pip*) mkdir -p build/fuzz/packages ;;
    *FACTORIES*) echo wire settings ;;
    *tests.fuzz.run*) echo "stat::number_of_executed_units: $RUN_CASES" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The script in a project of its own, where nothing is installed and there is no clang."""
    for name in ("scripts", "requirements", "programs", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/fuzz", tmp_path / "scripts")
    (tmp_path / "requirements/fuzz.txt").write_text("")
    for name, text in (
        ("scripts/install", "#!/bin/sh\n"),
        ("scripts/apt-packages", "#!/bin/sh\necho installing $1\n"),
        (".venv/bin/python", PYTHON),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "sh", "cut", "sha256sum", "cat", "rm", "mkdir", "sed", "tail", "nice",
                 "dirname", "env"):  # fmt: skip
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "programs" / name).symlink_to(program)
    return tmp_path


def fuzz(project: Path, *targets: str, ran: int) -> subprocess.CompletedProcess[str]:
    """A hundred cases are wanted in all; each target runs this many."""
    given = {"PATH": str(project / "programs"), "CASES": "100", "RUN_CASES": str(ran)}
    return subprocess.run(
        [project / "scripts/fuzz", *targets], capture_output=True, text=True, timeout=60,
        env=os.environ | given,
    )  # fmt: skip


def test_without_clang_the_plugin_fails(project: Path) -> None:
    answer = fuzz(project, ran=100)
    assert answer.returncode == 1
    assert "installing tests/fuzz/apt-packages.txt" in answer.stdout
    assert "the plugin needs clang-14 and libclang-rt-14-dev of Debian" in answer.stderr
    assert "scripts/fuzz wire settings" in answer.stderr


def test_named_targets_run_without_the_plugin(project: Path) -> None:
    answer = fuzz(project, "wire", "settings", ran=50)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "100 cases in all" in answer.stdout
    assert "installing" not in answer.stdout


def test_fewer_cases_than_wanted_fail(project: Path) -> None:
    answer = fuzz(project, "wire", "settings", ran=49)
    assert answer.returncode == 1
    assert "98 cases ran; expected at least 100" in answer.stderr
