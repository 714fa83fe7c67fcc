"""The records that all packages share: runs, jobs, batches and their parts.

Units are the same everywhere: times and durations are integer nanoseconds (times in UTC since
1970), CPU time is nanoseconds, sizes are bytes, shares are from 0 to 1. ``None`` means "not
known"; it is never replaced by zero.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

SECOND = 1_000_000_000

#: A reading that failed, inside a column of integers. Floating-point columns use NaN.
MISSING = -(2**63)

#: The source of runs that `jobsight run` started; no scheduler knows them.
LAUNCHER_SOURCE = "jobsight run"

#: The source of runs that records of SAMS describe.
SAMS_SOURCE = "SAMS record"
#: The sources that a node may name in a batch: what it can know of a job by itself, and what it has
#: asked the controller. :mod:`jobsight.store.write.precedence` orders them.
NODE_SOURCES = frozenset({"cgroup", "prolog", "epilog", "squeue", LAUNCHER_SOURCE})

#: Separates the path of an interpreter from its script. No path in /proc has two slashes.
SCRIPT_SEPARATOR = b"//"

Quality: TypeAlias = Literal["exact", "estimate", "failed", "missing"]


class Run(msgspec.Struct, frozen=True, order=True):
    """The key of one execution of a job: a requeued job is another run."""

    cluster: str
    job_id: int
    start: int

    def __str__(self) -> str:
        return f"{self.cluster}:{self.job_id}:{format_start(self.start)}"


class RunReference(msgspec.Struct, frozen=True):
    """A run as the user names it; omitted parts mean the latest run."""

    job_id: int
    cluster: str | None = None
    start: int | None = None
    array_task_id: int | None = None
    het_offset: int | None = None

    @classmethod
    def parse(cls, text: str) -> RunReference:
        """Read ``12``, ``62_3``, ``88+1``, ``cluster:12`` or ``cluster:12:20261115T043312Z``."""
        match = _REFERENCE.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError
            start = parse_start(match["start"]) if match["start"] else None
        except ValueError:
            raise ValueError(
                f"{text[:80]!r} does not name a run; expected a job id such as 12, an array "
                "task 62_3, a component 88+1, or the full form cluster:12:20261115T043312Z"
            ) from None
        task, offset = match["task"], match["offset"]
        return cls(
            job_id=int(match["job"]),
            cluster=match["cluster"],
            start=start,
            array_task_id=int(task) if task else None,
            het_offset=int(offset) if offset else None,
        )


#: The limit of the text form of a run; Slurm's job ids have 32 bits.
MAX_JOB_ID = 10**18 - 1
#: The start of a run is before this: with all nanoseconds of its second it fits into 63 bits.
_START_LIMIT = 2**63 // SECOND * SECOND
_REFERENCE = re.compile(
    r"(?:(?P<cluster>[^:\s\x00-\x1f\x7f]{1,255}):)?"
    r"(?P<job>\d{1,18})(?:_(?P<task>\d{1,9})|\+(?P<offset>\d{1,9}))?"
    r"(?::(?P<start>\d{8}T\d{6}Z))?",
    re.ASCII,
)


def format_start(start: int) -> str:
    """A time in the text form of a run, in whole seconds."""
    return datetime.fromtimestamp(start // SECOND, UTC).strftime("%Y%m%dT%H%M%SZ")


def parse_start(text: str) -> int:
    """The time of the text form of a run; ValueError before 1970 and after 2262."""
    moment = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    start = int(moment.timestamp()) * SECOND
    if not 0 <= start < _START_LIMIT:
        raise ValueError(f"{text} is not between 1970 and 2262")
    return start


class Sighting(msgspec.Struct, frozen=True):
    """A job as observed on one node. The node does not know the start that the scheduler recorded;
    the server matches a sighting to a run."""

    cluster: str
    job_id: int
    node: str
    boot_id: str
    birth: int
    sluid: str | None = None
    restart_count: int | None = None


class JobInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The scheduler's data about a run, or those of the launcher of a job without scheduler."""

    cluster: str
    job_id: int
    source: str
    sluid: str | None = None
    restart_count: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    name: str | None = None
    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    command: str | None = None
    nodes: tuple[str, ...] | None = None
    cpus: int | None = None
    memory: int | None = None
    gpus: int | None = None
    #: Allocated resources by Slurm's names ("cpu", "gres/gpu:a100"); "mem" in
    #: bytes.
    tres: dict[str, int] | None = None
    time_limit: int | None = None
    submit: int | None = None
    start: int | None = None
    end: int | None = None
    state: str | None = None
    exit_code: int | None = None
    exit_signal: int | None = None

    @property
    def node_count(self) -> int | None:
        """The number of nodes, which is known longer than their names: while a job completes, Slurm
        lists only those that are not free yet."""
        count = (self.tres or {}).get("node")
        return len(self.nodes) if count is None and self.nodes is not None else count


