"""Open files of the job, and whether it uses scratch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, positive_integer, text_list
from jobsight.agent.samplers.readings import Gauge, check_patterns, fill_pattern
from jobsight.model import SECOND, Coverage
from jobsight.util.mounts import below, parse_mountinfo, type_of

_MOUNTS_FRESHNESS: Final = 60 * SECOND
SCRATCH: Final = ("/scratch", "/localscratch")


class _Limit:
    """The links that may still be read in a round."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining


class _Links(NamedTuple):
    """The working directory and the open paths of a process, without pipes and sockets."""

    paths: list[bytes]
    #: Links that were read for them; 0 beyond the limit.
    links: int
    errors: list[PermissionError]


class Files(JobSampler):
    """Counts descriptors by the size of /proc/PID/fd, and reads a bounded number of links."""

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
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._prefixes = text_list(self.name, "scratch_prefixes", scratch_prefixes)
        check_patterns(self.name, "scratch_prefixes", self._prefixes)
        self._types = text_list(self.name, "scratch_types", scratch_types)
        self._every = positive_integer(self.name, "every", every)
        self._links_every = positive_integer(self.name, "links_every", links_every)
        self._max_processes = positive_integer(self.name, "max_processes", max_processes)
        self._max_links = positive_integer(self.name, "max_links", max_links)
        self._round = 0
        self._start = 0
        self._open = Gauge()
        self._denied = False
        self._extrapolated = False
        #: Distinct paths that were open at the last reading of links; None before the first.
        self.open_paths: int | None = None
        self._scratch_now: int | None = None
        #: Whether the job ever had a file or its working directory on scratch.
        self.scratch_used: bool | None = None

    @property
    def open_now(self) -> int | None:
        """Open descriptors at the last count."""
        return None if self._open.last is None else int(self._open.last)

    def columns(self, view: JobView) -> Row:
        self._update(view)
        # Repeat the last count in between: a time series of every n-th point would be all gaps.
        row: Row = {}
        if self.open_now is not None:
            row["files.open"] = self.open_now
        if self._scratch_now is not None:
            row["files.scratch"] = self._scratch_now
        return row

    def document(self, view: JobView) -> Document | None:
        self._update(view)
        return self._document() or None

    def final(self, view: JobView) -> Document:
        document = self._document()
        if self._open.maximum is not None:
            document["open_max"] = int(self._open.maximum)
            document["open_average"] = self._open.average
        return document

    def _document(self) -> Document:
        values = {
            "open": self.open_now,
            "open_paths": self.open_paths,
            "scratch_used": self.scratch_used,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _update(self, view: JobView) -> None:
        self._round += 1
        pids = list(view.usage.members)
        if self._every == 1 or self._round % self._every == 1:
            self._count(pids)
        if self._links_every == 1 or self._round % self._links_every == 1:
            self._read_paths(view, pids)

    def _count(self, pids: list[int]) -> None:
        sized = self.node.shared("size of fd", self._kernel_gives_size)
        total = counted = denied = 0
        chosen = pids[: self._max_processes]
        for pid in chosen:
            directory = f"{self.node.proc}/{pid}/fd"
            try:
                total += os.stat(directory).st_size if sized else len(os.listdir(directory))
                counted += 1
            except PermissionError as error:
                denied += 1
                self.errors.add("open files", error)
            except OSError:
                continue
        self._denied = self._denied or denied > 0
        self._extrapolated = self._extrapolated or len(pids) > len(chosen)
        if denied and not counted:
            return
        if len(pids) > len(chosen) and counted:
            total = total * len(pids) // counted
        self._open.add(self.node.clock(), total)

    def _kernel_gives_size(self) -> bool:
        """Whether the size of /proc/PID/fd is the number of its entries (Linux 6.2 and later)."""
        directory = f"{self.node.proc}/self/fd"
        try:
            size = os.stat(directory).st_size
            # The list includes the descriptor that reads it.
            return size > 0 and len(os.listdir(directory)) - size in (0, 1)
        except OSError:
            return False

    def _read_paths(self, view: JobView, pids: list[int]) -> None:
        """Read a bounded number of links; the next reading starts where this one stopped."""
        prefixes = [os.fsencode(fill_pattern(prefix, view)) for prefix in self._prefixes]
        paths: set[bytes] = set()
        working_directories: set[bytes] = set()
        start = self._start % len(pids) if pids else 0
        readable = not pids
        limit = _Limit(self._max_links)
        order = (pids[start:] + pids[:start])[: self._max_links]
        # In one go, because each costs little; what is beyond the limit reads nothing.
        for found in self.node.processes.read(
            view.usage, lambda pid: self._links(pid, limit), order
        ):
            if found is None or found.links == 0:
                break
            self._start += 1
            for error in found.errors:
                self.errors.add("open files", error)
            readable = readable or bool(found.paths)
            working_directories.update(found.paths[:1])
            paths.update(found.paths[1:])
        if not readable:
            return
        scratch = {
            path
            for path in paths | working_directories
            if any(below(path, prefix) for prefix in prefixes) or self._on_scratch_type(path)
        }
        self.open_paths = len(paths)
        self._scratch_now = len(scratch & paths)
        self.scratch_used = bool(self.scratch_used) or bool(scratch)

    def _links(self, pid: int, limit: _Limit) -> _Links:
        """The links of a process, at most as many as remain of the limit."""
        if limit.remaining <= 0:
            return _Links([], 0, [])
        directory = os.fsencode(f"{self.node.proc}/{pid}")
        links: list[bytes] = []
        try:
            links.append(os.readlink(directory + b"/cwd"))
            names = os.listdir(directory + b"/fd")[: limit.remaining]
        except OSError as error:
            limit.remaining -= 1
            return _Links(links, 1, [error] if isinstance(error, PermissionError) else [])
        for name in names:
            try:
                path = os.readlink(directory + b"/fd/" + name)
            except OSError:
                continue
            if path.startswith(b"/") and not path.startswith((b"/dev/", b"/proc/", b"/memfd:")):
                links.append(path)
        limit.remaining -= len(names) + 1
        return _Links(links, len(names) + 1, [])

    def _on_scratch_type(self, path: bytes) -> bool:
        if not self._types:
            return False
        try:
            mounts = self.node.reading(
                "mountinfo",
                lambda: parse_mountinfo(self.node.files.read(self.node.proc / "self/mountinfo")),
                _MOUNTS_FRESHNESS,
            ).value
        except (OSError, ValueError) as error:
            self.errors.add("mountinfo", error)
            return False
        return type_of(path, mounts) in self._types

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if self._open.last is None:
            if not self._denied:
                return {}
            reason = "permission to read open files was denied"
            return {"files": Coverage(quality="missing", reason=reason)}
        reason = "counted every few samples"
        if self._extrapolated:
            reason += f"; extrapolated from {self._max_processes} processes"
        return {"files": Coverage(quality="estimate", reason=reason)}
