"""One job that the agent follows: its probe, its curves not yet sent, and when to look next."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Protocol

from jobsight.agent.probe import Row
from jobsight.model import (
    MISSING,
    SECOND,
    Coverage,
    ExecutableUse,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)


class Probe(Protocol):
    """Measures one job. A cgroup, a tree of processes or a recorded folder may stand behind it."""

    def sample(self) -> Row: ...
    def settle(self) -> None: ...
    def steps(self) -> list[StepUse]: ...
    def executables(self) -> list[ExecutableUse]: ...
    def totals(self) -> JobTotals: ...
    def coverage(self, lost: int) -> dict[str, Coverage]: ...
    def close(self) -> None: ...


#: Age of the job in seconds and the interval until then: dense at first, since most jobs are
#: short and most faults are early.
DEFAULT_INTERVALS: Final = ((60, 1.0), (3600, 10.0), (None, 30.0))


class FollowedJob:
    """A job on this node."""

    def __init__(
        self,
        sighting: Sighting,
        probe: Probe,
        epoch: str,
        intervals: tuple[tuple[int | None, float], ...] = DEFAULT_INTERVALS,
    ) -> None:
        self.sighting = sighting
        self.probe = probe
        self.epoch = epoch
        self.next_sample = 0
        #: Adds further curves to each row.
        self.extra: Callable[[Row], None] | None = None
        #: Adds how sure those are.
        self.extra_coverage: Callable[[], dict[str, Coverage]] | None = None
        self._intervals = intervals
        self._times: array[int] = array("q")
        self._columns: dict[str, array[int]] = {}
        #: Losses of the event sockets before this job; those since are its own.
        self.overruns_before = 0

    def sample(self, wall: int, monotonic: int) -> None:
        """Take one round and plan the next."""
        self.next_sample = monotonic + self._interval(wall)
        row = self.probe.sample()
        if self.extra is not None:
            self.extra(row)
        self._append(wall, row)

    def _interval(self, wall: int) -> int:
        age = (wall - self.sighting.birth) / SECOND
        for until, interval in self._intervals:
            if until is None or age < until:
                return round(interval * SECOND)
        return 30 * SECOND

    def _append(self, wall: int, row: Row) -> None:
        rows = len(self._times)
        self._times.append(wall)
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("q", [MISSING]) * rows
            column.append(value)
        for column in self._columns.values():
            if len(column) == rows:
                column.append(MISSING)

    def part(self, overruns: int, *, final: bool = False) -> JobPart:
        """What there is to send; the curves are handed over and start anew."""
        coverage = self.probe.coverage(overruns - self.overruns_before)
        if self.extra_coverage is not None:
            coverage |= self.extra_coverage()
        series = Series(self._times, self._columns) if self._times else None
        self._times, self._columns = array("q"), {}
        return JobPart(
            sighting=self.sighting,
            epoch=self.epoch,
            series=series,
            totals=self.probe.totals(),
            executables=self.probe.executables(),
            steps=self.probe.steps(),
            coverage=coverage,
            final=final,
        )
