"""Builds the report of a run from what the store holds.

The rows of the executables of a run: joined over the nodes, the largest first.

The rows of the steps of a run: each summed over its nodes, in the order people expect.

One run as a row of a list, from the store's figures alone: no row costs a query of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jobsight.model import SECOND, Coverage, ExecutableUse, JobInfo, JobTotals
from jobsight.reports.report import (
    CpuUse,
    ExecutableRow,
    IoUse,
    JobReport,
    MemoryUse,
    NodeRow,
    StepRow,
    TimeUse,
    cpu_note,
    decide_state,
    describe_state,
    executables_note,
    group_note,
    merge_nodes,
)
from jobsight.reports.units import format_duration, format_share
from jobsight.text import readable_path

if TYPE_CHECKING:
    from jobsight.model import StepUse
    from jobsight.store.read.queries import (
        NodesSummary,
        StoredExecutable,
        StoredNode,
        StoredRun,
        StoredStep,
    )
    from jobsight.store.store import Store


#: A running job of which nothing was heard for so long gets a sentence about it.
_SILENCE = 5 * 60 * SECOND
#: Executables may sum to more than the counter by the length of a tick; more is worth a word.
_NOISE = 0.01
_SKEW = 2 * SECOND


def build_report(
    store: Store, stored: StoredRun, *, clock: Callable[[], int] = time.time_ns
) -> JobReport:
    """Gather all that is known of one run into the object that every place shows."""
    # Imported here: a report that comes from a server is shown without loading SQLAlchemy.
    from jobsight.store.read.queries import summarize_nodes

    info, nodes = stored.info, store.nodes(stored.id)
    totals = [node.totals for node in nodes if node.totals is not None]
    on_nodes = summarize_nodes([(node.final, node.totals) for node in nodes])
    as_of, now = on_nodes.counted, clock()
    state, running, start, elapsed, counted = decide_state(
        info, stored.run.start, ended_on_nodes=on_nodes.ended, as_of=as_of, now=now
    )
    cpu = _cpu(info, totals, counted)
    rows = executable_rows(store.executables(stored.id))
    named = sum(row.cpu_time for row in rows)
    whole = max(cpu.time or 0, named)
    for row in rows:
        row.cpu_share = row.cpu_time / whole if whole else None
    executions = sum(row.executions or 0 for row in rows)
    estimated = sum(row.cpu_estimated for row in rows) / named if named else None
    if cpu.time is not None and cpu.time > named:
        rows.append(remainder_row(cpu.time - named, whole))
    coverage = merge_nodes(
        (node.coverage, (node.totals.cpu_time or 0) if node.totals else 0) for node in nodes
    )
    _weigh_executables(coverage["executables"], cpu.time, named)
    missing = _silent_nodes(info, nodes, coverage)
    notes = [
        cpu_note(coverage["cpu"], cpu.source),
        *(group_note(group, part) for group, part in coverage.items() if group in _PLAIN),
        executables_note(coverage["executables"], executions, estimated, cpu.time),
        *(group_note(group, part) for group, part in coverage.items() if group not in _KNOWN),
        *_doubts(cpu.time, named, missing, nodes),
    ]
    if running and as_of is not None and now - as_of > _SILENCE:
        notes.append(f"Nothing was heard of the job for {format_duration(now - as_of)}.")
    return JobReport(
        run=str(stored.run),
        cluster=info.cluster,
        job_id=info.job_id,
        display_id=display_id(info),
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        command=info.command,
        state=state,
        exit_code=info.exit_code,
        exit_signal=info.exit_signal,
        submit=info.submit,
        start=start,
        end=info.end,
        source=info.source,
        nodes=list(dict.fromkeys([*(info.nodes or ()), *(node.node for node in nodes)])),
        cpu=cpu,
        memory=_memory(requested_memory(info, on_nodes), totals),
        time=TimeUse(
            asked=info.time_limit, elapsed=elapsed, share=_share(elapsed, info.time_limit)
        ),
        io=_io(totals),
        executables=rows,
        node_rows=[_node_row(node) for node in nodes],
        coverage=coverage,
        coverage_notes=notes,
        state_text=describe_state(state, info.exit_code, info.exit_signal),
        running=running,
        as_of=as_of,
        steps=step_rows(store.steps(stored.id)),
    )


_PLAIN = ("memory", "io")
_KNOWN = ("cpu", *_PLAIN, "executables")


def display_id(info: JobInfo) -> str:
    """Write a job's id as people do: 12, 62_3 or 88+1."""
    if info.array_task_id is not None:
        return f"{info.array_job_id or info.job_id}_{info.array_task_id}"
    if info.het_offset is not None:
        return f"{info.het_job_id or info.job_id}+{info.het_offset}"
    return str(info.job_id)


