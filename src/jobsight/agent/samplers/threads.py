"""Threads by program, from what was read of each process anyway."""

from __future__ import annotations

import os
from typing import Final

from jobsight.agent.probe import Row
from jobsight.agent.samplers.base import JobSampler, number
from jobsight.agent.samplers.node import Node
from jobsight.agent.view import Document, JobView
from jobsight.errors import ConfigError
from jobsight.model import MISSING, Coverage
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
