"""The report of one run: what was requested, what was used, and the coverage of each figure.

:class:`JobReport` is the object that terminal, page and API show. The functions below merge the
coverage of the nodes and write state and coverage as sentences.

Durations are nanoseconds here and seconds in the encoded form; see :mod:`jobsight.util.outer`.
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import field

from jobsight.findings.finding import Cost
from jobsight.findings.reported import (
    Amount,
    FittedRequest,
    ReportedFinding,
    WorkEffect,
    format_cost,
)
from jobsight.model import Coverage, real_signal
from jobsight.store.properties import Link
from jobsight.store.read.state import ACTIVE
from jobsight.util.outer import Duration, Time
from jobsight.util.units import format_count, format_share


class CpuUse(msgspec.Struct, kw_only=True):
    requested_cpus: int | None
    time: Duration | None = field(name="cpu_seconds")
    user: Duration | None = field(name="user_seconds")
    system: Duration | None = field(name="system_seconds")
    #: CPU time of slurmstepd, which is not included in ``time``.
    overhead: Duration | None = field(name="overhead_seconds")
    #: CPU time divided by elapsed time.
    mean_cores: float | None
    #: CPU time divided by the CPU time that the requested CPUs could have provided.
    share: float | None
    source: str | None
    #: A sentence about the overhead.
    overhead_text: str = ""


class MemoryUse(msgspec.Struct, kw_only=True):
    requested_bytes: int | None
    used_peak_bytes: int | None
    kernel_peak_bytes: int | None
    swap_peak_bytes: int | None
    oom_kills: int | None
    share: float | None


class TimeUse(msgspec.Struct, kw_only=True):
    requested: Duration | None = field(name="requested_seconds")
    elapsed: Duration | None = field(name="elapsed_seconds")
    share: float | None


class IoUse(msgspec.Struct, kw_only=True):
    #: Bytes passed through read(2) and write(2), from any source.
    syscall_read_bytes: int | None
    syscall_written_bytes: int | None
    #: Bytes fetched from and sent to storage devices.
    storage_read_bytes: int | None
    storage_written_bytes: int | None
    read_calls: int | None
    write_calls: int | None


class ExecutableRow(msgspec.Struct, kw_only=True):
    #: "others" is the sum of the executables beyond the largest, "remainder" the CPU time of the
    #: counter that no exit record or poll accounts for.
    kind: Literal["executable", "path unknown", "others", "remainder"]
    #: Bytes that are not printable UTF-8 are written as \xNN.
    path: str
    #: The path is that of a mount namespace other than the node's, such as that of a container.
    own_namespace: bool
    executions: int | None
    processes: int | None
    cpu_time: Duration = field(name="cpu_seconds")
    cpu_user: Duration | None = field(name="cpu_user_seconds")
    cpu_system: Duration | None = field(name="cpu_system_seconds")
    cpu_estimated: Duration = field(name="cpu_estimated_seconds")
    #: The share of the job's CPU time.
    cpu_share: float | None
    storage_read_bytes: int | None
    storage_written_bytes: int | None
    #: The peak of the largest single process.
    peak_memory_bytes: int | None
    failures: int | None
    #: The active time of the run's GPUs, attributed to the processes of the executable.
    gpu_time: Duration | None = field(default=None, name="gpu_seconds")
    #: The share of the GPU time of all executables.
    gpu_share: float | None = None
    gpu_memory_peak_bytes: int | None = None
    #: How many executables the row is of.
    executables: int = 1


#: What a share of use stands for: busy multiprocessors, or the time in which any kernel ran.
GpuMeasure: TypeAlias = Literal["multiprocessors", "utilization", "mixed"]


class GpuFaultRow(msgspec.Struct, kw_only=True):
    """Errors of one kind that a GPU reported while the run held it."""

    kind: str
    #: The number of an Xid error.
    code: int | None
    count: int
    last: Time


class GpuRow(msgspec.Struct, kw_only=True):
    """One GPU, or one MIG instance, of a run. Shares are means over the time it was held."""

    node: str
    #: The index that nvidia-smi shows; 0:1 is a MIG instance.
    gpu: str
    model: str
    uuid: str
    #: Of a MIG instance: its GPU.
    parent: str | None
    held: Duration = field(name="held_seconds")
    #: Whether a process of the run ever used it; null if that is not known.
    used: bool | None
    #: Other jobs used it at the same time: the figures of this run are estimates.
    shared: bool
    #: How much of it was used, by the measure.
    used_share: float | None
    measure: GpuMeasure | None
    #: The time in which any kernel ran, however small.
    utilization_share: float | None
    #: Multiprocessors that were busy.
    multiprocessor_share: float | None
    #: Warps, of those that the multiprocessors can hold.
    occupancy_share: float | None
    tensor_share: float | None
    fp64_share: float | None
    fp32_share: float | None
    fp16_share: float | None
    #: Bandwidth of the GPU's memory.
    bandwidth_share: float | None
    memory_mean_bytes: int | None
    memory_peak_bytes: int | None
    memory_total_bytes: int | None
    energy_joules: float | None
    pcie_received_bytes: int | None
    pcie_sent_bytes: int | None
    nvlink_received_bytes: int | None
    nvlink_sent_bytes: int | None
    #: With reduced clocks, by reason; null if not known.
    throttled_seconds: dict[str, float] | None
    #: Null if not known.
    faults: list[GpuFaultRow] | None
    #: By group of figures: "activity", "profile", "memory", "energy", "pcie", "nvlink",
    #: "throttling", "faults".
    coverage: dict[str, RunCoverage]


class GpuTotals(msgspec.Struct, kw_only=True):
    """The GPUs of a run together."""

    requested_gpus: int | None
    #: GPUs that the nodes reported; those known to be used, and those never used.
    count: int
    used_count: int
    unused_count: int
    shared_count: int
    #: Summed over the GPUs: held, the part of it for which the use is known, and used.
    held: Duration | None = field(name="held_seconds")
    measured: Duration | None = field(name="measured_seconds")
    used: Duration | None = field(name="used_seconds")
    #: Used of measured time, by the measure.
    used_share: float | None
    measure: GpuMeasure | None
    utilization_share: float | None
    #: The mean of one GPU, and the highest of any GPU with the memory of that one.
    memory_mean_bytes: int | None
    memory_peak_bytes: int | None
    memory_total_bytes: int | None
    energy_joules: float | None
    #: Whether the GPUs are known to be those of the run; null if no node said so.
    coverage: RunCoverage | None
    #: What was held and used as a sentence, and what the figures mean.
    text: str = ""
    notes: list[str] = field(default_factory=list)


class NodeRow(msgspec.Struct, kw_only=True):
    node: str
    cpu_time: Duration | None = field(name="cpu_seconds")
    memory_used_peak_bytes: int | None
    memory_kernel_peak_bytes: int | None
    syscall_read_bytes: int | None
    syscall_written_bytes: int | None
    #: The node's agent has reported the end of the job.
    final: bool
    #: Positive if the node's clock is ahead of the server's.
    clock_skew: Duration | None = field(default=None, name="clock_skew_seconds")


class StepRow(msgspec.Struct, kw_only=True):
    """One step, summed over its nodes."""

    #: Slurm's name: "batch", "0", "1", "extern"; empty for a job without steps.
    step: str
    nodes: int
    tasks: int | None
    cpu_time: Duration | None = field(name="cpu_seconds")
    cpu_overhead: Duration | None = field(name="overhead_seconds")
    #: The kernel's peak, including page cache.
    memory_kernel_peak_bytes: int | None
    oom_kills: int | None
    #: From the first to the last time that any node saw the step.
    elapsed: Duration | None = field(name="elapsed_seconds")
    #: The step has ended on all its nodes.
    ended: bool
    #: The active time of the run's GPUs, attributed to the processes of the step: an estimate. None
    #: if no process of the run was seen on a GPU.
    gpu_time: Duration | None = field(default=None, name="gpu_seconds")
    #: The most GPU memory of its processes at one sample, summed over the nodes.
    gpu_memory_peak_bytes: int | None = None
    #: When any node saw it first.
    first_seen: Time | None = None


class SchedulerStep(msgspec.Struct, kw_only=True):
    """A step as the scheduler's accounting recorded it."""

    step: str
    name: str | None
    state: str | None
    tasks: int | None
    cpu_time: Duration | None = field(name="cpu_seconds")
    #: The highest resident memory of any task (MaxRSS).
    memory_peak_bytes: int | None
    elapsed: Duration | None = field(name="elapsed_seconds")


