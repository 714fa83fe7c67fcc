"""Space on the job's file systems: sams.sampler.FSStats and sams.sampler.ZFSStats.

Both may block (an unreachable file server, a slow command), so they run outside of the sampling
loop.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from typing import Final, NamedTuple, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import (
    JobSampler,
    SamplerOptions,
    averaged_metrics,
    duration,
    item_name,
    text_list,
)
from jobsight.agent.samplers.readings import (
    MAX_PATHS,
    Background,
    Gauge,
    check_patterns,
    expand_patterns,
    fill_pattern,
    run_command,
)
from jobsight.errors import ConfigError
from jobsight.model import SECOND, Coverage
from jobsight.text import readable_path, readable_text

_ZFS_FIELDS: Final = ("used", "free", "size")
#: Running the command costs a fork: rounds in between repeat the last figures.
_ZFS_INTERVAL: Final = 10 * SECOND


class Space(NamedTuple):
    size: int
    #: What an unprivileged user may still write.
    free: int
    #: What is written. Blocks reserved for root are neither free nor used.
    used: int


class FSStats(JobSampler):
    """Size, free and used space of each mount point."""

    name = "sams.sampler.FSStats"

    def __init__(
        self,
        *,
        mount_points: Sequence[str] | None = None,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._patterns = text_list(self.name, "mount_points", mount_points, required=True)
        check_patterns(self.name, "mount_points", self._patterns)
        self._background: Background[dict[str, Space | OSError]] = Background("file systems")
        self._last: dict[str, Space] = {}
        self._used: dict[str, Gauge] = {}

    def _read(self, view: JobView, timeout: float | None = None) -> dict[str, Space]:
        """Space by path; what cannot be measured now is left out."""
        try:
            results = self._background.run(lambda: _measure_all(self._patterns, view), timeout)
        except (OSError, ValueError) as error:
            self.errors.add("mount_points", error)
            return {}
        if results is None:
            self.errors.add("mount_points", "a file system does not answer")
            return {}
        now = self.node.clock()
        spaces: dict[str, Space] = {}
        for path, space in results.items():
            if isinstance(space, OSError):
                # A directory of the job may not exist yet, or no longer.
                if not isinstance(space, FileNotFoundError):
                    self.errors.add(path, space)
                continue
            spaces[path] = space
            self._used.setdefault(path, Gauge()).add(now, space.used)
        self._last |= spaces
        return spaces

    def columns(self, view: JobView) -> Row:
        row: Row = {}
        for path, space in self._read(view).items():
            name = item_name(path)
            if name is None:
                self.errors.add("column", "the name of a mount point is too long for a metric")
                continue
            row |= {f"filesystem.{name}.{field}": value for field, value in space._asdict().items()}
        return row

    def document(self, view: JobView) -> Document | None:
        return {
            readable_path(os.fsencode(path)): space._asdict()
            for path, space in self._read(view).items()
        } or None

    def final(self, view: JobView) -> Document:
        self._read(view, timeout=1.0)
        document: Document = {}
        for path, space in self._last.items():
            used = self._used[path]
            document[readable_path(os.fsencode(path))] = space._asdict() | {
                "used_max": int(used.maximum or 0),
                "used_average": used.average,
            }
        return document

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            return {"filesystem": Coverage(quality="failed", reason=f"{cause}: {text}")}
        return {"filesystem": Coverage(quality="exact")} if self._last else {}


def measure(path: str) -> Space:
    stat = os.statvfs(path)
    block = stat.f_frsize
    return Space(
        stat.f_blocks * block, stat.f_bavail * block, (stat.f_blocks - stat.f_bfree) * block
    )


def _measure_all(patterns: Sequence[str], view: JobView) -> dict[str, Space | OSError]:
    results: dict[str, Space | OSError] = {}
    for path in expand_patterns(patterns, view):
        try:
            results[path] = measure(path)
        except OSError as error:
            results[path] = error
    return results


class ZFSStats(JobSampler):
    """Used, free and size of each volume, from the ``zfs`` command."""

    name = "sams.sampler.ZFSStats"

    def __init__(
        self,
        *,
        volumes: Sequence[str] | None = None,
        zfs_command: str = "/sbin/zfs",
        metrics_to_average: Sequence[str] = ("used",),
        timeout: float = 10.0,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._patterns = text_list(self.name, "volumes", volumes, required=True)
        check_patterns(self.name, "volumes", self._patterns)
        if any(pattern.startswith("-") for pattern in self._patterns):
            raise ConfigError(f"{self.name}: volumes: the name of a volume begins with no dash")
        self._command = zfs_command
        self._timeout = duration(self.name, "timeout", timeout)
        self._averages = averaged_metrics(self.name, metrics_to_average, _ZFS_FIELDS)
        self._background: Background[dict[str, dict[str, int]]] = Background("zfs")
        self._read_at: int | None = None
        self._current: dict[str, dict[str, int]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._gauges: dict[tuple[str, str], Gauge] = {}

    def _read(self, view: JobView, timeout: float | None = None) -> dict[str, dict[str, int]]:
        now = self.node.clock()
        if self._read_at is not None and now - self._read_at < _ZFS_INTERVAL and not timeout:
            return self._current
        wanted = [fill_pattern(pattern, view) for pattern in self._patterns]
        try:
            volumes = self._background.run(lambda: self._list(wanted), timeout)
        except (OSError, ValueError) as error:
            self.errors.add(self._command, error)
            self._read_at, self._current = now, {}
            return {}
        if volumes is None:
            return self._current
        self._read_at, self._current = now, volumes
        self._last |= volumes
        for volume, values in volumes.items():
            for field, value in values.items():
                self._gauges.setdefault((volume, field), Gauge()).add(now, value)
        return volumes

    def _list(self, wanted: list[str]) -> dict[str, dict[str, int]]:
        """List the wanted volumes, or all of them for a glob, which zfs does not support."""
        arguments = [self._command, "list", "-Hp", "-o", "name,used,avail"]
        if any(map(glob.has_magic, wanted)):
            arguments += ["-t", "filesystem,volume"]
        else:
            arguments += wanted
        volumes = parse_zfs(run_command(arguments, self._timeout))
        names = [name for name in volumes if any(fnmatch.fnmatchcase(name, w) for w in wanted)]
        return {name: volumes[name] for name in names[:MAX_PATHS]}

    def columns(self, view: JobView) -> Row:
        return {
            f"filesystem.{name}.{field}": value
            for volume, values in self._read(view).items()
            if (name := item_name(volume)) is not None
            for field, value in values.items()
        }

    def document(self, view: JobView) -> Document | None:
        return {
            readable_text(volume): self._entry(volume, values)
            for volume, values in self._read(view).items()
        } or None

    def final(self, view: JobView) -> Document:
        self._read(view, timeout=1.0)
        document: Document = {}
        for volume, values in self._last.items():
            entry = self._entry(volume, values)
            entry["used_max"] = int(self._gauges[volume, "used"].maximum or 0)
            document[readable_text(volume)] = entry
        return document

    def _entry(self, volume: str, values: dict[str, int]) -> Document:
        averages = {
            f"{name}_average": self._gauges[volume, name].average for name in self._averages
        }
        return {**values, **averages}

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            return {"zfs": Coverage(quality="failed", reason=f"{cause}: {text}")}
        return {"zfs": Coverage(quality="exact")} if self._last else {}


def parse_zfs(text: str) -> dict[str, dict[str, int]]:
    """Parse ``zfs list -Hp -o name,used,avail``; lines without numbers are skipped."""
    volumes: dict[str, dict[str, int]] = {}
    for line in text.split("\n"):
        name, *values = line.split("\t")
        if len(values) != 2 or not all(v.isascii() and v.isdigit() for v in values):
            continue
        used, free = map(int, values)
        volumes[name] = {"used": used, "free": free, "size": used + free}
    return volumes
