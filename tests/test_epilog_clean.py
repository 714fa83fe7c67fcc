"""``deploy/slurm/epilog-clean`` on real hierarchies of cgroup v1."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.slurm_trees import MOUNT, available
from tests.waiting import wait_until

HOOK = Path(__file__).parents[1] / "deploy" / "slurm" / "epilog-clean"
CONTROLLERS = ("cpuacct", "memory")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not available(), reason="needs the hierarchies of cgroup v1"),
]


@pytest.fixture
def user() -> Iterator[list[Path]]:
    """The directories of a user with two jobs."""
    roots = [MOUNT / name / f"slurm_clean{os.getpid()}" for name in CONTROLLERS]
    for root in roots:
        for job in ("job_7/step_0/task_0", "job_8"):
            (root / "uid_20001" / job).mkdir(parents=True)
    yield [root / "uid_20001" for root in roots]
    for root in roots:
        for path, _, _ in os.walk(root, topdown=False):
            os.rmdir(path)


def clean(job: int, tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_USER": "bob", "SLURM_JOB_UID": "20001",
                   "SLURMD_NODENAME": f"clean{os.getpid()}",
                   "JOBSIGHT_SCRATCH": str(tmp_path)}  # fmt: skip
    subprocess.run([HOOK], env=environment, check=True)


# Fault 17: uid_N stayed after the last job of a user.
def test_the_directory_of_a_user_goes_with_the_last_job(tmp_path: Path, user: list[Path]) -> None:
    clean(7, tmp_path)
    assert [sorted(p.name for p in path.iterdir() if p.is_dir()) for path in user] == [
        ["job_8"],
        ["job_8"],
    ]

    def is_removed() -> bool:
        clean(8, tmp_path)
        return not any(path.exists() for path in user)

    # A slurmd of another test may hold its lock for a moment, and the directory stays then.
    wait_until(is_removed)


def test_the_directory_of_a_user_stays_while_slurmd_holds_its_lock(
    tmp_path: Path, user: list[Path]
) -> None:
    clean(7, tmp_path)
    with locked(MOUNT / CONTROLLERS[0]):
        clean(8, tmp_path)
    assert [path.exists() for path in user] == [True, False]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
