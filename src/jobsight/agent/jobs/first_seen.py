"""When each job was first seen on this node, remembered over a restart of the agent.

The kernel does not keep the birth of a cgroup: its directory's times are those of the first look.
The inode number, though, is given only once between two boots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.processes.procfs import TICK, OpenProcess, ProcessGone

_FILE: Final = "sightings.json"


class _Remembered(msgspec.Struct):
    birth: int
    inodes: dict[str, int]


class _Remembering(msgspec.Struct):
    #: Another boot gives the same inode numbers to other jobs.
    boot_id: str
    jobs: dict[str, _Remembered]


class FirstSeen:
    """Birth by a job's place, in a file that does not survive a reboot."""

    def __init__(self, directory: Path | None, proc: bytes = b"/proc", boot_id: str = "") -> None:
        self._boot_id = boot_id
        self._file = directory / _FILE if directory is not None else None
        self._proc = proc
        self._known: dict[str, _Remembered] = {}
        if self._file is not None:
            try:
                data = self._file.read_bytes()
                remembered = msgspec.json.decode(data, type=_Remembering)
                if remembered.boot_id == boot_id:
                    self._known = remembered.jobs
            except (OSError, msgspec.MsgspecError):
                # Without it a running job is taken for a new one, which the server tells apart.
                pass

    def known(self, place: JobCgroup) -> bool:
        """Whether an agent has followed this very job before, and not an earlier of its name."""
        remembered = self._known.get(place.key)
        return remembered is not None and same_directories(remembered.inodes, place.inodes)

    def of(self, place: JobCgroup, processes: list[int]) -> int:
        """The birth of a job: as remembered, else the start of its oldest process."""
        if self.known(place):
            return self._known[place.key].birth
        birth = min([_changed(place.directory), *self._starts(processes)])
        self._known[place.key] = _Remembered(birth, dict(place.inodes))
        self._save()
        return birth

    def _starts(self, processes: list[int]) -> list[int]:
        boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        starts = []
        for pid in processes:
            try:
                process = OpenProcess(self._proc, pid)
            except ProcessGone:
                continue
            starts.append(boot + process.start_ticks * TICK)
            process.close()
        return starts

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget jobs that ended while no agent was there."""
        gone = [key for key in self._known if key not in keys]
        for key in gone:
            del self._known[key]
        if gone:
            self._save()

    def forget(self, place: JobCgroup) -> None:
        if self.known(place):
            del self._known[place.key]
            self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        temporary = self._file.with_suffix(".new")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.json.encode(_Remembering(self._boot_id, self._known)))
            os.replace(temporary, self._file)
        except OSError:
            # A full or read-only run directory must not stop the measuring.
            pass


def same_directories(before: dict[str, int], now: dict[str, int]) -> bool:
    """Whether two looks saw the same job: hierarchies may join it, but none changes its inode."""
    shared = before.keys() & now.keys()
    return bool(shared) and all(before[name] == now[name] for name in shared)


def _changed(directory: Path) -> int:
    try:
        return directory.stat().st_ctime_ns
    except OSError:
        return time.time_ns()