class SchedulerFacts(msgspec.Struct, kw_only=True):
    """What the scheduler recorded of a job, in addition to what nodes measured."""

    #: Why the job waits, or why it ended.
    reason: str | None
    submit_line: str | None
    working_directory: str | None
    #: Of a pending job: the start that the scheduler expects.
    expected_start: Time | None
    cpu_time: Duration | None = field(name="cpu_seconds")
    cpu_user: Duration | None = field(name="user_seconds")
    cpu_system: Duration | None = field(name="system_seconds")
    #: The highest resident memory of any task of any step (MaxRSS).
    memory_peak_bytes: int | None
    steps: list[SchedulerStep]


class SoftwareRow(msgspec.Struct, kw_only=True):
    """What the programs of one software used in a run; without a name: what no rule names."""

    software: str | None
    version: str | None
    user_provided: bool | None
    executions: int
    cpu_time: Duration = field(name="cpu_seconds")
    #: The share of the job's CPU time.
    cpu_share: float | None
    gpu_time: Duration = field(name="gpu_seconds")

    @property
    def title(self) -> str:
        """ "GROMACS 2024.1"; "undetermined" without a name."""
        return " ".join(filter(None, (self.software, self.version))) or "undetermined"


class JobReport(msgspec.Struct, kw_only=True):
    run: str
    cluster: str
    job_id: int
    #: 12, 62_3 or 88+1.
    display_id: str
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    command: str | None
    state: str
    exit_code: int | None
    exit_signal: int | None
    submit: Time | None
    start: Time | None
    end: Time | None
    source: str
    nodes: list[str]
    cpu: CpuUse
    memory: MemoryUse
    time: TimeUse
    io: IoUse
    #: By CPU time, the largest first; then the others, and the remainder last.
    executables: list[ExecutableRow]
    node_rows: list[NodeRow]
    #: By group of figures: "cpu", "memory", "io", "executables".
    coverage: dict[str, RunCoverage]
    #: One sentence per group.
    coverage_notes: list[str]
    #: The state as a sentence, with the exit code or the signal.
    state_text: str = ""
    running: bool = False
    #: When the counters were last read.
    as_of: Time | None = None
    #: The batch script first, then by number; "extern" last.
    steps: list[StepRow] = field(default_factory=list)
    #: None if no scheduler has reported the job.
    scheduler: SchedulerFacts | None = None
    #: What went wrong, what it cost and what to change; the worst first, those that somebody has
    #: replied to last.
    findings: list[ReportedFinding] = field(default_factory=list)
    #: None for a run without GPUs.
    gpu: GpuTotals | None = None
    #: By node and index.
    gpus: list[GpuRow] = field(default_factory=list)
    #: The short ones of the properties that the user added to the job, and those that are links.
    properties: dict[str, str] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    #: The chain of jobs that depend on each other, by the id of one of them.
    chain_job_id: int | None = None
    #: Samples of the time series that the store holds; null if it holds none.
    samples: int | None = None
    #: What the run held, whether it was used or not, and the same in the units of the price list.
    cost: Cost = Cost()
    prices: list[Amount] = field(default_factory=list)
    #: By CPU time, without software that the rules ignore; empty if no rule names any program.
    software: list[SoftwareRow] = field(default_factory=list)
    #: What would have fitted the runs of the same work; of an ended run that was judged.
    fitted: list[FittedRequest] = field(default_factory=list)
    #: Findings that were shown of earlier runs of the same work, and that this one does not have.
    improvements: list[WorkEffect] = field(default_factory=list)

    @property
    def cost_text(self) -> str:
        """ "1,240 core h, 38 GPU h (412 EUR)"; empty if nothing is known."""
        return format_cost(self.cost, self.prices)

    @property
    def pending(self) -> bool:
        """The job waits: there is no run, and nothing was measured."""
        return self.start is None and self.state == "PENDING"


