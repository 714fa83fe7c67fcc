"""Reads the CPU and memory files of cgroup v1 and v2 through descriptors that stay open."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

#: v1 writes "no limit" as the largest multiple of the page size.
_NO_LIMIT: Final = 2**62


class CpuReading(NamedTuple):
    """CPU time in nanoseconds."""

    time: int
    user: int
    system: int

    def after(self, last: CpuReading) -> CpuReading:
        """This reading with neither part below an earlier one.

        The parts are divided in the proportion of ticks, so a tick of one part makes the other
        smaller, and a counter that decreases has no rate. A total that decreased was reset.
        """
        if self.time < last.time:
            return self
        system = min(max(self.system, last.system), self.time - last.user)
        return CpuReading(self.time, self.time - system, system)


class MemoryReading(NamedTuple):
    """Memory in bytes."""

    current: int
    anonymous: int
    #: Page cache without shared memory.
    file: int
    shared: int
    swap: int

    @property
    def used(self) -> int:
        return max(0, self.current - self.file)


class MemoryPeaks(NamedTuple):
    """The kernel's own peaks, the limit and the OOM kills; None if the kernel has none."""

    peak: int | None
    limit: int | None
    swap_peak: int | None
    oom_kills: int | None


class CgroupGone(OSError):
    """The cgroup was removed between two reads."""


