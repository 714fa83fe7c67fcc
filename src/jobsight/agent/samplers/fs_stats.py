"""sams.sampler.FSStats: how full the file systems of the job are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from jobsight.agent.probe import Row
from jobsight.agent.samplers import patterns
from jobsight.agent.samplers.background import Background
from jobsight.agent.samplers.base import JobSampler, item, texts
from jobsight.agent.samplers.gauge import Gauge
from jobsight.agent.samplers.node import Node
from jobsight.agent.view import Document, JobView
from jobsight.model import Coverage
from jobsight.text import readable_path


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
        patterns.check(self.name, "mount_points", self._patterns)
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
    for path in patterns.expand(wanted, view):
        try:
            found[path] = measure(path)
        except OSError as error:
            found[path] = error
    return found


def _text(path: str) -> str:
    return readable_path(os.fsencode(path))
