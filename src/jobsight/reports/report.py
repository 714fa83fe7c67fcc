"""The report of one run: what was asked for, what was used, how sure each figure is.

Every place that shows a run (terminal, page, API) takes its words and figures from here.

How sure the figures of a run are: the nodes' coverage joined, and said in sentences.

The state of a run in words.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from jobsight.model import Coverage, JobInfo
from jobsight.reports.units import format_count, format_share


class CpuUse(msgspec.Struct, kw_only=True):
    asked: int | None
    time: int | None
    user: int | None
    system: int | None
    #: The share of slurmstepd and its like; it is not in ``time``.
    overhead: int | None
    #: CPU time over elapsed time: how many CPUs were busy on average.
    cores_mean: float | None
    #: CPU time over what the CPUs asked for could have given.
    share: float | None
    source: str | None
    #: One sentence about the overhead, for people.
    overhead_text: str = ""


class MemoryUse(msgspec.Struct, kw_only=True):
    asked: int | None
    used_peak: int | None
    kernel_peak: int | None
    swap_peak: int | None
    oom_kills: int | None
    share: float | None


class TimeUse(msgspec.Struct, kw_only=True):
    asked: int | None
    elapsed: int | None
    share: float | None


class IoUse(msgspec.Struct, kw_only=True):
    read_characters: int | None
    written_characters: int | None
    read_bytes: int | None
    written_bytes: int | None
    read_calls: int | None
    write_calls: int | None


class ExecutableRow(msgspec.Struct, kw_only=True):
    #: "remainder" is the CPU time of the counter that no exit record or poll accounts for.
    kind: Literal["executable", "path unknown", "remainder"]
    #: Bytes that are not printable UTF-8 stand as \xNN.
    path: str
    executions: int | None
    processes: int | None
    cpu_time: int
    cpu_user: int | None
    cpu_system: int | None
    cpu_estimated: int
    #: Of the job's CPU time.
    cpu_share: float | None
    read_bytes: int | None
    written_bytes: int | None
    peak_memory: int | None
    failures: int | None


class NodeRow(msgspec.Struct, kw_only=True):
    node: str
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    read_characters: int | None
    written_characters: int | None
    #: The node's agent has said that nothing follows.
    final: bool
    #: How far the node's clock goes before the server's.
    clock_skew: int | None = None


class StepRow(msgspec.Struct, kw_only=True):
    """One step, summed over its nodes."""

    #: As Slurm names it: "batch", "0", "1", "extern"; a job without steps may be one without name.
    step: str
    nodes: int
    tasks: int | None
    cpu_time: int | None
    cpu_overhead: int | None
    #: The kernel's own high-water marks, page cache included.
    memory_peak: int | None
    oom_kills: int | None
    #: From when the first node saw it to when the last one did.
    elapsed: int | None
    #: On all its nodes.
    ended: bool


class JobReport(msgspec.Struct, kw_only=True):
    run: str
    cluster: str
    job_id: int
    #: As people write it: 12, 62_3 or 88+1.
    display_id: str
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    command: str | None
    state: str
    exit_code: int | None
    exit_signal: int | None
    submit: int | None
    start: int | None
    end: int | None
    source: str
    nodes: list[str]
    cpu: CpuUse
    memory: MemoryUse
    time: TimeUse
    io: IoUse
    #: By CPU time, the largest first; the remainder last.
    executables: list[ExecutableRow]
    node_rows: list[NodeRow]
    #: By group of figures: "cpu", "memory", "io", "executables".
    coverage: dict[str, RunCoverage]
    #: One sentence per group, for people.
    coverage_notes: list[str]
    #: The state in words, with the exit code or the signal.
    state_text: str = ""
    running: bool = False
    #: The moment up to which the counters tell.
    as_of: int | None = None
    #: The script first, then by number; "extern" last.
    steps: list[StepRow] = msgspec.field(default_factory=list)


class RunState(NamedTuple):
    """The state of a run and the durations that depend on it."""

    state: str
    running: bool
    start: int
    elapsed: int | None
    #: The time that the counters cover: up to now they are only as recent as the last batch.
    counted: int | None


def decide_state(
    info: JobInfo, start: int, *, ended_on_nodes: bool, as_of: int | None, now: int
) -> RunState:
    """Decide the state of a run for lists, pages, reports and the API.

    The scheduler's record takes precedence. Without one, the run is running until the agents of
    all its nodes have reported the end (``ended_on_nodes``); how it ended is then unknown.
    ``start`` is used if the record has none, ``as_of`` is the time of the newest totals.
    """
    if info.state:
        state = info.state
        running = info.end is None and state.upper() in ACTIVE
    else:
        running = info.end is None and not ended_on_nodes
        state = "RUNNING" if running else "UNKNOWN"
    start = start if info.start is None else info.start
    end = info.end if info.end is not None else now if running else as_of
    elapsed = None if end is None else max(end - start, 0)
    counted = max(as_of - start, 0) if running and as_of is not None else elapsed
    return RunState(state, running, start, elapsed, counted)


#: The groups of figures in the order in which people read them, and what a sentence calls them.
GROUPS = {
    "cpu": "CPU time",
    "memory": "Memory",
    "io": "I/O",
    "executables": "Split by executable",
}

_WORST_FIRST = ("failed", "missing", "estimate", "exact")

_SOURCES = {
    "cgroup v1": "from the cgroup's counter (cgroup v1)",
    "cgroup v2": "from the cgroup's counter (cgroup v2)",
    "rusage": "from the kernel's count for the waited-for processes (rusage)",
    "process tree": "from the process tree",
}


class RunCoverage(Coverage, kw_only=True, omit_defaults=False):
    """The coverage of a run. Nodes leave out what says nothing; who reads a report may count on
    every field."""


def merge_coverage(parts: Sequence[tuple[Coverage, int]]) -> RunCoverage:
    """Join what several nodes say of one group; the weight is a node's CPU time.

    A group that failed on some nodes and not on others is an estimate: what is shown stands for
    the others only.
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
    """Join the coverage of all nodes, group by group; groups of later releases are kept."""
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
    """Say where the CPU time comes from."""
    if coverage.quality == "exact":
        return _sentence(GROUPS["cpu"], "exact", _SOURCES.get(source or "", source or ""))
    return group_note("cpu", coverage)