#: The highest signal of Linux.
_MAX_SIGNAL = 64


def real_signal(number: int | None) -> int | None:
    """The number if it is a signal. Slurm writes 0:125 for a job that ran out of memory."""
    return number if number is not None and 0 < number <= _MAX_SIGNAL else None


#: How :func:`merge_job_info` treats a field that both records know.
MergePolicy: TypeAlias = Literal["fill", "overwrite"]


def merge_job_info(known: JobInfo, other: JobInfo, policy: MergePolicy) -> JobInfo:
    """Merge two records of one run into a new one; a value that is None never replaces another.

    With the policy "fill" the result has the fields of ``known``, completed by ``other`` where
    they are None. With "overwrite" it has the fields of ``other``, completed by ``known``. The
    fields that are never None (cluster, job id and source) therefore come from ``known`` with
    "fill" and from ``other`` with "overwrite".
    """
    first, second = (known, other) if policy == "fill" else (other, known)
    values = {
        name: getattr(second, name)
        for name in JobInfo.__struct_fields__
        if getattr(first, name) is None
    }
    return msgspec.structs.replace(first, **values)


class Coverage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The quality of a group of figures and the share of the job that they represent."""

    quality: Quality
    time_share: float | None = None
    cpu_share: float | None = None
    events_lost: int = 0
    reason: str = ""


class ExecutableUse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Usage of one executable in one run on one node, cumulative within an agent epoch."""

    #: The file's path as the kernel gave it; the command name where ``path_known`` is false.
    path: bytes
    path_known: bool = True
    #: The path is that of a mount namespace other than the node's, such as that of a container.
    own_namespace: bool = False
    executions: int = 0
    processes: int = 0
    cpu_time: int = 0
    cpu_user: int = 0
    cpu_system: int = 0
    #: The part of ``cpu_time`` that is polled or interpolated, not from exit records.
    cpu_estimated: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    peak_memory: int = 0
    failures: int = 0
    first_seen: int = 0
    last_seen: int = 0
    #: GPU time: the active time of the run's GPUs, attributed to the processes that used them. The
    #: coverage "gpu_programs" says how.
    gpu_time: int = 0
    #: The most GPU memory that one process of the executable had, on all GPUs together.
    gpu_memory_peak: int = 0


class GpuFault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Errors of one kind that a GPU reported while a run held it."""

    #: "ecc corrected", "ecc uncorrected", "xid", "retired page", "remapped row".
    kind: str
    count: int
    #: When the last one was noticed.
    last: int
    #: The number of an Xid error, by which NVIDIA documents its cause.
    code: int | None = None


#: Group of figures in the coverage of a :class:`GpuUse` -> the fields that it is about.
GPU_FIGURES: dict[str, tuple[str, ...]] = {
    "activity": ("active_time",),
    "profile": (
        "multiprocessor_time",
        "occupancy_time",
        "tensor_time",
        "fp64_time",
        "fp32_time",
        "fp16_time",
        "bandwidth_time",
    ),
    "memory": ("memory_total", "memory_peak", "memory_time"),
    "energy": ("energy",),
    "pcie": ("pcie_received_bytes", "pcie_sent_bytes"),
    "nvlink": ("nvlink_received_bytes", "nvlink_sent_bytes"),
    "throttling": ("throttled_time",),
    "faults": ("faults",),
}


class GpuUse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One GPU, or one MIG instance of a GPU, as a run held and used it on one node.

    Figures are cumulative since the GPU was assigned to the run, within an agent epoch. Those of
    the groups "activity" and "profile" are shares integrated over time: ten seconds at 40 % are
    four seconds. The mean share is the figure divided by ``held_time``, and by the ``time_share``
    of its coverage if there is one. None means that the figure is not known, and ``coverage`` says
    why.
    """

    #: As in the names of metrics: the index that nvidia-smi shows, "0:1" for a MIG instance.
    key: str
    uuid: str = ""
    #: The model, such as "NVIDIA H200".
    name: str = ""
    #: Of a MIG instance: the key of its GPU.
    parent: str | None = None
    first_seen: int = 0
    last_seen: int = 0
    #: How long the run has held it.
    held_time: int = 0
    #: Whether a process of the run ever used it; None if that cannot be known.
    used: bool | None = None
    #: Other jobs used it at the same time: the figures of this run are estimates.
    shared: bool = False
    #: Time in which any kernel ran, however small: what the vendors call utilization.
    active_time: int | None = None
    #: Share of the multiprocessors that were busy: how much of the GPU was used.
    multiprocessor_time: int | None = None
    #: Share of the warps that the multiprocessors can hold.
    occupancy_time: int | None = None
    tensor_time: int | None = None
    fp64_time: int | None = None
    fp32_time: int | None = None
    fp16_time: int | None = None
    #: Share of the bandwidth of the GPU's memory.
    bandwidth_time: int | None = None
    memory_total: int | None = None
    memory_peak: int | None = None
    #: Bytes in use integrated over time, in byte seconds.
    memory_time: int | None = None
    #: Microjoules.
    energy: int | None = None
    pcie_received_bytes: int | None = None
    pcie_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    nvlink_sent_bytes: int | None = None
    #: Time with reduced clocks by reason: "power", "temperature", "hardware", "sync". None if not
    #: known, empty if it was never reduced.
    throttled_time: dict[str, int] | None = None
    #: None if not known, empty if there was none.
    faults: list[GpuFault] | None = None
    #: By group of :data:`GPU_FIGURES`. A group that is not here and whose figures are not None is
    #: exact. ``time_share`` is the share of ``held_time`` for which the figures are known.
    coverage: dict[str, Coverage] = msgspec.field(default_factory=dict)


