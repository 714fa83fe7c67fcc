"""What a scheduler's reply says, in one shape for all releases and all ways to ask.

Units as in :mod:`jobsight.model`: nanoseconds, bytes; ``None`` is "not known".

What can go wrong between us and a scheduler; both are said, neither is an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import JobInfo
from jobsight.util.outer import Size, Time


class Problem(msgspec.Struct, frozen=True):
    """A field that was not understood. Its raw value stays in the record."""

    #: The record it belongs to: "job 12", "node cn1".
    record: str
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.record}: {self.field}: {self.reason}"


class StepInfo(msgspec.Struct, kw_only=True):
    """One step of a job, as the accounting booked it."""

    #: As Slurm names it: "batch", "extern", "interactive", "0", "1" ...
    step: str
    name: str | None = None
    state: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None
    start: int | None = None
    end: int | None = None
    tasks: int | None = None
    nodes: tuple[str, ...] | None = None
    cpu_time: int | None = None
    cpu_user: int | None = None
    cpu_system: int | None = None
    #: The highest resident memory of one task.
    memory_peak: int | None = None
    tres: dict[str, int] = msgspec.field(default_factory=dict)


class JobRecord(msgspec.Struct, kw_only=True):
    """A job with all that has a place; ``info`` is what the store keeps of it."""

    info: JobInfo
    #: Beside the state: COMPLETING, REQUEUED, CONFIGURING ...
    state_flags: tuple[str, ...] = ()
    reason: str | None = None
    reservation: str | None = None
    group: str | None = None
    gid: int | None = None
    comment: str | None = None
    constraints: str | None = None
    container: str | None = None
    dependency: str | None = None
    licenses: str | None = None
    submit_line: str | None = None
    working_directory: str | None = None
    wckey: str | None = None
    standard_output: str | None = None
    standard_error: str | None = None
    standard_input: str | None = None
    priority: int | None = None
    eligible: int | None = None
    #: Waiting jobs: the start that the scheduler expects.
    expected_start: int | None = None
    elapsed: int | None = None
    suspended: int | None = None
    node_count: int | None = None
    tasks: int | None = None
    #: The tasks of an array that wait in one record: "3-4%2".
    array_tasks: str | None = None
    array_task_limit: int | None = None
    derived_exit_code: int | None = None
    derived_exit_signal: int | None = None
    #: Who ended it by scancel, where Slurm says so.
    cancelled_by: str | None = None
    flags: tuple[str, ...] = ()
    tres_requested: dict[str, int] = msgspec.field(default_factory=dict)
    #: Generic resources with their places, one text for each node: "gpu:a100:2(IDX:0-1)".
    gres: tuple[str, ...] = ()
    cpu_time: int | None = None
    cpu_user: int | None = None
    cpu_system: int | None = None
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    #: What was not understood, by field, as it came.
    raw: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether this is a run: a job that waits, or was cancelled while it waited, is none."""
        return self.info.start is not None


class NodeInfo(msgspec.Struct, kw_only=True):
    """A node as the scheduler sees it."""

    cluster: str
    name: str
    state: str | None = None
    state_flags: tuple[str, ...] = ()
    reason: str | None = None
    reason_user: str | None = None
    reason_time: Time | None = None
    address: str | None = None
    host: str | None = None
    port: int | None = None
    architecture: str | None = None
    system: str | None = None
    version: str | None = None
    boards: int | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    cpus: int | None = None
    cpus_allocated: int | None = None
    cpus_idle: int | None = None
    #: The load average over one minute.
    load: float | None = None
    memory: Size | None = None
    memory_allocated: Size | None = None
    memory_free: Size | None = None
    temporary_disk: Size | None = None
    weight: int | None = None
    features: tuple[str, ...] = ()
    features_active: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    reservation: str | None = None
    owner: str | None = None
    comment: str | None = None
    extra: str | None = None
    #: "gpu:a100" and the like, configured and in use.
    gres: dict[str, int] = msgspec.field(default_factory=dict)
    gres_used: dict[str, int] = msgspec.field(default_factory=dict)
    tres: dict[str, int] = msgspec.field(default_factory=dict)
    tres_used: dict[str, int] = msgspec.field(default_factory=dict)
    booted: Time | None = None
    daemon_started: Time | None = None
    last_busy: Time | None = None
    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class PartitionInfo(msgspec.Struct, kw_only=True):
    """A partition."""

    cluster: str
    name: str
    state: str | None = None
    nodes: tuple[str, ...] | None = None
    node_count: int | None = None
    cpus: int | None = None
    time_limit: int | None = None
    default_time: int | None = None
    accounts_allowed: tuple[str, ...] = ()
    accounts_denied: tuple[str, ...] = ()
    groups_allowed: tuple[str, ...] = ()
    qos_allowed: tuple[str, ...] = ()
    qos: str | None = None
    priority_tier: int | None = None
    priority_factor: int | None = None
    tres: dict[str, int] = msgspec.field(default_factory=dict)
    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class Jobs:
    """A reply about jobs, read once while it comes; ``records`` takes all of it into memory."""

    def __init__(
        self, records: Iterable[JobRecord] = (), problems: list[Problem] | None = None
    ) -> None:
        self._stream = iter(records)
        self._records: list[JobRecord] | None = None
        #: Complete, as the release is, once all records have been read.
        self.problems: list[Problem] = [] if problems is None else problems
        self.release: str | None = None

    def __iter__(self) -> Iterator[JobRecord]:
        return self._stream if self._records is None else iter(self._records)

    @property
    def records(self) -> list[JobRecord]:
        if self._records is None:
            self._records = list(self._stream)
        return self._records


def join_jobs(replies: Iterable[Jobs]) -> Jobs:
    """Several replies as one, each asked for when it is its turn."""

    def records() -> Iterator[JobRecord]:
        for reply in replies:
            yield from reply
            joined.problems += reply.problems
            joined.release = reply.release or joined.release

    joined = Jobs(records())
    return joined


class Nodes(msgspec.Struct, kw_only=True):
    """A reply about nodes."""

    records: list[NodeInfo]
    problems: list[Problem] = msgspec.field(default_factory=list)
    release: str | None = None


class Partitions(msgspec.Struct, kw_only=True):
    """A reply about partitions."""

    records: list[PartitionInfo]
    problems: list[Problem] = msgspec.field(default_factory=list)
    release: str | None = None


class SchedulerError(JobsightError):
    """The scheduler could not be asked, or not be understood."""


class SourceError(SchedulerError):
    """A source gave no answer: not installed, not reachable, refused, too slow."""


class AdaptError(SchedulerError):
    """An answer came and is not understood as a whole."""


class NoList(AdaptError):
    """An answer is about something else than what was asked for."""
