"""Records of the scheduler in one form for all releases and sources, and its errors.

Units as in :mod:`jobsight.model`: nanoseconds and bytes; ``None`` means "not known". A query that
fails and a reply that is not understood raise a :class:`SchedulerError`; neither is an empty list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import JobInfo
from jobsight.util.outer import Size, Time


class Problem(msgspec.Struct, frozen=True):
    """A field that was not understood. Its value is in ``raw`` of the record."""

    #: "job 12", "node cn1".
    record: str
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.record}: {self.field}: {self.reason}"


class StepInfo(msgspec.Struct, kw_only=True):
    """A step of a job, as recorded by the accounting."""

    #: "batch", "extern", "interactive", "0", "1" ...
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
    #: The highest resident memory of any task.
    memory_peak: int | None = None
    tres: dict[str, int] = msgspec.field(default_factory=dict)


class JobDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the scheduler reports of a job beyond its :class:`JobInfo`."""

    #: Whether the accounting has recorded the run; then the controller only completes the record.
    accounted: bool = False
    #: COMPLETING, REQUEUED, CONFIGURING ...
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
    #: Of a pending job: the start that the scheduler expects.
    expected_start: int | None = None
    elapsed: int | None = None
    suspended: int | None = None
    node_count: int | None = None
    tasks: int | None = None
    #: The pending tasks of an array, which have one record: "3-4%2".
    array_tasks: str | None = None
    array_task_limit: int | None = None
    derived_exit_code: int | None = None
    derived_exit_signal: int | None = None
    #: Who cancelled the job.
    cancelled_by: str | None = None
    flags: tuple[str, ...] = ()
    tres_requested: dict[str, int] = msgspec.field(default_factory=dict)
    #: Generic resources with their indices, one text for each node: "gpu:a100:2(IDX:0-1)".
    gres: tuple[str, ...] = ()
    cpu_time: int | None = None
    cpu_user: int | None = None
    cpu_system: int | None = None
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    #: Values that were not understood, by path, as received.
    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class JobRecord(JobDetails, kw_only=True, omit_defaults=True):
    """A job as the scheduler reports it. The store keeps ``info`` as columns."""

    info: JobInfo

    @property
    def ran(self) -> bool:
        """False for a pending job, and for one that was cancelled while pending."""
        return self.info.start is not None

    @property
    def details(self) -> JobDetails:
        """The details to be stored, without values that differ in each reply of a running job."""
        values = {name: getattr(self, name) for name in JobDetails.__struct_fields__}
        if self.info.end is None:
            values["elapsed"] = None
        return JobDetails(**values)


class NodeInfo(msgspec.Struct, kw_only=True):
    """A node as the scheduler reports it."""

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
    #: By name and type, such as "gpu:a100": configured, and allocated.
    gres: dict[str, int] = msgspec.field(default_factory=dict)
    gres_used: dict[str, int] = msgspec.field(default_factory=dict)
    tres: dict[str, int] = msgspec.field(default_factory=dict)
    tres_used: dict[str, int] = msgspec.field(default_factory=dict)
    booted: Time | None = None
    daemon_started: Time | None = None
    last_busy: Time | None = None
    raw: dict[str, Any] = msgspec.field(default_factory=dict)


class PartitionInfo(msgspec.Struct, kw_only=True):
    """A partition; an empty tuple of allowed names means all."""

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
    """A reply about jobs, iterated once while it arrives; ``records`` reads all into memory."""

    def __init__(
        self, records: Iterable[JobRecord] = (), problems: list[Problem] | None = None
    ) -> None:
        self._stream = iter(records)
        self._records: list[JobRecord] | None = None
        #: Like the release, complete after the iteration.
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
    """Several replies as one; each is requested when the iteration reaches it."""

    def records() -> Iterator[JobRecord]:
        for reply in replies:
            yield from reply
            joined.problems += reply.problems
            joined.release = reply.release or joined.release

    joined = Jobs(records())
    return joined


#: A list of one cluster does not become one of several after so many records.
_MAX_NAMED_RECORDS = 1000


def single_cluster(jobs: Iterable[JobRecord]) -> str | None:
    """The cluster that the first records name, if it is one."""
    names = {record.info.cluster for record in itertools.islice(jobs, _MAX_NAMED_RECORDS)} - {""}
    return names.pop() if len(names) == 1 else None


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
    """A query of the scheduler failed."""


class SourceError(SchedulerError):
    """There is no reply: Slurm is not installed, unreachable, too slow, or refuses the query."""


class AdaptError(SchedulerError):
    """A reply as a whole is not understood."""


class NoList(AdaptError):
    """A reply has no list of the requested records."""
