"""Threads by program, and CPU time by executable.

:class:`Threads` uses what the engine has read of each process. :class:`Software`
(sams.sampler.Software) uses the counters by executable that are kept from process events.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import (
    JobSampler,
    SamplerOptions,
    averaged_metrics,
    positive_integer,
)
from jobsight.errors import ConfigError
from jobsight.model import MISSING, SECOND, Coverage, ExecutableUse
from jobsight.text import readable_path

#: State letter -> name; letters that are not listed here count as "other".
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
_STATE_COLUMNS: Final = ("running", "blocked")
_AVERAGES: Final = ("system", "user")

#: Path -> software name; None if no rule matches or the software is to be ignored.
Mapper = Callable[[str], str | None]


class ThreadOptions(SamplerOptions, total=False):
    """The settings of :class:`Threads` apart from the states."""

    every: int
    max_programs: int
    max_threads: int


class Threads(JobSampler):
    """Processes and threads of each program and, on request, the states of the threads."""

    name = "jobsight.threads"

    def __init__(
        self,
        *,
        states: bool = False,
        every: int = 5,
        max_programs: int = 50,
        max_threads: int = 1000,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        if not isinstance(states, bool):
            raise ConfigError(f"{self.name}: states must be true or false, not {states!r}")
        self._with_states = states
        self._every = positive_integer(self.name, "every", every)
        self._max_programs = positive_integer(self.name, "max_programs", max_programs)
        self._max_threads = positive_integer(self.name, "max_threads", max_threads)
        self._round = 0
        self._maxima: dict[str, dict[str, int]] = {}
        self._states: dict[str, int] | None = None
        self._truncated = False

    def programs(self, view: JobView) -> dict[str, dict[str, int]]:
        """Processes and threads by program name, in descending order of threads."""
        counts: dict[bytes, list[int]] = {}
        for process in list(view.usage.members.values()):
            executable = process.name
            path = executable.path if executable is not None else b"not known"
            count = counts.setdefault(path, [0, 0])
            count[0] += 1
            count[1] += process.threads
        programs: dict[str, dict[str, int]] = {}
        for path, (processes, threads) in counts.items():
            entry = programs.setdefault(
                readable_path(os.path.basename(path) or path), {"processes": 0, "threads": 0}
            )
            entry["processes"] += processes
            entry["threads"] += threads
        ranked = sorted(programs.items(), key=lambda pair: (-pair[1]["threads"], pair[0]))
        largest = dict(ranked[: self._max_programs])
        for name, entry in largest.items():
            if name in self._maxima or len(self._maxima) < self._max_programs:
                old = self._maxima.get(name, entry)
                self._maxima[name] = {key: max(old[key], entry[key]) for key in entry}
        return largest

    def columns(self, view: JobView) -> Row:
        self.programs(view)
        if not self._with_states:
            return {}
        self._round += 1
        if self._every == 1 or self._round % self._every == 1:
            self._count_states(view)
        states = self._states
        return {f"tasks.{name}": states[name] if states else MISSING for name in _STATE_COLUMNS}

    def _count_states(self, view: JobView) -> None:
        files: list[str] = []
        for process in list(view.usage.members.values()):
            directory = f"{self.node.proc}/{process.tgid}/task"
            try:
                files += [f"{directory}/{thread}/stat" for thread in os.listdir(directory)]
            except OSError:
                continue
            if len(files) > self._max_threads:
                self._truncated = True
                del files[self._max_threads :]
                break
        counts = dict.fromkeys([*STATES.values(), "other"], 0)
        for letter in self.node.processes.read(view.usage, _state, files):
            if letter:
                counts[STATES.get(letter, "other")] += 1
        self._states = counts

    def document(self, view: JobView) -> Document | None:
        programs = self.programs(view)
        if not programs:
            return None
        document: Document = {"programs": programs}
        if self._with_states:
            self._count_states(view)
            document["states"] = dict(self._states or {})
        return document

    def final(self, view: JobView) -> Document:
        """The maximum of processes and threads of each program at one time."""
        self.programs(view)
        return {"programs": {name: dict(entry) for name, entry in self._maxima.items()}}

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        if not self._truncated:
            return {}
        reason = f"states of the first {self._max_threads} threads"
        return {"threads": Coverage(quality="estimate", reason=reason)}


class ThreadStates(Threads):
    """The same with the states of the threads: for agents, whose samplers have no settings."""

    def __init__(self, *, states: bool = True, **more: Unpack[ThreadOptions]) -> None:
        super().__init__(states=states, **more)


def _state(file: str) -> bytes:
    """The letter of the state of a thread; empty if the thread is gone."""
    try:
        with open(file, "rb", 0) as opened:
            data = opened.read(512)
        return data[data.rindex(b")") + 2 :][:1]
    except (OSError, ValueError):
        return b""


class _CpuTime(NamedTuple):
    time: int
    user: int
    system: int


class Software(JobSampler):
    """The total CPU time of the job, and that of each executable."""

    name = "sams.sampler.Software"

    def __init__(
        self,
        *,
        software_mapper: Mapper | str | None = None,
        metrics_to_average: Sequence[str] = _AVERAGES,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._averages = averaged_metrics(self.name, metrics_to_average, _AVERAGES)
        self._mapper: Mapper | None = None
        if callable(software_mapper):
            self._mapper = software_mapper
        elif isinstance(software_mapper, str):
            # The server assigns names to the paths; the record is complete without them.
            self.errors.add(
                "software_mapper", f"{software_mapper} is not loaded on the node; no names"
            )
        elif software_mapper is not None:
            raise ConfigError(
                f"{self.name}: software_mapper is {software_mapper!r}; expected a callable or its "
                "name"
            )
        self._first: _CpuTime | None = None
        self._previous: _CpuTime | None = None

    def document(self, view: JobView) -> Document | None:
        rows = view.probe.executables()
        now = self._cpu_time(view, rows)
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

    def _cpu_time(self, view: JobView, rows: list[ExecutableUse]) -> _CpuTime:
        """The counter if there is one: it includes what is not attributed to any executable."""
        totals = view.probe.totals()
        user, system = totals.cpu_user, totals.cpu_system
        if user is None or system is None:
            user = sum(row.cpu_user for row in rows)
            system = sum(row.cpu_system for row in rows)
        return _CpuTime(self.node.clock(), user, system)

    def _add_rates(self, current: Document, now: _CpuTime, first: _CpuTime) -> None:
        """Add the cores in use since the last document, and since the first.

        The time average of a rate is the growth over the total time, without the error of
        interpolating between rates.
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
        by_software: Document = {}
        for row in rows:
            try:
                software = mapper(readable_path(row.path)) if row.path_known else None
            except Exception as error:
                # The mapper is code of the site; its failure must not lose the CPU time.
                self.errors.add("software_mapper", error)
                continue
            if software is not None:
                _add(by_software, software, row)
        return by_software

    def final(self, view: JobView) -> Document:
        rows = view.probe.executables()
        execs: Document = {}
        for row in rows:
            _add(execs, readable_path(row.path), row)
        created = view.sighting.birth
        start = min((row.first_seen for row in rows if row.first_seen), default=created)
        end = max((row.last_seen for row in rows), default=start)
        if view.usage.members:
            # Some process still runs, so the reading is current.
            end = max(end, self.node.wall())
        now = self._cpu_time(view, rows)
        return {
            "execs": execs,
            "start_time": start // SECOND,
            "end_time": max(start, end) // SECOND,
            # The difference to the sum of "execs" is what is not attributed.
            "current": {"total_user": now.user / SECOND, "total_system": now.system / SECOND},
        }


def _add(entries: dict[str, Any], name: str, row: ExecutableUse) -> None:
    entry = entries.setdefault(name, {"user": 0.0, "system": 0.0})
    entry["user"] += row.cpu_user / SECOND
    entry["system"] += row.cpu_system / SECOND
