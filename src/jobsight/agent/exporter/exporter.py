"""The exporter of the node: the series of the jobs that run here now, and of the agent itself.

It rides along as one more sampler of each job. Whatever takes the figures away (the endpoint, a
Pushgateway) reads text that is ready and never waits for the loop, nor the loop for it.

The names of nvidia_smi_exporter, which petricore's pages read: by node and GPU, not by job.

The agent's figures about itself, as a source of the exporter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from jobsight import __version__
from jobsight.agent.exporter.job_series import JobSeries
from jobsight.agent.job import Document, JobView, Row, Sampler
from jobsight.agent.processes.procfs import PAGE
from jobsight.agent.samplers.base import JobSampler
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.agent.samplers.files import SCRATCH, Files
from jobsight.agent.samplers.gpu.nvml import GpuReading
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.processes import Threads
from jobsight.agent.sampling import SamplerPlan
from jobsight.model import SECOND
from jobsight.prometheus import names
from jobsight.prometheus.exposition import document, line
from jobsight.prometheus.names import AGENT, MEBIBYTE, Family

#: Samples between two looks at where open files lie.
_LINKS_EVERY: Final = 5


class Lines(NamedTuple):
    """Samples of one family, as text; those of several jobs under one name come together."""

    family: Family
    text: str


#: Gives further samples, from any thread and at once.
Source = Callable[[], Iterable[Lines]]


class Exporter:
    """Keeps the prepared series of all jobs of the node."""

    def __init__(
        self,
        *,
        petricore_names: bool = True,
        keep_ended: float = 30.0,
        max_series: int = 20_000,
        scratch: Sequence[str] = SCRATCH,
        nvidia_smi_names: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keep_ended = keep_ended
        self.scrapes = 0
        #: Whoever has more to say than the jobs: the agent itself, the socket of Slurm's plugin.
        self.sources: list[Source] = []
        self._petricore_names = petricore_names
        self._max_series = max_series
        self._scratch = scratch
        self.nvidia_smi_names = nvidia_smi_names
        self._clock = clock
        self._jobs: dict[tuple[str, int], JobSeries] = {}
        #: Samplers of the job that is being put together, which come before ours.
        self._made: list[tuple[JobView, Sampler]] = []

    def plans(self, plans: Sequence[SamplerPlan]) -> list[SamplerPlan]:
        """The same samplers, and one more behind them that offers what they and the engine say."""
        own = SamplerPlan("jobsight.exporter", self._begin, float("inf"))
        return [*(plan._replace(make=self._remembering(plan)) for plan in plans), own]

    def _remembering(self, plan: SamplerPlan) -> Callable[[JobView], Sampler]:
        def make(view: JobView) -> Sampler:
            sampler = plan.make(view)
            self._made.append((view, sampler))
            return sampler

        return make

    def _begin(self, view: JobView) -> Sampler:
        there = [sampler for of, sampler in self._made if of is view]
        self._made.clear()
        hidden = self._hidden(there) if self._petricore_names else []
        series = JobSeries(view, petricore_names=self._petricore_names)
        # A job that was requeued onto its node takes the place of the one that ended.
        self._jobs[series.key] = series
        return _JobExporter(self, series, there, hidden)

    def _hidden(self, there: Sequence[Sampler]) -> list[Sampler]:
        """What petricore's names need besides the engine's row and the samplers of the settings."""
        needed: dict[type[Sampler], Callable[[], Sampler]] = {
            CoreTimes: CoreTimes,
            Files: lambda: Files(scratch_prefixes=self._scratch, links_every=_LINKS_EVERY),
            Threads: Threads,
        }
        missing = [kind for kind in needed if not any(isinstance(one, kind) for one in there)]
        return [needed[kind]() for kind in missing]

    def room_for(self, series: JobSeries) -> int:
        others = sum(one.count for one in self._jobs.values() if one is not series)
        return max(0, self._max_series - others)

    def ended(self, series: JobSeries) -> None:
        series.gone_at = self._clock() + self.keep_ended

    def tick(self) -> None:
        """Let go of jobs whose last values have been offered long enough."""
        now = self._clock()
        for series in list(self._jobs.values()):
            if series.gone_at is not None and series.gone_at <= now:
                del self._jobs[series.key]

    @property
    def jobs(self) -> list[JobSeries]:
        """The jobs whose series are offered now, those that have just ended among them."""
        now = self._clock()
        return [one for one in list(self._jobs.values()) if (one.gone_at or now + 1) > now]

    @property
    def series(self) -> int:
        return sum(one.count for one in self.jobs)

    @property
    def left_out(self) -> int:
        return sum(one.left_out for one in self.jobs)

    def text(self, *, openmetrics: bool = False) -> bytes:
        """All that is offered now."""
        lines: dict[str, list[str]] = {}
        for job in self.jobs:
            for name, text in job.lines.items():
                lines.setdefault(name, []).append(text)
        lines |= gpu_lines(self.jobs)
        families: dict[str, Family] = dict(names.PETRICORE_GPU)
        for source in self.sources:
            for family, text in source():
                families[family.name] = family
                lines.setdefault(family.name, []).append(text)
        known = chain(names.OWN.values(), names.PETRICORE.values())
        order = {family.name: family for family in known} | families
        return document(order.values(), lines, openmetrics=openmetrics).encode()


class _JobExporter(JobSampler):
    """The sampler that stands for the exporter in one job. It adds nothing to the job's curves."""

    name = "jobsight.exporter"

    def __init__(
        self,
        exporter: Exporter,
        series: JobSeries,
        there: Sequence[Sampler],
        hidden: Sequence[Sampler],
    ) -> None:
        super().__init__()
        self._exporter = exporter
        self._series = series
        self._hidden = hidden
        # That of the threads is asked when the figures are put together.
        self._looking = [one for one in hidden if not isinstance(one, Threads)]
        self._samplers = [*there, *hidden]
        self._row: Row = {}

    def columns(self, view: JobView) -> Row:
        row = dict(view.row)
        for sampler in self._looking:
            try:
                row.update(sampler.columns(view))
            except Exception as error:
                self.errors.add(sampler.name, error)
        self._row = row
        self._render(view)
        return {}

    def _render(self, view: JobView) -> None:
        room = self._exporter.room_for(self._series)
        self._series.render(view, self._row, self._samplers, room)
        if self._exporter.nvidia_smi_names:
            self._series.gpus = readings_of(self._samplers)

    def final(self, view: JobView) -> Document:
        """The last values are those of the counters, which were read once more."""
        totals = view.probe.totals()
        last = {
            "cpu.time": totals.cpu_time,
            "cpu.user": totals.cpu_user,
            "cpu.system": totals.cpu_system,
            "memory.peak": totals.memory_peak,
        }
        for metric, value in last.items():
            if metric in self._row and value is not None:
                self._row[metric] = max(self._row[metric], value)
        view.row = self._row
        self._render(view)
        self._exporter.ended(self._series)
        return {}

    def close(self) -> None:
        for sampler in self._hidden:
            sampler.close()


