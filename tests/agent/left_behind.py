"""What the tests could leave on the machine: processes, cgroups, users, mounts, descriptors."""

import os
import pwd
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.launch.cgroup import find_hierarchies

#: In the environment of every process that a test starts, so that strays are known.
MARK = "TESTED_BY"
USER_PREFIX = "sighttest"


def processes(mark: str) -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        if int(directory.name) == os.getpid():
            continue
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found.append(f"{directory.name} {(directory / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return found


def cgroups() -> list[str]:
    """Those of our naming whose launcher is gone; of others a test may still be running."""
    hierarchies = find_hierarchies()
    places = {*hierarchies.v1.values(), *([hierarchies.v2] if hierarchies.v2 else [])}
    directories = [directory for place in places for directory in place.glob("jobsight-*")]
    return [
        str(directory)
        for directory in directories
        if not os.path.exists(f"/proc/{directory.name.rpartition('-')[2]}")
    ]


def users() -> list[str]:
    return [
        entry.pw_name for entry in pwd.getpwall() if entry.pw_name == f"{USER_PREFIX}{os.getpid()}"
    ]


def mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines if "jobsight" in line.split()[4]}


def zombies() -> list[str]:
    found = []
    for task in os.listdir("/proc/self/task"):
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split():
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                continue
            if stat.rpartition(")")[2].split()[0] == "Z":
                found.append(pid)
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    if MARK in os.environ:
        # Several directories of tests use this fixture. The first one checks, after all others:
        # servers that live as long as the session were started meanwhile.
        yield
        return
    mark = os.environ[MARK] = uuid.uuid4().hex
    mounted = mounts()
    yield
    del os.environ[MARK]
    left: list[str] = []
    # Another worker may just be ending a job of its own.
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        left = processes(mark) + cgroups() + users() + zombies() + sorted(mounts() - mounted)
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"left behind: {left}")