#: The groups of figures in display order, and their names in sentences.
GROUPS = {
    "cpu": "CPU time",
    "memory": "Memory",
    "io": "I/O",
    "executables": "Split by executable",
}

#: Further groups that only runs with GPUs have.
GPU_GROUPS = {"gpu": "GPUs of the job", "gpu_programs": "GPU time by executable and step"}

_WORST_FIRST = ("failed", "missing", "estimate", "exact")

_SOURCES = {
    "cgroup v1": "from the cgroup's counter (cgroup v1)",
    "cgroup v2": "from the cgroup's counter (cgroup v2)",
    "rusage": "from the kernel's count for the waited-for processes (rusage)",
    "process tree": "from the process tree",
}


class RunCoverage(Coverage, kw_only=True, omit_defaults=False):
    """The coverage of a run. Unlike the nodes' messages, a report contains every field."""


def merge_coverage(parts: Sequence[tuple[Coverage, int]]) -> RunCoverage:
    """Merge the coverage of one group on several nodes, weighted by their CPU time.

    A group that failed on some nodes only is an estimate: the figures represent the other nodes.
    """
    qualities = {coverage.quality for coverage, _ in parts}
    if len(qualities) == 1:
        (quality,) = qualities
    elif qualities & {"exact", "estimate"}:
        quality = "estimate"
    else:
        quality = min(qualities, key=_WORST_FIRST.index)
    reasons = dict.fromkeys(coverage.reason for coverage, _ in parts if coverage.reason)
    return RunCoverage(
        quality=quality,
        time_share=_mean((coverage.time_share, 1) for coverage, _ in parts),
        cpu_share=_mean((coverage.cpu_share, max(weight, 1)) for coverage, weight in parts),
        events_lost=sum(coverage.events_lost for coverage, _ in parts),
        reason="; ".join(reasons),
    )