#: Name -> field of a reading and what it is divided by.
_FIELDS: Final = {
    "utilization_gpu": ("utilization", 1),
    "utilization_memory": ("memory_utilization", 1),
    "temperature_gpu": ("temperature", 1),
    "memory_total": ("memory_total", MEBIBYTE),
    "memory_used": ("memory_used", MEBIBYTE),
}


def readings_of(samplers: Iterable[Sampler]) -> dict[str, GpuReading]:
    """The last reading of each GPU of a job."""
    found = next((one for one in samplers if isinstance(one, GpuSampler)), None)
    return found.readings if found is not None else {}


def gpu_lines(jobs: Iterable[JobSeries]) -> dict[str, list[str]]:
    """The samples by name; a GPU that two jobs share is there once."""
    readings = {(job.key[0], gpu): one for job in jobs for gpu, one in job.gpus.items()}
    lines: dict[str, list[str]] = {}
    for (node, gpu), reading in sorted(readings.items()):
        values = {
            name: getattr(reading, field) / divisor
            for name, (field, divisor) in _FIELDS.items()
            if getattr(reading, field) is not None
        }
        if reading.memory_total is not None and reading.memory_used is not None:
            values["memory_free"] = (reading.memory_total - reading.memory_used) / MEBIBYTE
        for name, value in values.items():
            text = line(name, {"instance": node, "gpu": gpu}, value)
            lines.setdefault(name, []).append(text)
    return lines


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
