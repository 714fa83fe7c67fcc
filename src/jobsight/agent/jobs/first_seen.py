"""The creation time of each job on this node, and when its processes were not observed, kept over
restarts of the agent.

The kernel does not record when a cgroup was created: the times of its directory are those of its
first access. An inode number of a cgroup is used only once between two boots.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.processes.proc_reader import ProcessReader
from jobsight.agent.processes.procfs import TICK, OpenProcess, ProcessGone
from jobsight.util.decoding import decode_json_as
from jobsight.util.durable import make_private_directory, write_atomically
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

_FILE: Final = "sightings.json"


#: A start and an end in Unix time, in nanoseconds.
Interval = tuple[int, int]


class _Job(msgspec.Struct):
    birth: int
    inodes: dict[str, int]
    #: When its processes were not observed.
    gaps: list[Interval] = msgspec.field(default_factory=list)


class _Content(msgspec.Struct):
    #: After another boot the same inode numbers belong to other jobs.
    boot_id: str
    jobs: dict[str, _Job]


class FirstSeen:
    """Creation times by the key of a cgroup, in a file that does not survive a reboot."""

    def __init__(
        self,
        directory: Path | None,
        proc: bytes = b"/proc",
        boot_id: str = "",
        reader: ProcessReader | None = None,
    ) -> None:
        self._boot_id = boot_id
        self._file = directory / _FILE if directory is not None else None
        self._proc = proc
        self._reader = reader or ProcessReader()
        self._jobs: dict[str, _Job] = {}
        self._log = LogOnce(logger)
        #: When an earlier agent was last running, in Unix time: the file's modification time.
        self.last_alive = 0
        if self._file is not None:
            try:
                self.last_alive = self._file.stat().st_mtime_ns
                content = decode_json_as(_Content, self._file.read_bytes())
                if content.boot_id == boot_id:
                    self._jobs = content.jobs
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                # Running jobs get a second sighting then, which the server matches to their run.
                logger.warning("%s is not used: %s", self._file, error)

    def is_known(self, cgroup: JobCgroup) -> bool:
        """Whether an agent has followed this job before, not an earlier one of the same name."""
        job = self._jobs.get(cgroup.key)
        return job is not None and same_directories(job.inodes, cgroup.inodes)

    def creation_time(self, cgroup: JobCgroup, pids: list[int]) -> int:
        """The stored creation time, or the start of the oldest process."""
        if self.is_known(cgroup):
            return self._jobs[cgroup.key].birth
        try:
            changed = cgroup.directory.stat().st_ctime_ns
        except OSError:
            changed = time.time_ns()
        starts = self._reader.read(cgroup.key, self._start_time, pids)
        birth = min([changed, *filter(None, starts)])
        self._jobs[cgroup.key] = _Job(birth, dict(cgroup.inodes))
        self._save()
        return birth

    def gaps(self, cgroup: JobCgroup) -> list[Interval]:
        """When the processes of a job were not observed, as far as earlier agents knew."""
        return list(self._jobs[cgroup.key].gaps) if self.is_known(cgroup) else []

    def set_gaps(self, cgroup: JobCgroup, gaps: list[Interval]) -> None:
        if self.is_known(cgroup) and self._jobs[cgroup.key].gaps != gaps:
            self._jobs[cgroup.key].gaps = list(gaps)
            self._save()

    def touch(self) -> None:
        """Record that the agent is running."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def _start_time(self, pid: int) -> int | None:
        boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        try:
            return boot + OpenProcess(self._proc, pid).start_ticks * TICK
        except ProcessGone:
            return None

    def keep_only(self, keys: Collection[str]) -> None:
        """Remove jobs that ended while no agent was running."""
        ended = [key for key in self._jobs if key not in keys]
        for key in ended:
            del self._jobs[key]
        if ended:
            self._save()

    def forget(self, cgroup: JobCgroup) -> None:
        if self.is_known(cgroup):
            del self._jobs[cgroup.key]
            self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        try:
            make_private_directory(self._file.parent)
            data = msgspec.json.encode(_Content(self._boot_id, self._jobs))
            # Not synced: the file is of no use after a power failure.
            write_atomically(self._file, data, sync=False)
        except OSError as error:
            # A full or read-only run directory must not stop the measurement.
            self._log.report("save", f"{self._file} cannot be written: {error.strerror}")
        else:
            self._log.resolve("save")


def same_directories(before: dict[str, int], now: dict[str, int]) -> bool:
    """Whether both sets of inodes belong to the same job: a hierarchy may be added, but the inode
    in a hierarchy does not change."""
    shared = before.keys() & now.keys()
    return bool(shared) and all(before[name] == now[name] for name in shared)
