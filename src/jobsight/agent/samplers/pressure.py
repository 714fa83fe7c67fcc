"""sams.sampler.Pressure: pressure stall information of the job's cgroups."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.probes.cgroup_files import CgroupFiles
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, positive_integer
from jobsight.model import MISSING, Coverage

RESOURCES: Final = ("cpu", "io", "memory")
_AVERAGES: Final = ("avg10", "avg60", "avg300")
#: Metric -> resource and line. "full" of the CPU is not meaningful for a job.
_METRICS: Final = {
    "pressure.cpu": ("cpu", "some"),
    "pressure.memory": ("memory", "some"),
    "pressure.memory_full": ("memory", "full"),
    "pressure.io": ("io", "some"),
    "pressure.io_full": ("io", "full"),
}


class Stall(NamedTuple):
    """A line of a pressure file: percent over 10, 60 and 300 s, and total microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total: int


Stalls = dict[tuple[str, str], Stall]


class Pressure(JobSampler):
    """Pressure of the job's v2 cgroup, or of the v2 cgroups of its processes."""

    name = "sams.sampler.Pressure"

    def __init__(
        self,
        *,
        cgroup_base: str | None = None,
        every: int = 10,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._base = Path(cgroup_base) if cgroup_base else None
        self._every = positive_integer(self.name, "every", every)
        self._round = 0
        self._groups: dict[Path, CgroupFiles] = {}
        self._latest: dict[Path, Stalls] = {}
        #: Totals of removed groups: a sum over groups must not decrease.
        self._ended: dict[tuple[str, str], int] = {}
        self._first: tuple[int, Stalls] | None = None
        self._last: tuple[int, Stalls] | None = None
        self._peaks: dict[tuple[str, str], Stall] = {}

    def columns(self, view: JobView) -> Row:
        stalls = self._read(view)
        if not self._groups and not stalls:
            return {}
        row: Row = {}
        for metric, key in _METRICS.items():
            stall = stalls.get(key)
            if stall is not None or (self._last is not None and key in self._last[1]):
                row[metric] = stall.total * 1000 if stall is not None else MISSING
        return row

    def document(self, view: JobView) -> Document | None:
        stalls = self._read(view)
        return _nested({key: stall._asdict() for key, stall in stalls.items()}) or None

    def final(self, view: JobView) -> Document:
        self._read(view)
        if self._first is None or self._last is None:
            return {}
        (start, first), (end, last) = self._first, self._last
        entries: dict[tuple[str, str], Document] = {}
        for key, stall in last.items():
            entry: Document = stall._asdict()
            peak = self._peaks[key]
            entry |= {f"{name}_max": getattr(peak, name) for name in _AVERAGES}
            before = first.get(key)
            if before is not None and end > start:
                # Microseconds over nanoseconds, in percent.
                entry["average"] = (stall.total - before.total) * 1e5 / (end - start)
            entries[key] = entry
        return _nested(entries)

    def _read(self, view: JobView) -> Stalls:
        """Read every group; resources that fail are left out."""
        self._find_groups(view)
        failed: set[str] = set()
        for directory in list(self._groups):
            self._read_group(directory, failed)
        stalls = {key: stall for key, stall in self._combined().items() if key[0] not in failed}
        if stalls:
            now = self.node.clock()
            self._first = self._first or (now, stalls)
            # What this reading lacks keeps its last value.
            self._last = (now, (self._last[1] if self._last else {}) | stalls)
            for key, stall in stalls.items():
                old = self._peaks.get(key, stall)
                self._peaks[key] = _max_stall(old, stall, max(old.total, stall.total))
        return stalls

    def _read_group(self, directory: Path, failed: set[str]) -> None:
        files = self._groups[directory]
        read: Stalls = {}
        for resource in RESOURCES:
            try:
                for kind, stall in parse_pressure(files.read(f"{resource}.pressure")).items():
                    read[resource, kind] = stall
            except FileNotFoundError:
                # The kernel was built or booted without it, or the group was removed.
                continue
            except (OSError, ValueError) as error:
                if _is_removed(directory):
                    break
                failed.add(resource)
                self.errors.add(f"{resource}.pressure", error)
        if _is_removed(directory):
            self._remove(directory)
        else:
            self._latest[directory] = self._latest.get(directory, {}) | read

    def _remove(self, directory: Path) -> None:
        self._groups.pop(directory).close()
        for key, stall in self._latest.pop(directory, {}).items():
            self._ended[key] = self._ended.get(key, 0) + stall.total

    def _combined(self) -> Stalls:
        """Over all groups: the maximum of the averages, the sum of the totals."""
        combined: Stalls = {}
        for stalls in self._latest.values():
            for key, stall in stalls.items():
                old = combined.get(key, Stall(0.0, 0.0, 0.0, self._ended.get(key, 0)))
                combined[key] = _max_stall(old, stall, old.total + stall.total)
        for key, total in self._ended.items():
            combined.setdefault(key, Stall(0.0, 0.0, 0.0, total))
        return combined

    def _find_groups(self, view: JobView) -> None:
        directory = view.counters.directories.get("unified") if view.counters else None
        if directory is not None:
            if directory not in self._groups and not _is_removed(directory):
                self._groups[directory] = CgroupFiles(directory)
            return
        self._round += 1
        if self._round % self._every == 1 or self._every == 1:
            # Processes of a job are in the same few groups.
            for pid in list(view.usage.members)[:8]:
                self._add_group_of(pid)

    def _add_group_of(self, pid: int) -> None:
        """Add the v2 group of a process of a v1 job.

        The root is skipped: its pressure is that of the node.
        """
        base = self._base or self.node.shared("unified mount", self._find_mount)
        if base is None:
            return
        try:
            lines = (self.node.proc / str(pid) / "cgroup").read_text(errors="surrogateescape")
        except OSError:
            return
        for line in lines.splitlines():
            path = line.removeprefix("0::")
            if path == line or path == "/" or ".." in path.split("/"):
                continue
            directory = base / path.lstrip("/")
            if directory not in self._groups and not _is_removed(directory):
                self._groups[directory] = CgroupFiles(directory)

    def _find_mount(self) -> Path | None:
        try:
            text = (self.node.proc / "self" / "mounts").read_text(errors="surrogateescape")
        except OSError:
            return None
        lines = (line.split(" ") for line in text.splitlines())
        return next((Path(words[1]) for words in lines if words[2:3] == ["cgroup2"]), None)

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if self._last is not None:
            return {"pressure": Coverage(quality="exact")}
        for cause, text in self.errors.causes.items():
            return {"pressure": Coverage(quality="failed", reason=f"{cause}: {text}")}
        reason = "the job has no v2 cgroup of its own, or the kernel does not provide PSI"
        return {"pressure": Coverage(quality="missing", reason=reason)}

    def close(self) -> None:
        for files in self._groups.values():
            files.close()
        self._groups.clear()


def _is_removed(directory: Path) -> bool:
    """Whether the directory no longer exists; one that is merely unreadable stays in the sum."""
    try:
        os.stat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        return error.errno == errno.ENODEV
    return False


def _max_stall(a: Stall, b: Stall, total: int) -> Stall:
    return Stall(
        max(a.avg10, b.avg10),
        max(a.avg60, b.avg60),
        max(a.avg300, b.avg300),
        total,
    )


def _nested(entries: dict[tuple[str, str], Document]) -> Document:
    document: Document = {}
    for (resource, kind), entry in entries.items():
        document.setdefault(resource, {})[kind] = entry
    return document


def parse_pressure(data: bytes) -> dict[str, Stall]:
    """Parse the lines "some" and, if present, "full" of a pressure file."""
    stalls: dict[str, Stall] = {}
    for line in data.decode("ascii").splitlines():
        kind, *words = line.split()
        values = dict(word.split("=", 1) for word in words)
        try:
            stalls[kind] = Stall(
                float(values["avg10"]),
                float(values["avg60"]),
                float(values["avg300"]),
                int(values["total"]),
            )
        except KeyError as error:
            raise ValueError(f"a line of a pressure file lacks {error}") from None
    return stalls