_Number = TypeVar("_Number", int, float)


def _share(part: _Number | None, whole: _Number | None) -> float | None:
    return part / whole if part is not None and whole else None


def _cpu(info: JobInfo, totals: list[JobTotals], elapsed: int | None) -> CpuUse:
    cpu_time = total(part.cpu_time for part in totals)
    cores = _share(cpu_time, elapsed)
    sources = dict.fromkeys(part.cpu_source for part in totals)
    overhead = total(part.cpu_overhead for part in totals)
    return CpuUse(
        asked=info.cpus,
        time=cpu_time,
        user=total(part.cpu_user for part in totals),
        system=total(part.cpu_system for part in totals),
        overhead=overhead,
        cores_mean=cores,
        share=cores / info.cpus if cores is not None and info.cpus else None,
        source=", ".join(sources) or None,
        overhead_text=_overhead_text(overhead) if overhead else "",
    )


def _overhead_text(overhead: int) -> str:
    spent = format_duration(overhead)
    return f"{spent} of slurmstepd, Slurm's process in each step, counted apart."


def requested_memory(info: JobInfo, on_nodes: NodesSummary) -> int | None:
    """The requested memory; if the scheduler gives none, the limits of the cgroups."""
    return info.memory or on_nodes.memory_limit


def _memory(asked: int | None, totals: list[JobTotals]) -> MemoryUse:
    used, kernel = (
        total(part.memory_used_peak for part in totals),
        total(part.memory_peak for part in totals),
    )
    return MemoryUse(
        asked=asked,
        used_peak=used,
        kernel_peak=kernel,
        swap_peak=total(part.swap_peak for part in totals),
        oom_kills=total(part.oom_kills for part in totals),
        share=_share(used if used is not None else kernel, asked),
    )


def _io(totals: list[JobTotals]) -> IoUse:
    return IoUse(
        read_characters=total(part.read_characters for part in totals),
        written_characters=total(part.written_characters for part in totals),
        read_bytes=total(part.read_bytes for part in totals),
        written_bytes=total(part.written_bytes for part in totals),
        read_calls=total(part.read_calls for part in totals),
        write_calls=total(part.write_calls for part in totals),
    )


def _node_row(node: StoredNode) -> NodeRow:
    totals = node.totals
    return NodeRow(
        node=node.node,
        cpu_time=totals.cpu_time if totals else None,
        memory_used_peak=totals.memory_used_peak if totals else None,
        memory_peak=totals.memory_peak if totals else None,
        read_characters=totals.read_characters if totals else None,
        written_characters=totals.written_characters if totals else None,
        final=node.final,
        clock_skew=node.clock_skew,
    )


def _weigh_executables(coverage: Coverage, cpu_time: int | None, named: int) -> None:
    # The agents' own shares are of the moment of their last batch; the totals here are the last.
    if cpu_time and coverage.quality in ("exact", "estimate"):
        coverage.cpu_share = min(named / cpu_time, 1.0)


