"""The packages of an earlier version, built once for all tests of packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.packages.build import PROJECT, project_version


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the last commit with another version; else of the commit before this one."""
    given = os.environ.get("JOBSIGHT_PREVIOUS_DIST")
    if given:
        return Path(given)

    def git(*words: str) -> str:
        answer = subprocess.run(
            ["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60
        )
        return answer.stdout.strip()

    changed = git(
        "log", "-1", "--format=%H", f"-S{project_version()}", "--", "src/jobsight/__init__.py"
    )
    commit = f"{changed or 'HEAD'}~1"
    dist = tmp_path_factory.mktemp("previous") / "dist"
    tree = dist.with_name("tree")
    git("worktree", "add", "--detach", str(tree), commit)
    try:
        subprocess.run(
            [sys.executable, "-m", "deploy.packages.build",
             "--interpreter", PROJECT / "build/interpreter",
             "--nfpm", PROJECT / "build/tools/bin/nfpm", "--wheels", PROJECT / "build/wheels",
             "--work", dist.with_name("work"), "--dist", dist],
            cwd=tree, check=True, timeout=1400, capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{tree}:{tree}/src"},
        )  # fmt: skip
    finally:
        git("worktree", "remove", "--force", str(tree))
        shutil.rmtree(dist.with_name("work"), ignore_errors=True)
    return dist
