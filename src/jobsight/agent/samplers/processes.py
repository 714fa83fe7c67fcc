"""Threads by program, from what was read of each process anyway.

sams.sampler.Software: CPU time by executable, from the books that process events keep.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, averaged, number
from jobsight.agent.samplers.node import Node
from jobsight.errors import ConfigError
from jobsight.model import MISSING, SECOND, Coverage, ExecutableUse
from jobsight.text import readable_path

#: State letter -> what a person calls it; letters of all kernels that are not here are "other".
STATES: Final = {
    b"R": "running",
    b"S": "sleeping",
    b"I": "sleeping",
    b"D": "blocked",
    b"T": "stopped",
    b"t": "stopped",
    b"Z": "ended",
    b"X": "ended",
}
_COLUMNS: Final = ("running", "blocked")


class Threads(JobSampler):
    """Processes and threads of each program; states of threads where the settings ask for them."""

    name = "jobsight.threads"

    def __init__(
        self,
        *,
        states: bool = False,
        every: int = 5,
        max_programs: int = 50,
        max_threads: int = 1000,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        if not isinstance(states, bool):
            raise ConfigError(f"{self.name}: states must be true or false, not {states!r}")
        self._with_states = states
        self._every = number(self.name, "every", every)
        self._max_programs = number(self.name, "max_programs", max_programs)
        self._max_threads = number(self.name, "max_threads", max_threads)
        self._round = 0
        self._highest: dict[str, dict[str, int]] = {}
        self._states: dict[str, int] | None = None
        self._cut = False

    def programs(self, view: JobView) -> dict[str, dict[str, int]]:
        """Processes and threads by the program's name, those with most threads first."""
        counts: dict[bytes, list[int]] = {}
        for process in list(view.usage.members.values()):
            image = process.name
            count = counts.setdefault(image.path if image is not None else b"not known", [0, 0])
            count[0] += 1
            count[1] += process.threads
        found: dict[str, dict[str, int]] = {}
        for path, (processes, threads) in counts.items():
            entry = found.setdefault(
                readable_path(os.path.basename(path) or path), {"processes": 0, "threads": 0}
            )
            entry["processes"] += processes
            entry["threads"] += threads
        ranked = sorted(found.items(), key=lambda pair: (-pair[1]["threads"], pair[0]))
        kept = dict(ranked[: self._max_programs])
        for name, entry in kept.items():
            if name in self._highest or len(self._highest) < self._max_programs:
                old = self._highest.get(name, entry)
                self._highest[name] = {key: max(old[key], entry[key]) for key in entry}
        return kept

    def columns(self, view: JobView) -> Row:
        self.programs(view)
        if not self._with_states:
            return {}
        self._round += 1
        if self._every == 1 or self._round % self._every == 1:
            self._count_states(view)
        states = self._states
        return {f"tasks.{name}": states[name] if states else MISSING for name in _COLUMNS}

    def _count_states(self, view: JobView) -> None:
        counts = dict.fromkeys([*STATES.values(), "other"], 0)
        left = self._max_threads
        for process in list(view.usage.members.values()):
            folder = f"{self.node.proc}/{process.tgid}/task"
            try:
                threads = os.listdir(folder)
            except OSError:
                continue
            for thread in threads:
                if left <= 0:
                    self._cut = True
                    break
                left -= 1
                try:
                    with open(f"{folder}/{thread}/stat", "rb", 0) as file:
                        data = file.read(512)
                    letter = data[data.rindex(b")") + 2 :][:1]
                except (OSError, ValueError):
                    continue
                counts[STATES.get(letter, "other")] += 1
        self._states = counts

    def document(self, view: JobView) -> Document | None:
        programs = self.programs(view)
        if not programs:
            return None
        found: Document = {"programs": programs}
        if self._with_states:
            self._count_states(view)
            found["states"] = dict(self._states or {})
        return found

    def final(self, view: JobView) -> Document:
        """The most processes and threads that each program had at one time."""
        self.programs(view)
        return {"programs": {name: dict(entry) for name, entry in self._highest.items()}}

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if not self._cut:
            return {}
        reason = f"states of the first {self._max_threads} threads"
        return {"threads": Coverage(quality="estimate", reason=reason)}