def _silent_nodes(
    info: JobInfo, nodes: list[StoredNode], coverage: Mapping[str, Coverage]
) -> list[str]:
    """Nodes that the scheduler names and that never reported; their figures are not in the sums."""
    heard = {node.node for node in nodes}
    silent = [name for name in info.nodes or () if name not in heard]
    if silent and nodes:
        for part in coverage.values():
            if part.quality == "exact":
                part.quality = "estimate"
                part.reason = f"{len(silent)} of {len(silent) + len(heard)} nodes sent nothing"
    return silent


def _doubts(
    cpu_time: int | None, named: int, silent: list[str], nodes: list[StoredNode]
) -> list[str]:
    notes = []
    if cpu_time and named > cpu_time * (1 + _NOISE):
        notes.append(
            f"The executables sum to {format_share(named / cpu_time - 1)} more than the CPU time "
            "of the counter; their shares are taken of the larger sum."
        )
    if silent:
        shown = ", ".join(silent[:3]) + (", ..." if len(silent) > 3 else "")
        notes.append(f"Nodes that sent nothing: {len(silent)} ({shown}).")
    skewed = [node for node in nodes if node.clock_skew and abs(node.clock_skew) > _SKEW]
    if skewed:
        worst = max(skewed, key=lambda node: abs(node.clock_skew or 0))
        notes.append(
            f"Clocks: {worst.node} differs from the server by "
            f"{format_duration(abs(worst.clock_skew or 0))}."
        )
    return notes


REMAINDER = "not attributed"


def executable_rows(stored: Iterable[StoredExecutable]) -> list[ExecutableRow]:
    """Join what the nodes say of each executable; shares are filled in by who knows the whole."""
    joined: dict[tuple[bytes, bool], ExecutableRow] = {}
    for part in stored:
        use = part.use
        row = joined.get((use.path, use.path_known))
        if row is None:
            joined[use.path, use.path_known] = _executable_row(use)
        else:
            _add(row, use)
    rows = [row for row in joined.values() if not _taken_back(row)]
    return sorted(rows, key=lambda row: (-row.cpu_time, -(row.executions or 0), row.path))


def _taken_back(row: ExecutableRow) -> bool:
    """Whether the agent has since learned the path of what it had sent under a command's name."""
    return not (row.executions or row.processes or row.cpu_time)


def remainder_row(cpu_time: int, whole: int) -> ExecutableRow:
    """The CPU time of the counter that no executable accounts for, never hidden."""
    return ExecutableRow(
        kind="remainder",
        path=REMAINDER,
        executions=None,
        processes=None,
        cpu_time=cpu_time,
        cpu_user=None,
        cpu_system=None,
        cpu_estimated=0,
        cpu_share=cpu_time / whole if whole else None,
        read_bytes=None,
        written_bytes=None,
        peak_memory=None,
        failures=None,
    )


def _executable_row(use: ExecutableUse) -> ExecutableRow:
    return ExecutableRow(
        kind="executable" if use.path_known else "path unknown",
        path=readable_path(use.path),
        executions=use.executions,
        processes=use.processes,
        cpu_time=use.cpu_time,
        cpu_user=use.cpu_user,
        cpu_system=use.cpu_system,
        cpu_estimated=use.cpu_estimated,
        cpu_share=None,
        read_bytes=use.read_bytes,
        written_bytes=use.written_bytes,
        peak_memory=use.peak_memory or None,
        failures=use.failures,
    )


def _add(row: ExecutableRow, use: ExecutableUse) -> None:
    row.executions = (row.executions or 0) + use.executions
    row.processes = (row.processes or 0) + use.processes
    row.cpu_time += use.cpu_time
    row.cpu_user = (row.cpu_user or 0) + use.cpu_user
    row.cpu_system = (row.cpu_system or 0) + use.cpu_system
    row.cpu_estimated += use.cpu_estimated
    row.read_bytes = (row.read_bytes or 0) + use.read_bytes
    row.written_bytes = (row.written_bytes or 0) + use.written_bytes
    row.failures = (row.failures or 0) + use.failures
    # The peak is of one process: over nodes the highest counts, not the sum.
    row.peak_memory = max(row.peak_memory or 0, use.peak_memory) or None


