"""The agent's figures about itself, as a source of the exporter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jobsight import __version__
from jobsight.agent.exporter import Exporter, Lines
from jobsight.agent.live import PAGE
from jobsight.model import SECOND
from jobsight.prometheus.exposition import line
from jobsight.prometheus.names import AGENT


class OwnFigures:
    """Made by the loop every few seconds; the answer to a scrape is the last text."""

    def __init__(self, exporter: Exporter, status: Callable[[], Mapping[str, Any]]) -> None:
        self._exporter = exporter
        self._status = status
        #: Figures of those who carry the series away, by the name behind ``jobsight_agent_``.
        self.counts: list[Callable[[], Mapping[str, int]]] = []
        self._lines: list[Lines] = []

    def __call__(self) -> Iterable[Lines]:
        return self._lines

    def refresh(self) -> None:
        """From the loop: it alone may look at what the loop changes."""
        self._exporter.tick()
        status = self._status()
        labels = {"cluster": str(status["cluster"]), "node": str(status["node"])}
        values: dict[str, int | float] = {
            "jobs": status["jobs"],
            "processes": status["processes"],
            "rounds_total": status["rounds"],
            "rounds_cpu_seconds_total": status["rounds"] * status["round_cpu_nanoseconds"] / SECOND,
            "cpu_seconds_total": status["cpu_nanoseconds"] / SECOND,
            "resident_memory_bytes": resident_memory(),
            "events": int(status["events"]),
            "event_overruns_total": status["event_overruns"],
            "spool_batches": status["spool_batches"],
            "spool_bytes": status["spool_bytes"],
            "spool_dropped_total": status["spool_dropped"],
            "spool_refused_total": status["spool_refused"],
            "faults_total": sum(status["faults"].values()),
            "sampler_errors": sum(status["sampler_errors"].values()),
            "series": self._exporter.series,
            "series_left_out": self._exporter.left_out,
            "scrapes_total": self._exporter.scrapes,
        }
        for counts in self.counts:
            values |= counts()
        info = AGENT["jobsight_agent_info"]
        lines = [Lines(info, line(info.name, labels | {"version": __version__}, 1))]
        for name, value in values.items():
            family = AGENT[f"jobsight_agent_{name}"]
            lines.append(Lines(family, line(family.name, labels, value)))
        self._lines = lines


def resident_memory(file: Path = Path("/proc/self/statm")) -> int:
    """Bytes of this process in memory."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 200).split()[1]) * PAGE
    finally:
        os.close(descriptor)
