"""One job that the agent follows: its probe, its curves not yet sent, and when to look next.

What a sampler or an output may see of a job that is followed on this node.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from jobsight.agent.probes.cgroup_files import CpuReading, MemoryPeaks, MemoryReading
from jobsight.agent.processes.process import JobUsage
from jobsight.model import (
    MISSING,
    SECOND,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)

#: One sample: metric name (see jobsight.metrics) -> value.
Row = dict[str, int]


class Probe(Protocol):
    """Measures one job: by its cgroup, its process tree, or a recorded directory."""

    def sample(self) -> Row: ...
    def read_final_counters(self) -> None: ...
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


class Counters(Protocol):
    """The cgroups of one job, whatever their version and shape."""

    @property
    def version(self) -> str: ...
    @property
    def directories(self) -> dict[str, Path]:
        """The job's directory by controller on v1; ``unified`` on v2."""
        ...

    def cpu(self) -> CpuReading | None: ...
    def memory(self) -> MemoryReading | None: ...
    def memory_peaks(self) -> MemoryPeaks: ...
    def processes(self) -> list[int]: ...
    def close(self) -> None: ...


class JobView(msgspec.Struct, kw_only=True):
    """One job, as of now. The engine keeps it up to date; parts only read it."""

    sighting: Sighting
    #: Who the job is, as far as anybody has said; fields are filled in as they become known.
    info: JobInfo
    probe: Probe
    #: The live processes and the books by executable.
    usage: JobUsage
    #: None where the job has no cgroup.
    counters: Counters | None = None
    #: GPUs that belong to the job: minor numbers, UUIDs or MIG names, as Slurm or the prolog
    #: says; None where nobody has said.
    gpus: tuple[str, ...] | None = None
    #: The engine's own last row.
    row: Row = msgspec.field(default_factory=dict)
    #: When the CPU counter in it was read, on the monotonic clock; None where nobody says.
    row_read_at: int | None = None


Document = dict[str, Any]


class Sampler(Protocol):
    """Looks at one job from time to time. One instance per job; nothing it raises stops another.

    ``columns`` gives metrics for the job's curves (names of :mod:`jobsight.metrics`),
    ``document`` what the seed's sampler of the same name would have said now (None: nothing), and
    ``final`` its last word; ``coverage`` how sure they are. Each may be empty.
    """

    name: str
    interval: float

    def columns(self, view: JobView) -> Row: ...
    def document(self, view: JobView) -> Document | None: ...
    def final(self, view: JobView) -> Document: ...
    def coverage(self, view: JobView) -> dict[str, Coverage]: ...
    def close(self) -> None: ...


class Output(Protocol):
    """Takes documents of one job to somewhere. It runs in a thread of its own and may block.

    ``store`` takes one sample of one sampler; ``write`` is called once at the job's end with the
    last word of every sampler, and again after an error, until it returns.
    """

    name: str

    def store(self, view: JobView, sampler: str, document: Document) -> None: ...
    def write(self, view: JobView, documents: dict[str, Document]) -> None: ...
    def close(self) -> None: ...
