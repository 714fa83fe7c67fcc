"""Open files of the job, and whether it uses scratch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers import readings
from jobsight.agent.samplers.base import JobSampler, number, texts
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Gauge
from jobsight.model import SECOND, Coverage
from jobsight.util.mounts import below, parse_mountinfo, type_of

_MOUNTS_FRESH: Final = 60 * SECOND
SCRATCH: Final = ("/scratch", "/localscratch")


class Files(JobSampler):
    """Descriptors by the size of each process's folder; paths by a bounded look now and then."""

    name = "jobsight.files"

    def __init__(
        self,
        *,
        scratch_prefixes: Sequence[str] = SCRATCH,
        scratch_types: Sequence[str] = (),
        every: int = 5,
        links_every: int = 20,
        max_processes: int = 1000,
        max_links: int = 500,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._prefixes = texts(self.name, "scratch_prefixes", scratch_prefixes)
        readings.check(self.name, "scratch_prefixes", self._prefixes)
        self._types = texts(self.name, "scratch_types", scratch_types)
        self._every = number(self.name, "every", every)
        self._links_every = number(self.name, "links_every", links_every)
        self._max_processes = number(self.name, "max_processes", max_processes)
        self._max_links = number(self.name, "max_links", max_links)
        self._round = 0
        self._turn = 0
        self._open = Gauge()
        self._hidden = False
        self._scaled = False
        #: Distinct paths that were open at the last look; None before the first.
        self.open_paths: int | None = None
        self._scratch_now: int | None = None
        #: The job had a file or its working folder on scratch at any look.
        self.scratch_used: bool | None = None

    @property
    def open_now(self) -> int | None:
        """Open descriptors at the last look."""
        return None if self._open.last is None else int(self._open.last)

    def columns(self, view: JobView) -> Row:
        self._look(view)
        # Between two looks the last one stands: a curve of every n-th point would be all gaps.
        row: Row = {}
        if self.open_now is not None:
            row["files.open"] = self.open_now
        if self._scratch_now is not None:
            row["files.scratch"] = self._scratch_now
        return row

    def document(self, view: JobView) -> Document | None:
        self._look(view)
        return self._document() or None

    def final(self, view: JobView) -> Document:
        found = self._document()
        if self._open.maximum is not None:
            found["open_max"] = int(self._open.maximum)
            found["open_average"] = self._open.average
        return found

    def _document(self) -> Document:
        found: Document = {}
        if self.open_now is not None:
            found["open"] = self.open_now
        if self.open_paths is not None:
            found["open_paths"] = self.open_paths
        if self.scratch_used is not None:
            found["scratch_used"] = self.scratch_used
        return found

    def _look(self, view: JobView) -> None:
        self._round += 1
        pids = list(view.usage.members)
        if self._every == 1 or self._round % self._every == 1:
            self._count(pids)
        if self._links_every == 1 or self._round % self._links_every == 1:
            self._look_at_links(view, pids)

    def _count(self, pids: list[int]) -> None:
        sized = self.node.shared("size of fd", self._kernel_gives_size)
        total = counted = hidden = 0
        chosen = pids[: self._max_processes]
        for pid in chosen:
            folder = f"{self.node.proc}/{pid}/fd"
            try:
                total += os.stat(folder).st_size if sized else len(os.listdir(folder))
                counted += 1
            except PermissionError as error:
                hidden += 1
                self.errors.note("open files", error)
            except OSError:
                continue
        self._hidden = self._hidden or hidden > 0
        self._scaled = self._scaled or len(pids) > len(chosen)
        if hidden and not counted:
            return
        if len(pids) > len(chosen) and counted:
            total = total * len(pids) // counted
        self._open.add(self.node.clock(), total)

    def _kernel_gives_size(self) -> bool:
        """From 6.2 on the size of the folder is the number of its entries."""
        folder = f"{self.node.proc}/self/fd"
        try:
            size = os.stat(folder).st_size
            # The list holds the descriptor that reads it.
            return size > 0 and len(os.listdir(folder)) - size in (0, 1)
        except OSError:
            return False

    def _look_at_links(self, view: JobView, pids: list[int]) -> None:
        """Read where descriptors lead, so many at most; the next look begins where this ended."""
        prefixes = [os.fsencode(readings.fill(prefix, view)) for prefix in self._prefixes]
        paths: set[bytes] = set()
        scratch: set[bytes] = set()
        folders: set[bytes] = set()
        left = self._max_links
        start = self._turn % len(pids) if pids else 0
        seen = not pids
        for pid in pids[start:] + pids[:start]:
            if left <= 0:
                break
            self._turn += 1
            links = self._links(pid, left)
            left -= max(1, len(links))
            seen = seen or bool(links)
            for index, link in enumerate(links):
                # The first is the working folder, which is not an open file.
                (paths if index else folders).add(link)
        if not seen:
            return
        for path in paths | folders:
            if any(below(path, prefix) for prefix in prefixes) or self._on_scratch_type(path):
                scratch.add(path)
        self.open_paths = len(paths)
        self._scratch_now = len(scratch & paths)
        self.scratch_used = bool(self.scratch_used) or bool(scratch)

    def _links(self, pid: int, limit: int) -> list[bytes]:
        """The working folder and the open paths of one process; what is no path is left out."""
        folder = os.fsencode(f"{self.node.proc}/{pid}")
        found: list[bytes] = []
        try:
            found.append(os.readlink(folder + b"/cwd"))
            names = os.listdir(folder + b"/fd")[:limit]
        except OSError as error:
            if isinstance(error, PermissionError):
                self.errors.note("open files", error)
            return found
        for name in names:
            try:
                path = os.readlink(folder + b"/fd/" + name)
            except OSError:
                continue
            if path.startswith(b"/") and not path.startswith((b"/dev/", b"/proc/", b"/memfd:")):
                found.append(path)
        return found

    def _on_scratch_type(self, path: bytes) -> bool:
        if not self._types:
            return False
        try:
            mounts = self.node.reading(
                "mountinfo",
                lambda: parse_mountinfo(self.node.files.read(self.node.proc / "self/mountinfo")),
                _MOUNTS_FRESH,
            ).value
        except (OSError, ValueError) as error:
            self.errors.note("mountinfo", error)
            return False
        return type_of(path, mounts) in self._types

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if self._open.last is None:
            if not self._hidden:
                return {}
            return {"files": Coverage(quality="missing", reason="open files may not be read")}
        reason = "looked at every few samples"
        if self._scaled:
            reason += f"; scaled from {self._max_processes} processes"
        return {"files": Coverage(quality="estimate", reason=reason)}
