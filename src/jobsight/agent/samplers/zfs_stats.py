"""sams.sampler.ZFSStats: how full the job's ZFS volumes are, from the zfs command."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Sequence
from typing import Final

from jobsight.agent.probe import Row
from jobsight.agent.samplers import patterns
from jobsight.agent.samplers.background import Background, run
from jobsight.agent.samplers.base import JobSampler, averaged, item, seconds, texts
from jobsight.agent.samplers.gauge import Gauge
from jobsight.agent.samplers.node import Node
from jobsight.agent.view import Document, JobView
from jobsight.errors import ConfigError
from jobsight.model import SECOND, Coverage
from jobsight.text import readable_text

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
        patterns.check(self.name, "volumes", self._patterns)
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
        wanted = [patterns.fill(pattern, view) for pattern in self._patterns]
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
        return {name: found[name] for name in names[: patterns.LIMIT]}

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
