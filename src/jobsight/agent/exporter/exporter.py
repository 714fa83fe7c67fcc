"""The exporter: keeps the rendered series of all jobs of the node, ready for a scrape.

It joins each job as one more sampler. A scrape or push only concatenates prepared text, so it
never waits for the sampling loop, nor the loop for it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobsight import __version__
from jobsight.agent.exporter.job_series import JobSeries
from jobsight.agent.job import Document, JobView, Row, Sampler
from jobsight.agent.processes.procfs import PAGE
from jobsight.agent.samplers.base import JobSampler
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.agent.samplers.files import SCRATCH, Files
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.gpu.source import GpuReading
from jobsight.agent.samplers.processes import Threads
from jobsight.agent.sampling import SamplerPlan
from jobsight.model import SECOND
from jobsight.prometheus import names
from jobsight.prometheus.exposition import document, line
from jobsight.prometheus.names import AGENT, MEBIBYTE, Family

if TYPE_CHECKING:
    from jobsight.agent.outputs.worker import OutputWorker

#: Samples between two readings of the links of open files.
_LINKS_EVERY: Final = 5
#: Name of nvidia_smi_exporter -> field of :class:`GpuReading`, and its divisor.
_NVIDIA_SMI_FIELDS: Final = {
    "utilization_gpu": ("utilization", 1),
    "utilization_memory": ("memory_utilization", 1),
    "temperature_gpu": ("temperature", 1),
    "memory_total": ("memory_total", MEBIBYTE),
    "memory_used": ("memory_used", MEBIBYTE),
}


class Lines(NamedTuple):
    """Rendered samples of one family."""

    family: Family
    text: str


#: Returns further samples. Called from any thread; must not block.
Source = Callable[[], Iterable[Lines]]


class Exporter:
    """The rendered series of all jobs of the node."""

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
        #: Sources of further series: the agent itself, the profile plugin.
        self.sources: list[Source] = []
        #: Called with the series of a job that has ended.
        self.on_end: list[Callable[[JobSeries], None]] = []
        self._petricore_names = petricore_names
        self._max_series = max_series
        self._scratch = scratch
        self.nvidia_smi_names = nvidia_smi_names
        self._clock = clock
        self._jobs: dict[tuple[str, int], JobSeries] = {}
        #: Samplers of the job that is being set up; they precede the exporter's own.
        self._configured: list[tuple[JobView, Sampler]] = []

    def plans(self, plans: Sequence[SamplerPlan]) -> list[SamplerPlan]:
        """The same samplers, followed by one that exports their values and the engine's."""
        own = SamplerPlan("jobsight.exporter", self._add_job, float("inf"))
        return [*(plan._replace(make=self._remembering(plan)) for plan in plans), own]

    def _remembering(self, plan: SamplerPlan) -> Callable[[JobView], Sampler]:
        def make(view: JobView) -> Sampler:
            sampler = plan.make(view)
            self._configured.append((view, sampler))
            return sampler

        return make

    def _add_job(self, view: JobView) -> Sampler:
        configured = [sampler for of, sampler in self._configured if of is view]
        self._configured.clear()
        additional = self._additional_samplers(configured) if self._petricore_names else []
        series = JobSeries(view, petricore_names=self._petricore_names)
        # A job that was requeued on the same node replaces its ended run.
        self._jobs[series.key] = series
        return _JobExporter(self, series, configured, additional)

    def _additional_samplers(self, configured: Sequence[Sampler]) -> list[Sampler]:
        """Samplers that petricore's names require and that are not configured."""
        required: dict[type[Sampler], Callable[[], Sampler]] = {
            CoreTimes: CoreTimes,
            Files: lambda: Files(scratch_prefixes=self._scratch, links_every=_LINKS_EVERY),
            Threads: Threads,
        }
        return [
            create()
            for kind, create in required.items()
            if not any(isinstance(sampler, kind) for sampler in configured)
        ]

    def available_series(self, series: JobSeries) -> int:
        """The number of series that a job may have within ``max_series``."""
        others = sum(other.count for other in self._jobs.values() if other is not series)
        return max(0, self._max_series - others)

    def job_ended(self, series: JobSeries) -> None:
        series.expires_at = self._clock() + self.keep_ended
        for callback in self.on_end:
            callback(series)

    @property
    def next_expiry(self) -> float | None:
        """Seconds until the series of an ended job are removed; None if all jobs run."""
        times = [job.expires_at for job in self.jobs if job.expires_at is not None]
        return min(times) - self._clock() if times else None

    def remove_expired(self) -> None:
        """Remove ended jobs whose last values have been exposed long enough."""
        now = self._clock()
        for series in list(self._jobs.values()):
            if series.expires_at is not None and series.expires_at <= now:
                del self._jobs[series.key]

    @property
    def jobs(self) -> list[JobSeries]:
        """The exposed jobs, including those that have just ended."""
        now = self._clock()
        return [job for job in list(self._jobs.values()) if (job.expires_at or now + 1) > now]

    @property
    def series(self) -> int:
        return sum(job.count for job in self.jobs)

    @property
    def left_out(self) -> int:
        return sum(job.left_out for job in self.jobs)

    def text(self, *, openmetrics: bool = False) -> bytes:
        """The exposition of all series."""
        lines: dict[str, list[str]] = {}
        jobs = self.jobs
        for job in jobs:
            for name, text in job.lines.items():
                lines.setdefault(name, []).append(text)
        lines |= nvidia_smi_lines(jobs)
        families: dict[str, Family] = dict(names.NVIDIA_SMI)
        for source in self.sources:
            for family, text in source():
                families[family.name] = family
                lines.setdefault(family.name, []).append(text)
        known = chain(names.OWN.values(), names.PETRICORE.values())
        order = {family.name: family for family in known} | families
        return document(order.values(), lines, openmetrics=openmetrics).encode()


