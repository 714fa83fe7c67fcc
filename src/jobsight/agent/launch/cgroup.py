"""A cgroup of our own for a job that we start ourselves."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.probes.cgroup_files import CgroupReader, CgroupV1, CgroupV2

#: A process that does not heed SIGTERM gets SIGKILL after this many seconds.
KILL_WAIT: Final = 5.0
_OWN_NAME: Final = re.compile(r"jobsight-[a-z0-9]+-(\d+)")


class Hierarchies(NamedTuple):
    """Where the cgroup hierarchies are mounted, and where this process stands in each."""

    #: Controller -> directory of this process in its v1 hierarchy.
    v1: dict[str, Path]
    #: Mount point of v2 and the directory of this process in it.
    v2_mount: Path | None
    v2: Path | None


def find_hierarchies(
    mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Hierarchies:
    """Read where each hierarchy is and where this process stands in it."""
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
    """The directories of one job that we made, to be entered by its first process and removed."""

    def __init__(self, directories: dict[str, Path], cgroup: CgroupReader) -> None:
        self.directories = directories
        self.cgroup = cgroup

    def enter(self) -> None:
        """Move the calling process in; called in the child right before the exec."""
        for directory in self.directories.values():
            with open(directory / "cgroup.procs", "wb", 0) as file:
                file.write(b"0")

    def limit_memory(self, size: int) -> bool:
        """Set the memory limit; False where the controller is not there."""
        for controller, names in (
            ("memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
            ("unified", ("memory.max", "memory.swap.max")),
        ):
            directory = self.directories.get(controller)
            if directory is None or not (directory / names[0]).exists():
                continue
            (directory / names[0]).write_text(str(size))
            if (directory / names[1]).exists():
                # Without this the job would swap instead of meeting its limit.
                (directory / names[1]).write_text("0" if controller == "unified" else str(size))
            return True
        return False

    def end_left_overs(self, wait: float = KILL_WAIT) -> int:
        """End what the job left running, as a scheduler would; returns how many there were."""
        left = self.cgroup.processes()
        deadline = time.monotonic() + wait
        sent = signal.SIGTERM
        remaining = left
        while remaining:
            for pid in remaining:
                try:
                    os.kill(pid, sent)
                except (ProcessLookupError, PermissionError):
                    continue
            time.sleep(0.05)
            remaining = self.cgroup.processes()
            if time.monotonic() > deadline:
                if sent == signal.SIGKILL:
                    # Stuck in the kernel, or another user's: nothing more can be done about it.
                    break
                sent, deadline = signal.SIGKILL, deadline + wait
        return len(left)

    def remove(self) -> None:
        self.cgroup.close()
        for directory in self.directories.values():
            _remove_tree(directory, patience=1.0)


def _remove_tree(directory: Path, patience: float = 0.0) -> bool:
    """Remove a cgroup and those below it; the kernel refuses where a process stands in one."""
    deadline = time.monotonic() + patience
    for place in sorted((place for place, _, _ in os.walk(directory)), reverse=True):
        while True:
            try:
                os.rmdir(place)
                break
            except FileNotFoundError:
                break
            except OSError:
                # A zombie still stands in it; the kernel lets go of it in a moment.
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.02)
    return True


def sweep(hierarchies: Hierarchies | None = None, older_than: float = 60.0) -> list[Path]:
    """Remove what launchers that were killed left behind: empty cgroups of our own naming whose
    process is gone. Young ones stay: their launcher may live in another pid namespace."""
    found = hierarchies or find_hierarchies()
    places = {found.v1[name] for name in ("cpuacct", "memory") if name in found.v1}
    place = found.v2
    while place is not None and found.v2_mount is not None:
        places.add(place)
        place = place.parent if place != found.v2_mount else None
    removed: list[Path] = []
    for directory in (directory for place in places for directory in place.glob("jobsight-*-*")):
        match = _OWN_NAME.fullmatch(directory.name)
        try:
            old = time.time() - directory.stat().st_ctime >= older_than
        except OSError:
            continue
        if match and old and not _is_alive(int(match[1])) and _remove_tree(directory):
            removed.append(directory)
    return removed


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def make_cgroup(name: str, hierarchies: Hierarchies | None = None) -> OwnCgroup | None:
    """Make the directories of a job: v2 where it has the memory controller, else v1, else None."""
    found = hierarchies or find_hierarchies()
    return _make_v2(name, found) or _make_v1(name, found)


def _make_v2(name: str, found: Hierarchies) -> OwnCgroup | None:
    place = found.v2
    while place is not None and found.v2_mount is not None:
        enabled = place / "cgroup.subtree_control"
        try:
            controllers = enabled.read_text().split()
            if place == found.v2_mount and "memory" not in controllers:
                enabled.write_text("+memory")
                controllers = enabled.read_text().split()
            # A cgroup with processes delegates no controllers; an ancestor may.
            if "memory" in controllers:
                directory = place / name
                directory.mkdir()
                return OwnCgroup({"unified": directory}, CgroupV2(directory))
        except OSError:
            pass
        if place == found.v2_mount:
            return None
        place = place.parent
    return None


def _make_v1(name: str, found: Hierarchies) -> OwnCgroup | None:
    made: dict[str, Path] = {}
    for controller in ("cpuacct", "memory"):
        place = found.v1.get(controller)
        if place is None:
            continue
        directory = place / name
        try:
            directory.mkdir()
        except OSError:
            continue
        made[controller] = directory
    if "cpuacct" not in made:
        for directory in made.values():
            directory.rmdir()
        return None
    return OwnCgroup(made, CgroupV1(made.get("cpuacct"), made.get("memory")))