def _mean(values: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def merge_nodes(nodes: Iterable[tuple[Mapping[str, Coverage], int]]) -> dict[str, RunCoverage]:
    """Merge the coverage of all nodes by group; unknown groups of later releases are kept."""
    gathered: dict[str, list[tuple[Coverage, int]]] = {group: [] for group in GROUPS}
    count = 0
    for coverage, weight in nodes:
        count += 1
        for group, part in coverage.items():
            gathered.setdefault(group, []).append((part, weight))
    return {group: _with_silent(parts, count) for group, parts in gathered.items()}


def _with_silent(parts: list[tuple[Coverage, int]], count: int) -> RunCoverage:
    silent = count - len(parts)
    if parts and not silent:
        return merge_coverage(parts)
    reason = f"{silent} of {count} nodes reported nothing" if parts else "nothing was reported"
    return merge_coverage([*parts, (Coverage(quality="missing", reason=reason), 0)])


def cpu_note(coverage: Coverage, source: str | None) -> str:
    """A sentence about the source of the CPU time."""
    if coverage.quality == "exact":
        return _sentence(GROUPS["cpu"], "exact", _SOURCES.get(source or "", source or ""))
    return group_note("cpu", coverage)


def executables_note(
    coverage: Coverage, executions: int, estimated_share: float | None, cpu_time: int | None
) -> str:
    """A sentence about the share of the CPU time that is attributed to executables, and how."""
    if coverage.quality in ("failed", "missing"):
        return group_note("executables", coverage)
    of_the_time = (
        f"{format_share(coverage.cpu_share)} of the CPU time"
        if coverage.cpu_share is not None and cpu_time
        else "the CPU time of the processes seen"
    )
    if coverage.quality == "exact":
        estimated = (
            f" ({format_share(estimated_share)} of it divided between programs by estimate)"
            if estimated_share is not None and estimated_share >= 0.001
            else ""
        )
        text = (
            f"Executables: exit records account for {of_the_time}{estimated}; "
            f"{format_count(executions)} execution{'' if executions == 1 else 's'} counted; "
            f"{format_count(coverage.events_lost)} events lost"
        )
    else:
        covering = (
            f" covering {format_share(coverage.time_share)} of the time"
            if coverage.time_share is not None
            else ""
        )
        text = f"{GROUPS['executables']}: estimate{covering}, {of_the_time} seen"
        if coverage.events_lost:
            text += f"; {format_count(coverage.events_lost)} events lost"
    return _close(f"{text}; {coverage.reason}" if coverage.reason else text)


def own_namespace_note(executables: int) -> list[str]:
    """A sentence about paths that were not seen in the node's own mount namespace."""
    if not executables:
        return []
    are = "executable has a path" if executables == 1 else "executables have paths"
    return [
        f"Paths: {format_count(executables)} {are} as seen in the mount namespace of the process, "
        "such as that of a container; the same path on the node may be another file."
    ]


def group_note(group: str, coverage: Coverage) -> str:
    """A sentence about the coverage of a group."""
    quality = quality_text(coverage.quality)
    if coverage.quality == "estimate" and coverage.time_share is not None:
        quality += f" covering {format_share(coverage.time_share)} of the time"
    if coverage.events_lost:
        quality += f", {format_count(coverage.events_lost)} readings lost"
    return _sentence(group_title(group), quality, coverage.reason)


def group_title(group: str) -> str:
    """The name of a group of figures."""
    return (GROUPS | GPU_GROUPS).get(group, group.capitalize())


def quality_text(quality: str) -> str:
    """A quality as people read it; "failed" alone would read as a failed job."""
    return {"missing": "not measured", "failed": "not readable"}.get(quality, quality)


def _sentence(title: str, quality: str, reason: str) -> str:
    return _close(f"{title}: {quality}, {reason}" if reason else f"{title}: {quality}")


def _close(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


_STATE_TEXTS = {
    "BOOT_FAIL": "failed: a node did not boot",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "completing",
    "CONFIGURING": "configuring",
    "DEADLINE": "ended at its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "failed: a node went down",
    "OUT_OF_MEMORY": "ended: out of memory",
    "PENDING": "pending",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "TIMEOUT": "ended: time limit reached",
    "UNKNOWN": "state unknown",
}

#: The colour of a state; any other is "idle".
_TONES = {
    "COMPLETED": "good",
    "RUNNING": "busy",
    "COMPLETING": "busy",
    "CONFIGURING": "busy",
    "FAILED": "bad",
    "OUT_OF_MEMORY": "bad",
    "NODE_FAIL": "bad",
    "BOOT_FAIL": "bad",
    "TIMEOUT": "warn",
    "DEADLINE": "warn",
    "PREEMPTED": "warn",
    "CANCELLED": "warn",
}

#: The states that a list can be filtered by: those of Slurm, and UNKNOWN.
STATES = tuple(sorted({
    *_STATE_TEXTS, "EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE", "RECONFIG_FAIL", "REQUEUE_FED",
    "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "REVOKED", "SIGNALING", "SPECIAL_EXIT",
    "STAGE_OUT", "STOPPED", "UPDATE_DB",
}))  # fmt: skip


def parse_state(text: str) -> str:
    """The state that a user names, in any case; an unknown one raises :class:`ValueError`."""
    state = text.strip().upper()
    if state not in STATES:
        near = difflib.get_close_matches(state, STATES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ";"
        raise ValueError(f"there is no state {text[:80]!r}{hint} expected: {', '.join(STATES)}")
    return state


def describe_state(state: str, exit_code: int | None, exit_signal: int | None) -> str:
    """The state as text: "failed with exit code 7"."""
    text = _STATE_TEXTS.get(state.upper(), state.lower().replace("_", " "))
    if state.upper() in ACTIVE or state.upper() == "PENDING":
        return text
    number = real_signal(exit_signal)
    if number is not None:
        return f"{text}, killed by signal {signal_name(number)}"
    if exit_code:
        joint = " with" if state.upper() == "FAILED" else ","
        return f"{text}{joint} exit code {exit_code}"
    return text


def tone_of(state: str) -> str:
    """The colour class of a state: "good", "busy", "warn", "bad" or "idle"."""
    return _TONES.get(state.upper(), "idle")


def signal_name(number: int) -> str:
    """Name a signal: "9 (SIGKILL)"."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
