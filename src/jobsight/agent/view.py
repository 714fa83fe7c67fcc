"""What a sampler or an output may see of a job that is followed on this node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from jobsight.agent.cgroups import CpuReading, MemoryMarks, MemoryReading
from jobsight.agent.job import Probe
from jobsight.agent.probe import Row
from jobsight.agent.usage import JobUsage
from jobsight.model import Coverage, JobInfo, Sighting


class Counters(Protocol):
    """The cgroups of one job, whatever their version and shape."""

    @property
    def version(self) -> str: ...
    @property
    def folders(self) -> dict[str, Path]:
        """The job's folder by controller on v1; ``unified`` on v2."""
        ...

    def cpu(self) -> CpuReading | None: ...
    def memory(self) -> MemoryReading | None: ...
    def marks(self) -> MemoryMarks: ...
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
    row_read: int | None = None


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
