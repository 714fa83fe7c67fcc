"""Environments of their own, built once and kept: the peers' packages (SAMS, psutil), and ours as
on a compute node, where none of the server's and the tests' packages is installed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]
REQUIREMENTS = PROJECT / "requirements"
#: Not in /tmp, which may be in memory.
CACHE = PROJECT / ".cache"


def peers() -> Path:
    """The directory of the peers' commands and their Python. The tests use the same one."""
    return _environment("peers")


def node() -> Path:
    """The same with what an agent needs; the package itself is found in the source tree."""
    return _environment("agent")


def spark() -> Path:
    """The same with pyspark, 0.5 GB; `python -m bench.peer_venv spark` builds it."""
    return _environment("spark")


def is_built(name: str) -> bool:
    return (_place(name) / "complete").exists()


def _place(name: str) -> Path:
    lock = REQUIREMENTS / f"{name}.txt"
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return CACHE / f"{name}-{key}"


def _environment(name: str) -> Path:
    lock = REQUIREMENTS / f"{name}.txt"
    CACHE.mkdir(exist_ok=True)
    venv = _place(name)
    # Runs side by side must not build in the same directory.
    with open(CACHE / f"{name}.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            _build(venv, lock)
    return venv / "bin"


def _build(venv: Path, lock: Path) -> None:
    print(f"building {venv.name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "-r", lock],
        check=True,
        env={**os.environ, "PYTHONWARNINGS": ""},
        stderr=subprocess.DEVNULL,
    )
    (venv / "complete").touch()


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory on the project's disk that is removed at the end of the measurement."""
    CACHE.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(dir=CACHE)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(_environment(name))
