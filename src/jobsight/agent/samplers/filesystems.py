"""sams.sampler.FSStats: how full the file systems of the job are.

sams.sampler.ZFSStats: how full the job's ZFS volumes are, from the zfs command.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers import readings
from jobsight.agent.samplers.base import JobSampler, averaged, item, seconds, texts
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Background, Gauge, run
from jobsight.errors import ConfigError
from jobsight.model import SECOND, Coverage
from jobsight.text import readable_path, readable_text


class Space(NamedTuple):
    size: int
    #: What the user may still write.
    free: int
    #: What is written; blocks kept for root are neither free nor used.
    used: int


def measure(path: str) -> Space:
    found = os.statvfs(path)
    block = found.f_frsize
    return Space(
        found.f_blocks * block, found.f_bavail * block, (found.f_blocks - found.f_bfree) * block
    )


class FSStats(JobSampler):
    """Size, free and used of each mount point.

    A file server that is away makes these calls hang, so they are made beside the loop.
    """

    name = "sams.sampler.FSStats"

    def __init__(
        self,
        *,
        mount_points: Sequence[str] | None = None,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._patterns = texts(self.name, "mount_points", mount_points, needed=True)
        readings.check(self.name, "mount_points", self._patterns)
        self._background: Background[dict[str, Space | OSError]] = Background("file systems")
        self._last: dict[str, Space] = {}
        self._used: dict[str, Gauge] = {}

    def _look(self, view: JobView, patience: float | None = None) -> dict[str, Space]:
        """What can be measured now."""
        try:
            found = self._background.ask(lambda: _measure_all(self._patterns, view), patience)
        except (OSError, ValueError) as error:
            self.errors.note("mount_points", error)
            return {}
        if found is None:
            self.errors.note("mount_points", "a file system does not answer")
            return {}
        now = self.node.clock()
        spaces: dict[str, Space] = {}
        for path, space in found.items():
            if isinstance(space, OSError):
                # A folder of the job may not be there yet, or no longer.
                if not isinstance(space, FileNotFoundError):
                    self.errors.note(path, space)
                continue
            spaces[path] = space
            self._used.setdefault(path, Gauge()).add(now, space.used)
        self._last |= spaces
        return spaces

    def columns(self, view: JobView) -> Row:
        row: Row = {}
        for path, space in self._look(view).items():
            name = item(path)
            if name is None:
                self.errors.note("column", "a mount point's name is too long for a curve")
                continue
            for figure in ("size", "free", "used"):
                row[f"filesystem.{name}.{figure}"] = getattr(space, figure)
        return row

    def document(self, view: JobView) -> Document | None:
        found = self._look(view)
        return {_text(path): space._asdict() for path, space in found.items()} or None

    def final(self, view: JobView) -> Document:
        self._look(view, patience=1.0)
        found: Document = {}
        for path, space in self._last.items():
            used = self._used[path]
            found[_text(path)] = space._asdict() | {
                "used_max": int(used.maximum or 0),
                "used_average": used.average,
            }
        return found

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            return {"filesystem": Coverage(quality="failed", reason=f"{cause}: {text}")}
        return {"filesystem": Coverage(quality="exact")} if self._last else {}


def _measure_all(wanted: Sequence[str], view: JobView) -> dict[str, Space | OSError]:
    found: dict[str, Space | OSError] = {}
    for path in readings.expand(wanted, view):
        try:
            found[path] = measure(path)
        except OSError as error:
            found[path] = error
    return found


def _text(path: str) -> str:
    return readable_path(os.fsencode(path))


_FIELDS: Final = ("used", "free", "size")
#: A command costs a fork: rounds in between give the last answer's figures.
_LEAST_INTERVAL: Final = 10 * SECOND


def parse_zfs(text: str) -> dict[str, dict[str, int]]:
    """Read the lines of ``zfs list -Hp -o name,used,avail``; a line without numbers is skipped."""
    found: dict[str, dict[str, int]] = {}
    for line in text.split("\n"):
        name, *values = line.split("\t")
        if len(values) != 2 or not all(v.isascii() and v.isdigit() for v in values):
            continue
        used, free = map(int, values)
        found[name] = {"used": used, "free": free, "size": used + free}
    return found


class ZFSStats(JobSampler):
    """Used, free and size of each volume; the command runs beside the loop."""

    name = "sams.sampler.ZFSStats"

    def __init__(
        self,
        *,
        volumes: Sequence[str] | None = None,
        zfs_command: str = "/sbin/zfs",
        metrics_to_average: Sequence[str] = ("used",),
        timeout: float = 10.0,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._patterns = texts(self.name, "volumes", volumes, needed=True)
        readings.check(self.name, "volumes", self._patterns)
        if any(pattern.startswith("-") for pattern in self._patterns):
            raise ConfigError(f"{self.name}: volumes: the name of a volume begins with no dash")
        self._command = zfs_command
        self._timeout = seconds(self.name, "timeout", timeout)
        self._averages = averaged(self.name, metrics_to_average, _FIELDS)
        self._background: Background[dict[str, dict[str, int]]] = Background("zfs")
        self._asked: int | None = None
        self._current: dict[str, dict[str, int]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._gauges: dict[tuple[str, str], Gauge] = {}

    def _look(self, view: JobView, patience: float | None = None) -> dict[str, dict[str, int]]:
        now = self.node.clock()
        if self._asked is not None and now - self._asked < _LEAST_INTERVAL and not patience:
            return self._current
        wanted = [readings.fill(pattern, view) for pattern in self._patterns]
        try:
            found = self._background.ask(lambda: self._list(wanted), patience)
        except (OSError, ValueError) as error:
            self.errors.note(self._command, error)
            self._asked, self._current = now, {}
            return {}
        if found is None:
            return self._current
        self._asked, self._current = now, found
        self._last |= found
        for volume, values in found.items():
            for figure, value in values.items():
                self._gauges.setdefault((volume, figure), Gauge()).add(now, value)
        return found

    def _list(self, wanted: list[str]) -> dict[str, dict[str, int]]:
        """Ask for the volumes by name; with a glob among them for all, as zfs knows no globs."""
        arguments = [self._command, "list", "-Hp", "-o", "name,used,avail"]
        if any(map(glob.has_magic, wanted)):
            found = parse_zfs(run([*arguments, "-t", "filesystem,volume"], self._timeout))
        else:
            found = parse_zfs(run([*arguments, *wanted], self._timeout))
        names = [name for name in found if any(fnmatch.fnmatchcase(name, w) for w in wanted)]
        return {name: found[name] for name in names[: readings.LIMIT]}

    def columns(self, view: JobView) -> Row:
        return {
            f"filesystem.{name}.{figure}": value
            for volume, values in self._look(view).items()
            if (name := item(volume)) is not None
            for figure, value in values.items()
        }

    def document(self, view: JobView) -> Document | None:
        found = self._look(view)
        return {
            readable_text(volume): self._entry(volume, found[volume]) for volume in found
        } or None

    def final(self, view: JobView) -> Document:
        self._look(view, patience=1.0)
        found: Document = {}
        for volume, values in self._last.items():
            entry = self._entry(volume, values)
            entry["used_max"] = int(self._gauges[volume, "used"].maximum or 0)
            found[readable_text(volume)] = entry
        return found

    def _entry(self, volume: str, values: dict[str, int]) -> Document:
        averages = {
            f"{name}_average": self._gauges[volume, name].average for name in self._averages
        }
        return {**values, **averages}

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            return {"zfs": Coverage(quality="failed", reason=f"{cause}: {text}")}
        return {"zfs": Coverage(quality="exact")} if self._last else {}
