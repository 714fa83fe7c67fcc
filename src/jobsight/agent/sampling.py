"""The samplers and outputs of one job: each looks when it is due, and no one stops another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from jobsight.agent.job import Document, FollowedJob, JobView, Output, Probe, Row, Sampler
from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.agent.outputs.worker import OutputHandle
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.readings import Errors
from jobsight.model import Coverage
from jobsight.text import readable_text
from jobsight.util.log_once import LogOnce

logger = logging.getLogger("jobsight.agent")


class Refreshable(Probe, Protocol):
    """A probe that can look again for what Slurm has made and removed."""

    read_at: int | None

    def refresh(self) -> None: ...


class SamplerPlan(NamedTuple):
    """A sampler that every job gets one of."""

    name: str
    make: Callable[[JobView], Sampler]
    interval: float


class SampledJob:
    """A followed job with its samplers and outputs."""

    def __init__(
        self,
        place: JobCgroup,
        followed: FollowedJob,
        view: JobView,
        probe: Refreshable,
        samplers: Sequence[SamplerPlan],
        outputs: Sequence[Callable[[JobView], Output]],
    ) -> None:
        self.place = place
        self.followed = followed
        self.view = view
        self.probe = probe
        self._log = LogOnce(logger)
        self._samplers: list[tuple[Sampler, float]] = []
        self._due: dict[str, float] = {}
        self._outputs = [OutputHandle(make(view), view) for make in outputs]
        for plan in samplers:
            try:
                self._samplers.append((plan.make(view), plan.interval))
            except Exception as error:
                self._failed(plan.name, error)

    def _failed(self, name: str, error: Exception) -> None:
        """One line per cause: a sampler that fails every second must not fill the log."""
        cause = f"{name}: {type(error).__name__}: {error}"
        message = f"job {self.view.sighting.job_id}: sampler {cause}"
        self._log.report(cause, readable_text(message)[:500], level=logging.ERROR)

    @property
    def errors(self) -> dict[str, int]:
        """Failed readings by cause."""
        return self._log.counts

    def add_columns(self, row: Row) -> None:
        """Add the samplers' curves to a row of the engine's."""
        self.view.row, self.view.row_read_at = row, self.probe.read_at
        for sampler, _ in self._samplers:
            try:
                row.update(sampler.columns(self.view))
            except Exception as error:
                self._failed(sampler.name, error)

    def coverage(self) -> dict[str, Coverage]:
        """How sure the samplers' figures are, where they say so."""
        found: dict[str, Coverage] = {}
        for sampler, _ in self._samplers:
            try:
                found |= sampler.coverage(self.view)
            except Exception as error:
                self._failed(sampler.name, error)
        return found

    def tick(self, now: float) -> None:
        """Give the outputs what the samplers that are due have to say."""
        for sampler, interval in self._samplers:
            self._log_news(sampler)
            due = self._due.setdefault(sampler.name, now + interval)
            if now < due:
                continue
            self._due[sampler.name] = now + interval
            try:
                document = sampler.document(self.view)
            except Exception as error:
                self._failed(sampler.name, error)
                continue
            if document is not None:
                self._store(sampler.name, document)

    def _log_news(self, sampler: Sampler) -> None:
        """Log readings that failed inside a sampler, each cause once."""
        errors = getattr(sampler, "errors", None)
        if isinstance(errors, Errors):
            for message in errors.unreported():
                cause = f"{sampler.name}: {message}"
                self._log.report(cause, f"job {self.view.sighting.job_id}: {cause}")
        node = getattr(sampler, "node", None)
        if isinstance(node, Node):
            for message in node.errors.unreported():
                logger.warning("%s", message)

    def _store(self, name: str, document: Document) -> None:
        for output in self._outputs:
            output.store(name, document)

    def finish(self) -> None:
        """The last word of every sampler to every output."""
        documents: dict[str, Document] = {}
        for sampler, _ in self._samplers:
            try:
                last = sampler.final(self.view)
                if last:
                    documents[sampler.name] = last
                sampler.close()
            except Exception as error:
                self._failed(sampler.name, error)
        for output in self._outputs:
            output.finish(documents)
