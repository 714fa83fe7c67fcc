"""The exporter of the node: the series of the jobs that run here now, and of the agent itself.

It rides along as one more sampler of each job. Whatever takes the figures away (the endpoint, a
Pushgateway) reads text that is ready and never waits for the loop, nor the loop for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from jobsight.agent.exporter_gpus import gpu_lines, readings_of
from jobsight.agent.exporter_job import JobSeries
from jobsight.agent.probe import Row
from jobsight.agent.samplers.base import JobSampler
from jobsight.agent.samplers.cores import Cores
from jobsight.agent.samplers.files import SCRATCH, Files
from jobsight.agent.samplers.threads import Threads
from jobsight.agent.sampling import SamplerPlan
from jobsight.agent.view import Document, JobView, Sampler
from jobsight.prometheus import names
from jobsight.prometheus.exposition import document
from jobsight.prometheus.names import Family

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
        seed_names: bool = True,
        keep_ended: float = 30.0,
        max_series: int = 20_000,
        scratch: Sequence[str] = SCRATCH,
        gpu_seed_names: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.keep_ended = keep_ended
        self.scrapes = 0
        #: Whoever has more to say than the jobs: the agent itself, the socket of Slurm's plugin.
        self.sources: list[Source] = []
        self._seed_names = seed_names
        self._max_series = max_series
        self._scratch = scratch
        self.gpu_seed_names = gpu_seed_names
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
        hidden = self._hidden(there) if self._seed_names else []
        series = JobSeries(view, seed_names=self._seed_names)
        # A job that was requeued onto its node takes the place of the one that ended.
        self._jobs[series.key] = series
        return _JobExporter(self, series, there, hidden)

    def _hidden(self, there: Sequence[Sampler]) -> list[Sampler]:
        """What petricore's names need besides the engine's row and the samplers of the settings."""
        needed: dict[type[Sampler], Callable[[], Sampler]] = {
            Cores: Cores,
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
                self.errors.note(sampler.name, error)
        self._row = row
        self._render(view)
        return {}

    def _render(self, view: JobView) -> None:
        room = self._exporter.room_for(self._series)
        self._series.render(view, self._row, self._samplers, room)
        if self._exporter.gpu_seed_names:
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