#: The script comes before the steps that it starts; what runs beside them comes last.
_FIRST = ("", "batch", "interactive")
_LAST = ("extern",)


def step_rows(stored: Iterable[StoredStep]) -> list[StepRow]:
    """Join what the nodes say of each step."""
    found: dict[str, list[StepUse]] = {}
    for part in stored:
        found.setdefault(part.use.step, []).append(part.use)
    return [_step_row(name, found[name]) for name in sorted(found, key=_place)]


def has_steps(rows: list[StepRow]) -> bool:
    """Whether there is anything to tell: a job that is one step without a name is its own step."""
    return any(row.step for row in rows)


def _place(name: str) -> tuple[int, int, str]:
    if name in _FIRST:
        return 0, _FIRST.index(name), name
    number = name.partition("+")[0].partition(".")[0]
    if number.isdecimal():
        return 1, int(number), name
    return (3 if name in _LAST else 2), 0, name


def _step_row(name: str, uses: list[StepUse]) -> StepRow:
    # Zero stands for a moment that an agent did not know.
    begins = [use.first_seen for use in uses if use.first_seen]
    ends = [use.last_seen for use in uses if use.last_seen]
    return StepRow(
        step=name,
        nodes=len(uses),
        # A step has tasks: none means that the agent could not count them.
        tasks=sum(use.tasks for use in uses) or None,
        cpu_time=total(use.cpu_time for use in uses),
        cpu_overhead=total(use.cpu_overhead for use in uses),
        memory_peak=total(use.memory_peak for use in uses),
        oom_kills=total(use.oom_kills for use in uses),
        elapsed=max(max(ends) - min(begins), 0) if begins and ends else None,
        ended=all(use.ended for use in uses),
    )


def total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


class JobRow(msgspec.Struct, kw_only=True):
    run: str
    cluster: str
    job_id: int
    display_id: str
    name: str | None
    user: str | None
    account: str | None
    partition: str | None
    state: str
    state_text: str
    running: bool
    exit_code: int | None
    exit_signal: int | None
    start: int | None
    end: int | None
    elapsed: int | None
    nodes: int
    cpus: int | None
    cpu_time: int | None
    cpu_share: float | None
    memory_asked: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    memory_share: float | None
    #: Only nodes have reported the run so far; the scheduler's own start may still change its key.
    provisional: bool


def job_row(stored: StoredRun, now: int) -> JobRow:
    """The figures of one run as a list shows them."""
    info = stored.info
    on_nodes = stored.on_nodes
    state, running, start, elapsed, counted = decide_state(
        info, stored.run.start, ended_on_nodes=on_nodes.ended, as_of=on_nodes.counted, now=now
    )
    memory = requested_memory(info, on_nodes)
    could = counted * info.cpus if counted and info.cpus else None
    used = stored.memory_used_peak
    used = used if used is not None else stored.memory_peak
    return JobRow(
        run=str(stored.run),
        cluster=info.cluster,
        job_id=info.job_id,
        display_id=display_id(info),
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        state=state,
        state_text=describe_state(state, info.exit_code, info.exit_signal),
        running=running,
        exit_code=info.exit_code,
        exit_signal=info.exit_signal,
        start=start,
        end=info.end,
        elapsed=elapsed,
        nodes=len(stored.nodes),
        cpus=info.cpus,
        cpu_time=stored.cpu_time,
        cpu_share=stored.cpu_time / could if could and stored.cpu_time is not None else None,
        memory_asked=memory,
        memory_used_peak=stored.memory_used_peak,
        memory_peak=stored.memory_peak,
        memory_share=used / memory if memory and used is not None else None,
        provisional=stored.provisional,
    )