#: Path -> the name of the software; None where no rule knows it or it is to be left out.
Mapper = Callable[[str], str | None]

_AVERAGES: Final = ("system", "user")


class _Moment(NamedTuple):
    time: int
    user: int
    system: int


class Software(JobSampler):
    """The CPU time of the job in all, and of each executable."""

    name = "sams.sampler.Software"

    def __init__(
        self,
        *,
        software_mapper: Mapper | str | None = None,
        metrics_to_average: Sequence[str] = _AVERAGES,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._averages = averaged(self.name, metrics_to_average, _AVERAGES)
        self._mapper: Mapper | None = None
        if callable(software_mapper):
            self._mapper = software_mapper
        elif isinstance(software_mapper, str):
            # Names are given on the server from the paths; the record loses nothing without.
            self.errors.note(
                "software_mapper", f"{software_mapper} is not loaded on the node; no names"
            )
        elif software_mapper is not None:
            raise ConfigError(f"{self.name}: software_mapper {software_mapper!r} is no mapper")
        self._first: _Moment | None = None
        self._previous: _Moment | None = None

    def document(self, view: JobView) -> Document | None:
        rows = view.probe.executables()
        now = self._moment(view, rows)
        first = self._first = self._first or now
        current: Document = {
            "total_user": now.user / SECOND,
            "total_system": now.system / SECOND,
            "elapsed_time": (now.time - first.time) / SECOND,
        }
        self._add_rates(current, now, first)
        if self._mapper is not None:
            current["software"] = self._software(rows, self._mapper)
        self._previous = now
        return {"current": current}

    def _moment(self, view: JobView, rows: list[ExecutableUse]) -> _Moment:
        """The counter where there is one: it also knows what no executable could be given."""
        totals = view.probe.totals()
        user, system = totals.cpu_user, totals.cpu_system
        if user is None or system is None:
            user = sum(row.cpu_user for row in rows)
            system = sum(row.cpu_system for row in rows)
        return _Moment(self.node.clock(), user, system)

    def _add_rates(self, current: Document, now: _Moment, first: _Moment) -> None:
        """Cores in use since the last document, and since the first.

        The average by time of a rate is the growth over the whole time, without the error of
        joining rates by lines.
        """
        previous = self._previous
        if previous is None or now.time <= previous.time:
            return
        for name in _AVERAGES:
            value = getattr(now, name)
            current[name] = (value - getattr(previous, name)) / (now.time - previous.time)
            if name in self._averages:
                mean = (value - getattr(first, name)) / (now.time - first.time)
                current[f"{name}_average"] = mean

    def _software(self, rows: list[ExecutableUse], mapper: Mapper) -> Document:
        found: Document = {}
        for row in rows:
            try:
                software = mapper(readable_path(row.path)) if row.path_known else None
            except Exception as error:
                # A mapper is a site's own code; its fault must not cost the CPU time.
                self.errors.note("software_mapper", error)
                continue
            if software is not None:
                _add(found, software, row)
        return found

    def final(self, view: JobView) -> Document:
        rows = view.probe.executables()
        execs: Document = {}
        for row in rows:
            _add(execs, readable_path(row.path), row)
        birth = view.sighting.birth
        start = min((row.first_seen for row in rows if row.first_seen), default=birth)
        end = max((row.last_seen for row in rows), default=start)
        if view.usage.members:
            # Something still runs, so the reading is of now.
            end = max(end, self.node.wall())
        now = self._moment(view, rows)
        return {
            "execs": execs,
            "start_time": start // SECOND,
            "end_time": max(start, end) // SECOND,
            # The counter beside the split shows how much no executable could be given.
            "current": {"total_user": now.user / SECOND, "total_system": now.system / SECOND},
        }


def _add(found: dict[str, Any], name: str, row: ExecutableUse) -> None:
    entry = found.setdefault(name, {"user": 0.0, "system": 0.0})
    entry["user"] += row.cpu_user / SECOND
    entry["system"] += row.cpu_system / SECOND
