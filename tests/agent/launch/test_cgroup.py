"""Cgroups of our own: made, entered, ended, removed, and swept after a launcher was killed."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.launch.cgroup import (
    Hierarchies,
    OwnCgroup,
    create_cgroup,
    find_hierarchies,
    remove_stale_cgroups,
)
from tests.alone import alone_with

NAME = f"jobsight-test-{os.getpid()}"
NOBODY = Hierarchies({}, None, None)


def folders_named(name: str) -> list[Path]:
    found = find_hierarchies()
    places = {*found.v1.values(), *([found.v2] if found.v2 else [])}
    return [place / name for place in places if (place / name).exists()]


def ended_pid() -> int:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    return child.pid


@pytest.fixture
def own() -> Iterator[OwnCgroup]:
    made = create_cgroup(NAME)
    assert made is not None
    yield made
    made.remove()
    assert folders_named(NAME) == []


def test_without_a_hierarchy_there_is_none() -> None:
    assert create_cgroup(NAME, NOBODY) is None
    assert remove_stale_cgroups(NOBODY) == []


def test_where_nothing_may_be_made_there_is_none_and_nothing_is_left(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    # The hierarchy of the CPU counters cannot be written, that of memory can.
    found = Hierarchies({"cpuacct": tmp_path / "missing", "memory": memory}, None, None)
    assert create_cgroup(NAME, found) is None
    assert list(memory.iterdir()) == []


@pytest.mark.root
def test_made_and_removed() -> None:
    own = create_cgroup(NAME)
    assert own is not None
    assert set(folders_named(NAME)) == set(own.directories.values())
    own.remove()
    assert folders_named(NAME) == []


@pytest.mark.root
def test_cgroups_that_the_job_made_below_are_removed_too(own: OwnCgroup) -> None:
    for directory in own.directories.values():
        (directory / "inner" / "deeper").mkdir(parents=True)


@pytest.mark.root
def test_a_limit_is_the_kernel_s(own: OwnCgroup) -> None:
    assert own.limit_memory(64 * 2**20)
    assert own.cgroup.memory_peaks().limit == 64 * 2**20


@pytest.mark.root
def test_left_overs_are_ended_whether_they_heed_or_not(own: OwnCgroup) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    deaf = subprocess.Popen(["/bin/sh", "-c", script], preexec_fn=own.enter, stdout=subprocess.PIPE)
    heeding = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=own.enter)
    assert deaf.stdout is not None
    deaf.stdout.readline()
    deaf.stdout.close()
    assert own.kill_leftovers(timeout=3) >= 2
    assert heeding.wait() == -signal.SIGTERM
    assert deaf.wait() == -signal.SIGKILL
    assert own.cgroup.processes() == []


@pytest.mark.root
def test_a_stopped_process_is_ended(own: OwnCgroup) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=own.enter)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert own.kill_leftovers(timeout=0.1) == 1
    assert child.wait() == -signal.SIGKILL


@pytest.mark.root
def test_nobody_waits_for_ever(own: OwnCgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=own.enter)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refuse)
        assert own.kill_leftovers(timeout=0.1) == 1
    child.kill()
    child.wait()


@pytest.fixture
def nobody_else_sweeps() -> Iterator[None]:
    with alone_with("left-over-cgroups"):
        yield


@pytest.mark.root
@pytest.mark.usefixtures("nobody_else_sweeps")
def test_what_a_killed_launcher_left_is_swept() -> None:
    made = create_cgroup(f"jobsight-7-{ended_pid()}")
    assert made is not None
    made.cgroup.close()
    assert set(remove_stale_cgroups(older_than=0)) >= set(made.directories.values())
    assert not any(directory.exists() for directory in made.directories.values())


@pytest.mark.root
@pytest.mark.usefixtures("nobody_else_sweeps")
@pytest.mark.parametrize("why", ["launcher lives", "young", "not our name", "busy"])
def test_everything_else_is_left_alone(why: str) -> None:
    pid = os.getpid() if why == "launcher lives" else ended_pid()
    made = create_cgroup(f"jobsight-7-{pid}" + ("-more" if why == "not our name" else ""))
    assert made is not None
    child = None
    if why == "busy":
        child = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=made.enter)
    try:
        removed = remove_stale_cgroups(older_than=3600 if why == "young" else 0)
        assert not set(removed) & set(made.directories.values())
        assert all(directory.exists() for directory in made.directories.values())
    finally:
        if child is not None:
            child.kill()
            child.wait()
            time.sleep(0.01)
        made.remove()
