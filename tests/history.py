"""Versions of the project before this one, from its history in git."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
_FILE = "src/jobsight/__init__.py"


def releases() -> dict[str, str]:
    """The commit that gave the project each version, the newest version first."""
    found = {}
    for commit in git("log", "--format=%H", "-G^__version__ = ", "--", _FILE).decode().split():
        line = re.search(r'__version__ = "([^"]+)"', git("show", f"{commit}:{_FILE}").decode())
        assert line is not None
        found[line[1]] = commit
    return found


def release(version: str) -> str:
    commit = releases().get(version)
    if commit is None:
        pytest.skip(f"the history of the project in git does not reach back to {version}")
    return commit


def unpack_source(version: str, target: Path) -> Path:
    """The package as it was released; returns the directory for PYTHONPATH."""
    archive = git("archive", release(version), "src")
    target.mkdir()
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
    return target / "src"


def git(*words: str) -> bytes:
    answer = subprocess.run(
        ["git", *words], cwd=PROJECT, capture_output=True, check=False, timeout=60
    )
    if answer.returncode != 0:
        pytest.skip(f"needs the history of the project in git: {answer.stderr.decode().strip()}")
    return answer.stdout