class CgroupFiles:
    """The open files of one cgroup."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptors: dict[str, int] = {}

    def read(self, name: str, size: int = 4096) -> bytes:
        descriptor = self._descriptors.get(name)
        try:
            if descriptor is None:
                descriptor = os.open(self.directory / name, os.O_RDONLY | os.O_CLOEXEC)
                self._descriptors[name] = descriptor
            return os.pread(descriptor, size, 0)
        except OSError as error:
            if error.errno == errno.ENODEV or not self.directory.exists():
                raise CgroupGone(errno.ENODEV, "the cgroup is gone", str(self.directory)) from None
            raise

    def number(self, name: str) -> int | None:
        """A file of one number; None if the kernel does not have it or it contains "max"."""
        try:
            text = self.read(name, 64).strip()
        except FileNotFoundError:
            return None
        value = int(text) if text.isdigit() else None
        return None if value is None or value >= _NO_LIMIT else value

    def table(self, name: str) -> dict[bytes, int]:
        """A file of names and numbers."""
        words = self.read(name, 8192).split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=False))

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def cpu_v1(files: CgroupFiles) -> CpuReading:
    """The CPU counters of a cgroup of the cpuacct hierarchy, including its descendants."""
    total = int(files.read("cpuacct.usage", 64))
    split = files.table("cpuacct.stat")
    return _scaled(total, split.get(b"user", 0), split.get(b"system", 0))


def cpu_v2(files: CgroupFiles) -> CpuReading:
    """The CPU counters of a v2 cgroup, including its descendants."""
    table = files.table("cpu.stat")
    total = table.get(b"usage_usec", 0) * 1000
    return _scaled(total, table.get(b"user_usec", 0), table.get(b"system_usec", 0))


def memory_v1(files: CgroupFiles) -> MemoryReading:
    """The memory counters of a cgroup of the memory hierarchy, including its descendants."""
    current = files.number("memory.usage_in_bytes") or 0
    table = files.table("memory.stat")
    shared = table.get(b"total_shmem", 0)
    return MemoryReading(
        current,
        table.get(b"total_rss", 0),
        max(0, table.get(b"total_cache", 0) - shared),
        shared,
        table.get(b"total_swap", 0),
    )


def memory_v2(files: CgroupFiles) -> MemoryReading:
    """The memory counters of a v2 cgroup, including its descendants."""
    current = files.number("memory.current") or 0
    table = files.table("memory.stat")
    shared = table.get(b"shmem", 0)
    return MemoryReading(
        current,
        table.get(b"anon", 0),
        max(0, table.get(b"file", 0) - shared),
        shared,
        files.number("memory.swap.current") or 0,
    )


def peaks_v1(files: CgroupFiles) -> MemoryPeaks:
    try:
        kills = files.table("memory.oom_control").get(b"oom_kill")
    except FileNotFoundError:
        kills = None
    return MemoryPeaks(
        files.number("memory.max_usage_in_bytes"),
        files.number("memory.limit_in_bytes"),
        None,
        kills,
    )


def peaks_v2(files: CgroupFiles) -> MemoryPeaks:
    return MemoryPeaks(
        files.number("memory.peak"),
        files.number("memory.max"),
        files.number("memory.swap.peak"),
        files.table("memory.events").get(b"oom_kill"),
    )


def _scaled(total: int, user: int, system: int) -> CpuReading:
    """Divide an exact total in the proportion of two coarse counters."""
    parts = user + system
    share = user / parts if parts else 0.5
    exact_user = round(total * share)
    return CpuReading(total, exact_user, total - exact_user)


NO_PEAKS: Final = MemoryPeaks(None, None, None, None)


class CgroupV1:
    """The cgroup of one job in the v1 hierarchies; None for a controller without one."""

    version: Final = "cgroup v1"

    def __init__(self, cpuacct: Path | None, memory: Path | None) -> None:
        self._cpuacct = CgroupFiles(cpuacct) if cpuacct else None
        self._memory = CgroupFiles(memory) if memory else None
        named = (("cpuacct", cpuacct), ("memory", memory))
        self.directories: dict[str, Path] = {
            name: directory for name, directory in named if directory
        }
        if not self.directories:
            raise ValueError("a job needs a directory in at least one hierarchy")
        self._process_directory = next(iter(self.directories.values()))

    def cpu(self) -> CpuReading | None:
        return cpu_v1(self._cpuacct) if self._cpuacct is not None else None

    def memory(self) -> MemoryReading | None:
        return memory_v1(self._memory) if self._memory is not None else None

    def memory_peaks(self) -> MemoryPeaks:
        return peaks_v1(self._memory) if self._memory is not None else NO_PEAKS

    def processes(self) -> list[int]:
        return processes_below(self._process_directory)

    def close(self) -> None:
        for files in (self._cpuacct, self._memory):
            if files is not None:
                files.close()


class CgroupV2:
    """The cgroup of one job on v2. CPU counters do not require a controller."""

    version: Final = "cgroup v2"

    def __init__(self, directory: Path) -> None:
        self._files = CgroupFiles(directory)
        self.directories: dict[str, Path] = {"unified": directory}
        self._has_memory = (directory / "memory.current").exists()

    def cpu(self) -> CpuReading | None:
        return cpu_v2(self._files)

    def memory(self) -> MemoryReading | None:
        return memory_v2(self._files) if self._has_memory else None

    def memory_peaks(self) -> MemoryPeaks:
        return peaks_v2(self._files) if self._has_memory else NO_PEAKS

    def processes(self) -> list[int]:
        return processes_below(self._files.directory)

    def close(self) -> None:
        self._files.close()


CgroupReader = CgroupV1 | CgroupV2


def processes_below(directory: Path) -> list[int]:
    """The PIDs of a cgroup and its descendants."""
    return [pid for path in cgroups_below(directory) for pid in processes_in(path)]


#: More levels and cgroups than a step has. A user to whom a cgroup was delegated can make more; the
#: processes in them are found by their fork events alone.
MAX_LEVELS: Final = 16
MAX_CGROUPS: Final = 1024


def cgroups_below(directory: Path) -> Iterator[str]:
    """A cgroup and its descendants, up to a limit. A cgroup may be removed any time."""
    pending = [(str(directory), 0)]
    for _ in range(MAX_CGROUPS):
        if not pending:
            return
        path, level = pending.pop()
        try:
            with os.scandir(path) as entries:
                if level < MAX_LEVELS:
                    pending += [
                        (entry.path, level + 1)
                        for entry in entries
                        if entry.is_dir(follow_symlinks=False)
                    ]
        except OSError:
            continue
        yield path


def processes_in(directory: Path | str | None) -> list[int]:
    """The PIDs of a cgroup without its descendants; none if it does not exist."""
    if directory is None:
        return []
    try:
        with open(os.path.join(directory, "cgroup.procs"), "rb", 0) as file:
            return [int(pid) for pid in file.read().split()]
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOENT, errno.EOPNOTSUPP):
            raise
        return []