class _JobExporter(JobSampler):
    """The exporter's sampler of one job. It adds nothing to the job's own time series."""

    name = "jobsight.exporter"

    def __init__(
        self,
        exporter: Exporter,
        series: JobSeries,
        configured: Sequence[Sampler],
        additional: Sequence[Sampler],
    ) -> None:
        super().__init__()
        self._exporter = exporter
        self._series = series
        self._additional = additional
        # Threads are read while rendering.
        self._sampled = [one for one in additional if not isinstance(one, Threads)]
        self._samplers = [*configured, *additional]
        self._row: Row = {}

    def columns(self, view: JobView) -> Row:
        row = dict(view.row)
        for sampler in self._sampled:
            try:
                row.update(sampler.columns(view))
            except Exception as error:
                self.errors.add(sampler.name, error)
        self._row = row
        self._render(view)
        return {}

    def _render(self, view: JobView) -> None:
        limit = self._exporter.available_series(self._series)
        self._series.render(view, self._row, self._samplers, limit)
        if self._exporter.nvidia_smi_names:
            sampler = next((one for one in self._samplers if isinstance(one, GpuSampler)), None)
            self._series.gpus = sampler.readings if sampler is not None else {}

    def final(self, view: JobView) -> Document:
        """Expose the final counters, which are newer than the last sample."""
        totals = view.probe.totals()
        final = {
            "cpu.time": totals.cpu_time,
            "cpu.user": totals.cpu_user,
            "cpu.system": totals.cpu_system,
            "memory.peak": totals.memory_peak,
        }
        for metric, value in final.items():
            if metric in self._row and value is not None:
                self._row[metric] = max(self._row[metric], value)
        view.row = self._row
        self._render(view)
        self._exporter.job_ended(self._series)
        return {}

    def close(self) -> None:
        for sampler in self._additional:
            sampler.close()


def nvidia_smi_lines(jobs: Iterable[JobSeries]) -> dict[str, list[str]]:
    """Samples under the names of nvidia_smi_exporter; a GPU that jobs share appears once."""
    readings: dict[tuple[str, str], GpuReading] = {
        (job.key[0], gpu): reading for job in jobs for gpu, reading in job.gpus.items()
    }
    lines: dict[str, list[str]] = {}
    for (node, gpu), reading in sorted(readings.items()):
        values = {
            name: getattr(reading, field) / divisor
            for name, (field, divisor) in _NVIDIA_SMI_FIELDS.items()
            if getattr(reading, field) is not None
        }
        if reading.memory_total is not None and reading.memory_used is not None:
            values["memory_free"] = (reading.memory_total - reading.memory_used) / MEBIBYTE
        for name, value in values.items():
            text = line(name, {"instance": node, "gpu": gpu}, value)
            lines.setdefault(name, []).append(text)
    return lines


class AgentMetrics:
    """The agent's metrics about itself, rendered by the loop every few seconds."""

    def __init__(self, exporter: Exporter, status: Callable[[], Mapping[str, Any]]) -> None:
        self._exporter = exporter
        self._status = status
        #: Counts of pushes and remote writes, by the name after ``jobsight_agent_``.
        self.counts: list[Callable[[], Mapping[str, int]]] = []
        #: The outputs that write the documents of jobs.
        self.outputs: Sequence[OutputWorker] = ()
        self._lines: list[Lines] = []

    def __call__(self) -> Iterable[Lines]:
        return self._lines

    def refresh(self) -> None:
        """Render again. Only the loop may call this: it reads what the loop changes."""
        self._exporter.remove_expired()
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
        for name, by_output in self._losses().items():
            family = AGENT[f"jobsight_agent_output_{name}"]
            text = "".join(
                line(family.name, labels | {"output": output}, value)
                for output, value in by_output.items()
            )
            lines.append(Lines(family, text))
        self._lines = lines

    def _losses(self) -> dict[str, Counter[str]]:
        """What outputs could not write, by the name of the output: two may have the same."""
        losses: dict[str, Counter[str]] = {}
        for worker in self.outputs:
            counts = worker.counts
            for name, count in (
                ("lost_records_total", counts.lost),
                ("refused_records_total", counts.refused),
                ("lost_samples_total", counts.dropped + counts.failed),
            ):
                losses.setdefault(name, Counter())[worker.name] += count
        return losses


def resident_memory(file: Path = Path("/proc/self/statm")) -> int:
    """Resident memory of this process in bytes."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(descriptor, 200).split()[1]) * PAGE
    finally:
        os.close(descriptor)
