"""The contract of sinks, and the records that they receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.store.write.gpus import GpuSums
from jobsight.util.outer import to_seconds


class SinkError(JobsightError):
    """The service did not accept what it was sent; it is sent again."""


class Figures(msgspec.Struct, kw_only=True):
    """What agents measured of a run; None if it was not measured."""

    cpu_time: int | None = None
    memory_used_peak: int | None = None
    memory_peak: int | None = None
    gpus: GpuSums = GpuSums()

    def gpu_fields(self) -> dict[str, Any]:
        """The figures of GPUs by their outer names."""
        gpus = self.gpus
        return {
            "gpus_held": gpus.gpu_count,
            "gpus_never_used": gpus.gpu_unused_count,
            "gpu_held_seconds": _seconds(gpus.gpu_held_time),
            "gpu_measured_seconds": _seconds(gpus.gpu_measured_time),
            "gpu_profiled_seconds": _seconds(gpus.gpu_profiled_time),
            "gpu_used_seconds": _seconds(gpus.gpu_used_time),
            "gpu_memory_peak_bytes": gpus.gpu_memory_peak,
            "gpu_energy_joules": None if gpus.gpu_energy is None else gpus.gpu_energy / 1e6,
        }


def _seconds(duration: int | None) -> float | None:
    return None if duration is None else to_seconds(duration)


class SinkJob(msgspec.Struct):
    """A run or a pending job, with all that is known of it."""

    record: JobRecord
    figures: Figures
    #: Findings that hold, the worst first, as FindingRow.document returns them.
    findings: list[dict[str, Any]] = msgspec.field(default_factory=list)

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
