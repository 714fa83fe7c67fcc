"""SAMS 1.10 itself, in a venv of its own that is built once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def sams() -> Path:
    """The directory of SAMS's commands."""
    lock = _PROJECT / "requirements" / "peers.txt"
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = _PROJECT / ".cache"
    cache.mkdir(exist_ok=True)
    venv = cache / f"peers-{key}"
    # Workers of one run, and runs side by side, must not build in the same directory.
    with open(cache / "peers.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            _build(venv, lock)
    return venv / "bin"


def _build(venv: Path, lock: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    installed = subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "-r", lock],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": ""},
        check=False,
    )
    if installed.returncode:
        pytest.skip(f"SAMS cannot be installed: {installed.stderr.strip().splitlines()[-1:]}")
    (venv / "complete").touch()