class JobTotals(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The job's counters on one node, cumulative since its creation, as of ``time``."""

    time: int
    #: Where the CPU time comes from: "cgroup v1", "cgroup v2", "rusage" or "process tree".
    cpu_source: str
    cpu_time: int | None = None
    cpu_user: int | None = None
    cpu_system: int | None = None
    #: CPU time of slurmstepd and similar processes, which is not the user's.
    cpu_overhead: int | None = None
    #: The kernel's own high-water mark, page cache included.
    memory_peak: int | None = None
    #: The highest value of "used" (current - file + shared memory): of the samples, or the kernel's
    #: peak less page cache if that is higher.
    memory_used_peak: int | None = None
    memory_limit: int | None = None
    swap_peak: int | None = None
    oom_kills: int | None = None
    #: Bytes that went through read(2) and write(2), page cache and pipes included.
    read_characters: int | None = None
    written_characters: int | None = None
    #: Bytes fetched from and sent to storage.
    read_bytes: int | None = None
    written_bytes: int | None = None
    read_calls: int | None = None
    write_calls: int | None = None
    processes: int | None = None
    executions: int | None = None


class StepUse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One step of a job on one node, cumulative; kept at its last reading when it has ended."""

    #: As Slurm names it: "batch", "extern", "interactive", "0", "1" ...
    step: str
    tasks: int = 0
    cpu_time: int | None = None
    #: CPU time of slurmstepd.
    cpu_overhead: int | None = None
    memory_peak: int | None = None
    oom_kills: int | None = None
    first_seen: int = 0
    last_seen: int = 0
    ended: bool = False
    #: The active time of the run's GPUs, attributed to the processes of the step, cumulative within
    #: an agent epoch; None if no process of the run was seen on a GPU.
    gpu_time: int | None = None
    #: The most GPU memory that the processes of the step had at one sample, on all GPUs together.
    gpu_memory_peak: int | None = None


Column: TypeAlias = "array[int] | array[float] | memoryview"


def format_of(column: Column) -> str:
    """The type of the values of a column: ``q`` or ``d``."""
    return column.format if isinstance(column, memoryview) else column.typecode


class Series:
    """Time series of one job on one node: one column of times and one per metric, equally long.

    A column is an ``array`` of type ``q`` or ``d`` or a view of such; the names are those of
    :mod:`jobsight.metrics`. It is not a msgspec Struct, so that :mod:`jobsight.transport.wire`
    controls its encoding.
    """

    __slots__ = ("columns", "times")

    def __init__(self, times: Column, columns: Mapping[str, Column]) -> None:
        self.times = times
        self.columns = columns

    def __len__(self) -> int:
        return len(self.times)


class JobPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The part of a batch about one job on the node that sent it."""

    sighting: Sighting
    #: The agent epoch: cumulative figures of executables restart with it.
    epoch: str
    series: Series | None = None
    totals: JobTotals | None = None
    #: Those that changed, or all: one that is missing keeps its last figures.
    executables: list[ExecutableUse] = msgspec.field(default_factory=list)
    steps: list[StepUse] = msgspec.field(default_factory=list)
    gpus: list[GpuUse] = msgspec.field(default_factory=list)
    #: By group of figures: "cpu", "memory", "io", "executables"; with GPUs also "gpu" (which GPUs
    #: are the run's) and "gpu_programs" (GPU time by executable and by step).
    coverage: dict[str, Coverage] = msgspec.field(default_factory=dict)
    #: The job has ended on this node; no other part follows.
    final: bool = False


class Batch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an agent sends in one request, identified by cluster, node, spool and sequence."""

    cluster: str
    node: str
    spool: str
    sequence: int
    #: The agent's clocks when the batch was written, by which skew and steps are found.
    written: int
    monotonic: int
    agent: str
    jobs: list[JobInfo] = msgspec.field(default_factory=list)
    parts: list[JobPart] = msgspec.field(default_factory=list)
    #: Time series of the node as a whole, whatever runs on it; the names are those of
    #: :data:`jobsight.metrics.NODE_METRICS`.
    node_series: Series | None = None
