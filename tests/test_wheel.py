"""The wheel holds what is read from the package at run time, not the Python files alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    # Without isolation and index: what builds the package is in the lock.
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", *options, "--wheel-dir", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (file,) = directory.glob("*.whl")
    return zipfile.ZipFile(file)


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = ROOT / "src"
    listed = subprocess.run(
        ["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    files = [ROOT / line for line in listed.stdout.splitlines()] or [
        file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    ]
    for file in files:
        if file.exists():
            assert file.relative_to(source).as_posix() in names
    for part in ("web/templates/run.html", "web/static/style.css", "samples/storm.sh"):
        assert f"jobsight/{part}" in names
    assert any(name.startswith("jobsight/store/schema/migrations/versions/0001") for name in names)
    assert any("uPlot" in name for name in names)


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    about = message_from_bytes(wheel.read(name))
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Description-Content-Type"] == "text/markdown"
    assert "# jobsight" in wheel.read(name).decode()
