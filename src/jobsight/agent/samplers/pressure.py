"""sams.sampler.Pressure: how long the job's processes stood still for want of something."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.probes.cgroup_files import CgroupFiles
from jobsight.agent.samplers.base import JobSampler, number
from jobsight.agent.samplers.node import Node
from jobsight.model import MISSING, Coverage

RESOURCES: Final = ("cpu", "io", "memory")
_AVERAGES: Final = ("avg10", "avg60", "avg300")
#: Metric -> resource and line. The CPU line "full" means little for a job and is left out.
_METRICS: Final = {
    "pressure.cpu": ("cpu", "some"),
    "pressure.memory": ("memory", "some"),
    "pressure.memory_full": ("memory", "full"),
    "pressure.io": ("io", "some"),
    "pressure.io_full": ("io", "full"),
}


class Stall(NamedTuple):
    """One line of a pressure file: percent over 10, 60 and 300 s, and microseconds in all."""

    avg10: float
    avg60: float
    avg300: float
    total: int


Stalls = dict[tuple[str, str], Stall]


def parse_pressure(data: bytes) -> dict[str, Stall]:
    """Read a pressure file: the lines "some" and, where there is one, "full"."""
    found: dict[str, Stall] = {}
    for line in data.decode("ascii").splitlines():
        kind, *words = line.split()
        values = dict(word.split("=", 1) for word in words)
        try:
            found[kind] = Stall(
                float(values["avg10"]),
                float(values["avg60"]),
                float(values["avg300"]),
                int(values["total"]),
            )
        except KeyError as error:
            raise ValueError(f"a line of pressure lacks {error}") from None
    return found


class Pressure(JobSampler):
    """Pressure of the job's v2 cgroup, or of those that its processes stand in."""

    name = "sams.sampler.Pressure"

    def __init__(
        self,
        *,
        cgroup_base: str | None = None,
        every: int = 10,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._base = Path(cgroup_base) if cgroup_base else None
        self._every = number(self.name, "every", every)
        self._round = 0
        self._groups: dict[Path, CgroupFiles] = {}
        self._latest: dict[Path, Stalls] = {}
        #: What groups that are gone had gathered: a sum over groups must not fall.
        self._ended: dict[tuple[str, str], int] = {}
        self._first: tuple[int, Stalls] | None = None
        self._last: tuple[int, Stalls] | None = None
        self._peaks: dict[tuple[str, str], Stall] = {}

    def columns(self, view: JobView) -> Row:
        stalls = self._look(view)
        if not self._groups and not stalls:
            return {}
        row: Row = {}
        for metric, key in _METRICS.items():
            stall = stalls.get(key)
            if stall is not None or (self._last is not None and key in self._last[1]):
                row[metric] = stall.total * 1000 if stall is not None else MISSING
        return row

    def document(self, view: JobView) -> Document | None:
        stalls = self._look(view)
        return _nested({key: stall._asdict() for key, stall in stalls.items()}) or None

    def final(self, view: JobView) -> Document:
        self._look(view)
        if self._first is None or self._last is None:
            return {}
        (begun, first), (ended, last) = self._first, self._last
        entries: dict[tuple[str, str], Document] = {}
        for key, stall in last.items():
            entry: Document = stall._asdict()
            peak = self._peaks[key]
            entry |= {f"{name}_max": getattr(peak, name) for name in _AVERAGES}
            before = first.get(key)
            if before is not None and ended > begun:
                # Microseconds over nanoseconds, in percent.
                entry["average"] = (stall.total - before.total) * 1e5 / (ended - begun)
            entries[key] = entry
        return _nested(entries)

    def _look(self, view: JobView) -> Stalls:
        """One reading of every group; what fails is left out of it."""
        self._find_groups(view)
        failed: set[str] = set()
        for folder in list(self._groups):
            self._read_group(folder, failed)
        stalls = self._joined()
        stalls = {key: stall for key, stall in stalls.items() if key[0] not in failed}
        if stalls:
            now = self.node.clock()
            self._first = self._first or (now, stalls)
            # What this reading lacks stays as it was last seen.
            self._last = (now, (self._last[1] if self._last else {}) | stalls)
            for key, stall in stalls.items():
                old = self._peaks.get(key, stall)
                self._peaks[key] = _highest(old, stall, max(old.total, stall.total))
        return stalls

    def _read_group(self, folder: Path, failed: set[str]) -> None:
        files = self._groups[folder]
        read: Stalls = {}
        for resource in RESOURCES:
            try:
                for kind, stall in parse_pressure(files.read(f"{resource}.pressure")).items():
                    read[resource, kind] = stall
            except FileNotFoundError:
                # This kernel was built or booted without it, or the group is gone.
                continue
            except (OSError, ValueError) as error:
                if _is_gone(folder):
                    break
                failed.add(resource)
                self.errors.note(f"{resource}.pressure", error)
        if _is_gone(folder):
            self._forget(folder)
        else:
            self._latest[folder] = self._latest.get(folder, {}) | read

    def _forget(self, folder: Path) -> None:
        self._groups.pop(folder).close()
        for key, stall in self._latest.pop(folder, {}).items():
            self._ended[key] = self._ended.get(key, 0) + stall.total

    def _joined(self) -> Stalls:
        """Over all groups: the highest of the averages, the sum of the totals."""
        found: Stalls = {}
        for stalls in self._latest.values():
            for key, stall in stalls.items():
                old = found.get(key, Stall(0.0, 0.0, 0.0, self._ended.get(key, 0)))
                found[key] = _highest(old, stall, old.total + stall.total)
        for key, total in self._ended.items():
            found.setdefault(key, Stall(0.0, 0.0, 0.0, total))
        return found

    def _find_groups(self, view: JobView) -> None:
        folder = view.counters.directories.get("unified") if view.counters else None
        if folder is not None:
            if folder not in self._groups and not _is_gone(folder):
                self._groups[folder] = CgroupFiles(folder)
            return
        self._round += 1
        if self._round % self._every == 1 or self._every == 1:
            # Processes of a job stand together; a few of them show where.
            for pid in list(view.usage.members)[:8]:
                self._add_group_of(pid)

    def _add_group_of(self, pid: int) -> None:
        """The v2 group that a process of a v1 job stands in.

        The root is left out: its pressure is the node's, and would be booked on every job.
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
            folder = base / path.lstrip("/")
            if folder not in self._groups and not _is_gone(folder):
                self._groups[folder] = CgroupFiles(folder)

    def _find_mount(self) -> Path | None:
        try:
            text = (self.node.proc / "self" / "mounts").read_text(errors="surrogateescape")
        except OSError:
            return None
        found = (line.split(" ") for line in text.splitlines())
        return next((Path(words[1]) for words in found if words[2:3] == ["cgroup2"]), None)

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if self._last is not None:
            return {"pressure": Coverage(quality="exact")}
        for cause, text in self.errors.causes.items():
            return {"pressure": Coverage(quality="failed", reason=f"{cause}: {text}")}
        reason = "the job has no v2 cgroup of its own, or the kernel keeps no pressure"
        return {"pressure": Coverage(quality="missing", reason=reason)}

    def close(self) -> None:
        for files in self._groups.values():
            files.close()
        self._groups.clear()


def _is_gone(folder: Path) -> bool:
    """Gone for good: a folder that merely cannot be looked at keeps its place in the sum."""
    try:
        os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        return error.errno == errno.ENODEV
    return False


def _highest(one: Stall, other: Stall, total: int) -> Stall:
    return Stall(
        max(one.avg10, other.avg10),
        max(one.avg60, other.avg60),
        max(one.avg300, other.avg300),
        total,
    )


def _nested(entries: dict[tuple[str, str], Document]) -> Document:
    found: Document = {}
    for (resource, kind), entry in entries.items():
        found.setdefault(resource, {})[kind] = entry
    return found
