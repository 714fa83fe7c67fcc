"""Creates and removes the cgroup of a job that ``jobsight run`` starts."""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.probes.cgroup_files import CgroupReader, CgroupV1, CgroupV2

logger = logging.getLogger(__name__)

#: Seconds after SIGTERM until SIGKILL is sent.
KILL_TIMEOUT: Final = 5.0
_OWN_NAME: Final = re.compile(r"jobsight-[a-z0-9]+-(\d+)")


class Hierarchies(NamedTuple):
    """The cgroup of this process in each mounted hierarchy."""

    #: v1 controller -> directory.
    v1: dict[str, Path]
    #: Mount point of v2, and the directory in it.
    v2_mount: Path | None
    v2: Path | None


def find_hierarchies(
    mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Hierarchies:
    """Read the mounted hierarchies and the cgroup of this process in each."""
    points: dict[str, Path] = {}
    unified: Path | None = None
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        if fields[2] == "cgroup2":
            unified = unified or Path(fields[1])
        elif fields[2] == "cgroup":
            for option in fields[3].split(","):
                points.setdefault(option, Path(fields[1]))
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in own.read_text(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            v2 = unified / path.lstrip("/") if unified else None
            continue
        for controller in controllers.split(","):
            if controller in points:
                v1[controller] = points[controller] / path.lstrip("/")
    return Hierarchies(v1, unified, v2)


class OwnCgroup:
    """The cgroup of one job, in one or several hierarchies."""

    def __init__(self, directories: dict[str, Path], cgroup: CgroupReader) -> None:
        self.directories = directories
        self.cgroup = cgroup

    def enter(self) -> None:
        """Move the calling process into the cgroup; called in the child right before the exec."""
        for directory in self.directories.values():
            with open(directory / "cgroup.procs", "wb", 0) as file:
                file.write(b"0")

    def limit_memory(self, size: int) -> bool:
        """Set the memory limit; False if there is no memory controller."""
        for controller, names in (
            ("memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
            ("unified", ("memory.max", "memory.swap.max")),
        ):
            directory = self.directories.get(controller)
            if directory is None or not (directory / names[0]).exists():
                continue
            (directory / names[0]).write_text(str(size))
            if (directory / names[1]).exists():
                # Without this the job would swap instead of reaching its limit.
                (directory / names[1]).write_text("0" if controller == "unified" else str(size))
            return True
        return False

    def kill_leftovers(self, timeout: float = KILL_TIMEOUT) -> int:
        """End the processes that the job left running; returns how many there were."""
        remaining = self.cgroup.processes()
        count = len(remaining)
        deadline = time.monotonic() + timeout
        number = signal.SIGTERM
        while remaining:
            for pid in remaining:
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    continue
            time.sleep(0.05)
            remaining = self.cgroup.processes()
            if time.monotonic() > deadline:
                if number == signal.SIGKILL:
                    # Uninterruptible, or another user's.
                    break
                number, deadline = signal.SIGKILL, deadline + timeout
        return count

    def remove(self) -> None:
        self.cgroup.close()
        for directory in self.directories.values():
            _remove_tree(directory, timeout=1.0)


def _remove_tree(directory: Path, timeout: float = 0.0) -> bool:
    """Remove a cgroup and its descendants; False if one of them still contains a process."""
    deadline = time.monotonic() + timeout
    for path in sorted((path for path, _, _ in os.walk(directory)), reverse=True):
        while True:
            try:
                os.rmdir(path)
                break
            except FileNotFoundError:
                break
            except OSError:
                # A zombie is still in it for a moment.
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.02)
    return True


def remove_stale_cgroups(
    hierarchies: Hierarchies | None = None, older_than: float = 60.0
) -> list[Path]:
    """Remove the empty cgroups of launchers that were killed. Recent ones are kept: their
    launcher may run in another PID namespace."""
    hierarchies = hierarchies or find_hierarchies()
    parents = {hierarchies.v1[name] for name in ("cpuacct", "memory") if name in hierarchies.v1}
    parents |= set(_v2_ancestors(hierarchies))
    removed: list[Path] = []
    for directory in (path for parent in parents for path in parent.glob("jobsight-*-*")):
        match = _OWN_NAME.fullmatch(directory.name)
        try:
            old = time.time() - directory.stat().st_ctime >= older_than
        except OSError:
            continue
        is_stale = match and old and not os.path.exists(f"/proc/{match[1]}")
        if is_stale and _remove_tree(directory):
            logger.info("removed the stale cgroup %s", directory)
            removed.append(directory)
    return removed


def _v2_ancestors(hierarchies: Hierarchies) -> Iterator[Path]:
    """The v2 cgroup of this process and its ancestors, up to the mount point."""
    if hierarchies.v2 is None or hierarchies.v2_mount is None:
        return
    for path in (hierarchies.v2, *hierarchies.v2.parents):
        yield path
        if path == hierarchies.v2_mount:
            return


def create_cgroup(name: str, hierarchies: Hierarchies | None = None) -> OwnCgroup | None:
    """Create the cgroup of a job: on v2 if it has the memory controller, else on v1. None if
    neither is permitted."""
    hierarchies = hierarchies or find_hierarchies()
    return _create_v2(name, hierarchies) or _create_v1(name, hierarchies)


def _create_v2(name: str, hierarchies: Hierarchies) -> OwnCgroup | None:
    # A cgroup with processes delegates no controllers; an ancestor may.
    for parent in _v2_ancestors(hierarchies):
        enabled = parent / "cgroup.subtree_control"
        try:
            controllers = enabled.read_text().split()
            if parent == hierarchies.v2_mount and "memory" not in controllers:
                enabled.write_text("+memory")
                controllers = enabled.read_text().split()
            if "memory" in controllers:
                directory = parent / name
                directory.mkdir()
                return OwnCgroup({"unified": directory}, CgroupV2(directory))
        except OSError as error:
            logger.debug("no cgroup below %s: %s", parent, error)
    return None


def _create_v1(name: str, hierarchies: Hierarchies) -> OwnCgroup | None:
    directories: dict[str, Path] = {}
    for controller in ("cpuacct", "memory"):
        if controller in hierarchies.v1:
            directory = hierarchies.v1[controller] / name
            try:
                directory.mkdir()
            except OSError as error:
                logger.debug("no cgroup %s: %s", directory, error)
                continue
            directories[controller] = directory
    if "cpuacct" not in directories:
        for directory in directories.values():
            directory.rmdir()
        return None
    return OwnCgroup(directories, CgroupV1(directories["cpuacct"], directories.get("memory")))
