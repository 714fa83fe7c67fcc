"""Directories that come and go, in the cgroups of the real kernel as well as on a disk."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobsight.agent.jobs.cgroup_watcher import CREATED, DELETED, DirectoryEvent, Inotify
from tests.agent.slurm_trees import MOUNT


@pytest.fixture(params=["disk", "cgroup"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    mount = next(
        (directory for directory in (MOUNT / "cpuacct", MOUNT) if os.access(directory, os.W_OK)),
        None,
    )
    if mount is None or not (mount / "cgroup.procs").exists():
        pytest.skip("needs a cgroup hierarchy to write to")
    directory = mount / f"jobsight-inotify-{os.getpid()}"
    directory.mkdir()
    try:
        yield directory
    finally:
        for path, _, _ in os.walk(directory, topdown=False):
            os.rmdir(path)


@pytest.fixture
def inotify() -> Iterator[Inotify]:
    with closing(Inotify()) as found:
        yield found


def test_a_folder_of_the_same_name_is_watched_again(directory: Path, inotify: Inotify) -> None:
    """As a user's directory, which Slurm removes with the last job and makes with the next."""
    user = directory / "uid_1"
    inotify.watch(directory)
    for number in range(3):
        user.mkdir()
        assert DirectoryEvent(CREATED, directory, "uid_1") in inotify.read()
        inotify.watch(user)
        (user / f"job_{number}").mkdir()
        assert DirectoryEvent(CREATED, user, f"job_{number}") in inotify.read()
        (user / f"job_{number}").rmdir()
        user.rmdir()
        assert DirectoryEvent(DELETED, directory, "uid_1") in inotify.read()


def test_made_anew_before_anybody_has_looked(directory: Path, inotify: Inotify) -> None:
    user = directory / "uid_1"
    user.mkdir()
    inotify.watch(directory)
    inotify.watch(user)
    user.rmdir()
    user.mkdir()
    # The watch of the first one is still thought to be there.
    inotify.watch(user)
    kinds = [event.kind for event in inotify.read() if event.directory == directory]
    assert kinds == [DELETED, CREATED]
    inotify.watch(user)
    (user / "job_1").mkdir()
    assert list(inotify.read()) == [DirectoryEvent(CREATED, user, "job_1")]


def test_no_watch_is_left_of_what_is_gone(directory: Path, inotify: Inotify) -> None:
    """The kernel gives only so many, and a node sees many jobs."""
    inotify.watch(directory)
    for number in range(20):
        (directory / f"job_{number}").mkdir()
        inotify.watch(directory / f"job_{number}")
        (directory / f"job_{number}").rmdir()
        list(inotify.read())
    # Of a watch that has ended, the last word comes with the next reading.
    list(inotify.read())
    assert len(inotify) == 1
    known = Path(f"/proc/self/fdinfo/{inotify.fileno()}").read_text()
    assert known.count("inotify wd:") == 1
