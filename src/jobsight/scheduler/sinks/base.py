"""What every sink accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.scheduler.records import JobRecord, NodeInfo


class SinkError(JobsightError):
    """The service on the other side did not take what it was given; it will be given it again."""


class Figures(msgspec.Struct, kw_only=True):
    """What the agents measured of a run; None where nobody did."""

    cpu_time: int | None = None
    memory_used_peak: int | None = None
    memory_peak: int | None = None


class SinkJob(msgspec.Struct):
    """A run, or a job that waits, with all that is known of it."""

    record: JobRecord
    figures: Figures

    @property
    def key(self) -> str:
        """The same for ever, so that a job which comes again replaces itself."""
        info = self.record.info
        when = "waiting" if info.start is None else format_start(info.start)
        tasks = f"_[{self.record.array_tasks}]" if self.record.array_tasks else ""
        return f"{info.cluster}:{info.job_id}{tasks}:{when}"


class Sink(Protocol):
    """One service. Each method gives the number of documents it wrote, and raises
    :class:`SinkError` where the service is away or refuses."""

    name: str

    def prepare(self) -> None:
        """Make what must be there before the first document: indices, templates."""
        ...

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        """Write the runs that are not there yet as they are given."""
        ...

    def waiting(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
        """Make these the cluster's waiting jobs, all of them."""
        ...

    def nodes(self, cluster: str, nodes: Sequence[NodeInfo]) -> int:
        """Make these the cluster's nodes, all of them."""
        ...

    def close(self) -> None: ...
