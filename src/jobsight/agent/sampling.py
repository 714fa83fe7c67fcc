"""The samplers and outputs of one job. A failure of one does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from jobsight.agent.job import Document, FollowedJob, JobView, Output, Probe, Row, Sampler
from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.outputs.worker import OutputHandle
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Errors
from jobsight.model import Coverage, GpuUse
from jobsight.text import readable_text
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)


class Refreshable(Probe, Protocol):
    """A probe that finds the steps that Slurm has created and removed."""

    read_at: int | None

    def refresh(self) -> None: ...


class SamplerPlan(NamedTuple):
    """A sampler of which every job gets an instance."""

    name: str
    make: Callable[[JobView], Sampler]
    interval: float


class JobSamplers:
    """The samplers of one job, and what they add to its time series and its parts."""

    def __init__(self, view: JobView, samplers: Sequence[SamplerPlan]) -> None:
        self.view = view
        #: Errors of the samplers, by cause.
        self.errors = LogOnce(logger)
        self._samplers: list[tuple[Sampler, float]] = []
        for plan in samplers:
            try:
                self._samplers.append((plan.make(view), plan.interval))
            except Exception as error:
                self._report(plan.name, error)

    def _report(self, name: str, error: Exception) -> None:
        cause = f"{name}: {type(error).__name__}: {error}"
        message = f"job {self.view.sighting.job_id}: sampler {cause}"
        self.errors.report(cause, readable_text(message)[:500], level=logging.ERROR)

    def attach(self, followed: FollowedJob) -> None:
        """Add the figures of the samplers to the samples and the parts of the job."""
        followed.add_columns, followed.sampler_coverage = self.add_columns, self.coverage
        followed.gpu_uses = self.gpu_uses

    def add_columns(self, row: Row, monotonic: int) -> None:
        """Add the metrics of the samplers to a row of the probe of this time."""
        self.view.row = row
        self.view.row_time = monotonic
        self.view.row_read_at = getattr(self.view.probe, "read_at", None)
        for sampler, _ in self._samplers:
            try:
                row.update(sampler.columns(self.view))
            except Exception as error:
                self._report(sampler.name, error)

    def coverage(self) -> dict[str, Coverage]:
        """The coverage of those metrics."""
        coverage: dict[str, Coverage] = {}
        for sampler, _ in self._samplers:
            try:
                coverage |= sampler.coverage(self.view)
            except Exception as error:
                self._report(sampler.name, error)
        return coverage

    def gpu_uses(self, final: bool) -> list[GpuUse]:
        """The GPUs of the job, from the sampler that measures them."""
        for sampler, _ in self._samplers:
            uses = getattr(sampler, "gpu_uses", None)
            if uses is not None:
                try:
                    gpus: list[GpuUse] = uses(self.view, final=final)
                    return gpus
                except Exception as error:
                    self._report(sampler.name, error)
        return []

    def close(self) -> None:
        """Close samplers of which no documents are wanted."""
        for sampler, _ in self._samplers:
            sampler.close()


class SampledJob(JobSamplers):
    """A followed job with its samplers and outputs."""

    def __init__(
        self,
        cgroup: JobCgroup,
        followed: FollowedJob,
        view: JobView,
        probe: Refreshable,
        samplers: Sequence[SamplerPlan],
        outputs: Sequence[Callable[[JobView], Output]],
    ) -> None:
        super().__init__(view, samplers)
        self.cgroup = cgroup
        self.followed = followed
        self.probe = probe
        #: When each sampler gives its next document.
        self._due: dict[str, float] = {}
        self._outputs = [OutputHandle(make(view), view) for make in outputs]

    def tick(self, now: float) -> None:
        """Pass the documents of the samplers that are due to the outputs; called every second."""
        for sampler, interval in self._samplers:
            self._report_readings(sampler)
            # The first document at once: live outputs must not stay silent for an interval.
            if now < self._due.get(sampler.name, now) and not getattr(sampler, "every_tick", False):
                continue
            self._due[sampler.name] = now + interval
            try:
                document = sampler.document(self.view)
            except Exception as error:
                self._report(sampler.name, error)
                continue
            if document is not None:
                for output in self._outputs:
                    output.store(sampler.name, document)

    def _report_readings(self, sampler: Sampler) -> None:
        """Report the failed readings of a sampler, each cause once."""
        errors = getattr(sampler, "errors", None)
        if isinstance(errors, Errors):
            for text in errors.unreported():
                cause = f"{sampler.name}: {text}"
                self.errors.report(cause, f"job {self.view.sighting.job_id}: {cause}")
        node = getattr(sampler, "node", None)
        if isinstance(node, Node):
            for text in node.errors.unreported():
                logger.warning("%s", text)

    def finish(self) -> None:
        """Pass the final documents of all samplers to the outputs."""
        documents: dict[str, Document] = {}
        for sampler, _ in self._samplers:
            try:
                document = sampler.final(self.view)
                if document:
                    documents[sampler.name] = document
                sampler.close()
            except Exception as error:
                self._report(sampler.name, error)
        for output in self._outputs:
            output.finish(documents)
