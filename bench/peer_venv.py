"""The peers' packages (SAMS, psutil) in an environment of their own, built once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
_LOCK = PROJECT / "requirements" / "peers.txt"


def peers() -> Path:
    """The folder of the peers' commands and their Python. The tests use the same one."""
    key = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = PROJECT / ".cache"
    cache.mkdir(exist_ok=True)
    venv = cache / f"peers-{key}"
    # Runs side by side must not build in the same folder.
    with open(cache / "peers.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            _build(venv)
    return venv / "bin"


def _build(venv: Path) -> None:
    print("building the peers' environment", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "-r", _LOCK],
        check=True,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )
    (venv / "complete").touch()
