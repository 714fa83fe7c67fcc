"""A followed job, and the contracts of the parts that measure it.

:class:`FollowedJob` is a job as the collector drives it: it samples its :class:`Probe` on a
schedule and builds the parts that are sent. :class:`JobView` is what samplers and outputs see of
a job; :class:`Sampler` and :class:`Output` are the contracts for both.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from jobsight.agent.probes.cgroup_files import CpuReading, MemoryPeaks, MemoryReading
from jobsight.agent.processes.process import JobUsage
from jobsight.model import (
    MISSING,
    SECOND,
    Coverage,
    ExecutableUse,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)

#: One sample: metric name (see jobsight.metrics) -> value.
Row = dict[str, int]
#: Pairs of job age in seconds (None: any) and the sampling interval up to that age.
Intervals = tuple[tuple[int | None, float], ...]
#: Dense at first: most jobs are short, and most faults are early.
DEFAULT_INTERVALS: Final[Intervals] = ((60, 1.0), (3600, 10.0), (None, 30.0))


class ProbeReport(NamedTuple):
    """The figures of a job at one time. The executables never sum to more CPU time than the
    totals have."""

    totals: JobTotals
    executables: list[ExecutableUse]
    steps: list[StepUse]
    coverage: dict[str, Coverage]


class Probe(Protocol):
    """Measures one job: by its cgroup, its process tree, or through another agent."""

    def sample(self) -> Row:
        """One sampling round."""
        ...

    def read_final_counters(self) -> None:
        """Called after events were applied: read counters that may be removed soon."""
        ...

    def report(self, events_lost: int) -> ProbeReport:
        """All figures, consistent with each other."""
        ...

    def totals(self) -> JobTotals: ...
    def executables(self) -> list[ExecutableUse]: ...
    def close(self) -> None: ...


class FollowedJob:
    """A job on this node: its probe, the samples not yet sent, and the time of the next sample."""

    def __init__(
        self,
        sighting: Sighting,
        probe: Probe,
        epoch: str,
        intervals: Intervals = DEFAULT_INTERVALS,
    ) -> None:
        self.sighting = sighting
        self.probe = probe
        self.epoch = epoch
        self.next_sample = 0
        #: Adds the metrics of samplers to a row of this monotonic time.
        self.add_columns: Callable[[Row, int], None] | None = None
        #: The coverage of those metrics.
        self.sampler_coverage: Callable[[], dict[str, Coverage]] | None = None
        #: The job's GPUs; called with whether the part is the final one.
        self.gpu_uses: Callable[[bool], list[GpuUse]] | None = None
        #: Overruns of the event sockets before this job.
        self.overruns_before = 0
        self._intervals = intervals
        self._times: array[int] = array("q")
        self._columns: dict[str, array[int]] = {}

    def sample(self, wall: int, monotonic: int) -> None:
        """Take one sample and schedule the next."""
        self.next_sample = monotonic + self._interval(wall)
        row = self.probe.sample()
        if self.add_columns is not None:
            self.add_columns(row, monotonic)
        self._append(wall, row)

    def _interval(self, wall: int) -> int:
        age = (wall - self.sighting.birth) / SECOND
        for max_age, interval in self._intervals:
            if max_age is None or age < max_age:
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
        """The part to send: all figures now, and the samples since the last part."""
        # Before the report, which contains the GPU time of the executables.
        gpus = self.gpu_uses(final) if self.gpu_uses is not None else []
        report = self.probe.report(overruns - self.overruns_before)
        coverage = report.coverage
        if self.sampler_coverage is not None:
            coverage = coverage | self.sampler_coverage()
        series = Series(self._times, self._columns) if self._times else None
        self._times, self._columns = array("q"), {}
        return JobPart(
            sighting=self.sighting,
            epoch=self.epoch,
            series=series,
            totals=report.totals,
            executables=report.executables,
            steps=report.steps,
            gpus=gpus,
            coverage=coverage,
            final=final,
        )


class Counters(Protocol):
    """The cgroups of one job, of either version."""

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
    """What samplers and outputs see of a job. The agent keeps it current; they only read it."""

    sighting: Sighting
    #: The job's identity; fields are filled in as they become known.
    info: JobInfo
    probe: Probe
    #: The live processes and the rows by executable.
    usage: JobUsage
    #: None for a job without a cgroup.
    counters: Counters | None = None
    #: The GPUs of the job: minor numbers, UUIDs or MIG names from Slurm or the prolog; None if
    #: not known.
    gpus: tuple[str, ...] | None = None
    #: The last row of the probe.
    row: Row = msgspec.field(default_factory=dict)
    #: Its time on the monotonic clock; None if not known.
    row_time: int | None = None
    #: When its CPU counter was read, on the monotonic clock; None if not known.
    row_read_at: int | None = None


Document = dict[str, Any]


class Sampler(Protocol):
    """Measures one kind of resource of one job. Each job has its own instance, and an exception
    in one sampler does not affect the others. Every result may be empty."""

    name: str
    interval: float

    def columns(self, view: JobView) -> Row:
        """Metrics for the time series (see jobsight.metrics), at every sampling round."""
        ...

    def document(self, view: JobView) -> Document | None:
        """The document of the SAMS sampler of this name, at every interval of the sampler."""
        ...

    def final(self, view: JobView) -> Document:
        """The final document, at the end of the job."""
        ...

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        """The coverage of the metrics, by group."""
        ...

    def close(self) -> None: ...


class Output(Protocol):
    """Writes the documents of one job elsewhere. It runs in a thread of its own and may block."""

    name: str

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        """Store one document of one sampler."""
        ...

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """Write the final documents of all samplers. Called once at the end of the job, and again
        after an exception until it returns."""
        ...

    def close(self) -> None: ...