def executables_note(
    coverage: Coverage, executions: int, estimated_share: float | None, cpu_time: int | None
) -> str:
    """Say how much of the CPU time the rows of the executables account for, and by what means."""
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
        text = f"{GROUPS['executables']}: estimate, {of_the_time} seen"
        if coverage.events_lost:
            text += f"; {format_count(coverage.events_lost)} events lost"
    return _close(f"{text}; {coverage.reason}" if coverage.reason else text)


def group_note(group: str, coverage: Coverage) -> str:
    """Say in one plain sentence how sure the figures of a group are."""
    quality: str = "not measured" if coverage.quality == "missing" else coverage.quality
    if coverage.quality == "estimate" and coverage.time_share is not None:
        quality += f" that stands for {format_share(coverage.time_share)} of the time"
    if coverage.events_lost:
        quality += f", {format_count(coverage.events_lost)} readings lost"
    return _sentence(GROUPS.get(group, group.capitalize()), quality, coverage.reason)


def _sentence(title: str, quality: str, reason: str) -> str:
    return _close(f"{title}: {quality}, {reason}" if reason else f"{title}: {quality}")


def _close(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


_WORDS = {
    "BOOT_FAIL": "failed: a node did not boot",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "COMPLETING": "completing",
    "CONFIGURING": "being set up",
    "DEADLINE": "ended at its deadline",
    "FAILED": "failed",
    "NODE_FAIL": "failed: a node went down",
    "OUT_OF_MEMORY": "ended: out of memory",
    "PENDING": "waiting",
    "PREEMPTED": "preempted",
    "REQUEUED": "put back into the queue",
    "RUNNING": "running",
    "SUSPENDED": "suspended",
    "TIMEOUT": "ended: time limit reached",
    "UNKNOWN": "state not known",
}

#: What a state means for its reader, and so its colour; any other is "idle".
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

#: States in which a job still holds its resources.
ACTIVE = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"})


def describe_state(state: str, exit_code: int | None, exit_signal: int | None) -> str:
    """Say how a run stands or ended: "failed with exit code 7"."""
    words = _WORDS.get(state.upper(), state.lower().replace("_", " "))
    if state.upper() in ACTIVE or state.upper() == "PENDING":
        return words
    if exit_signal:
        return f"{words}, killed by signal {signal_name(exit_signal)}"
    if exit_code:
        joint = " with" if state.upper() == "FAILED" else ","
        return f"{words}{joint} exit code {exit_code}"
    return words


def tone_of(state: str) -> str:
    """Say whether a state is "good", "busy", "warn", "bad" or "idle"."""
    return _TONES.get(state.upper(), "idle")


def signal_name(number: int) -> str:
    """Name a signal: "9 (SIGKILL)"."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
