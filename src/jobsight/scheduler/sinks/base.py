"""The contract of sinks, and the records that they receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.scheduler.records import JobRecord, NodeInfo


class SinkError(JobsightError):
    """The service did not accept what it was sent; it is sent again."""


class Figures(msgspec.Struct, kw_only=True):
    """What agents measured of a run; None if it was not measured."""

    cpu_time: int | None = None
    memory_used_peak: int | None = None
    memory_peak: int | None = None


class SinkJob(msgspec.Struct):
    """A run or a pending job, with all that is known of it."""

    record: JobRecord
    figures: Figures

    @property
    def key(self) -> str:
        """Never changes, so that a job that is sent again replaces itself."""
        info = self.record.info
        when = "waiting" if info.start is None else format_start(info.start)
        tasks = f"_[{self.record.array_tasks}]" if self.record.array_tasks else ""
        return f"{info.cluster}:{info.job_id}{tasks}:{when}"


class Sink(Protocol):
    """A service. Each method returns the number of documents that it wrote, and raises
    :class:`SinkError` if the service is unreachable or refuses them."""

    name: str

    def prepare(self) -> None:
        """Create what documents require: indices, templates."""
        ...

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        """Write the runs that the service does not have in this form."""
        ...

    def pending(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
        """Replace all pending jobs of the cluster by these."""
        ...

    def nodes(self, cluster: str, nodes: Sequence[NodeInfo]) -> int:
        """Replace all nodes of the cluster by these."""
        ...

    def close(self) -> None: ...
