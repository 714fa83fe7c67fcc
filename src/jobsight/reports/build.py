"""Builds the report of a run from what the store holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from jobsight.model import SECOND, Coverage, JobInfo, JobTotals
from jobsight.reports.coverage import cpu_note, executables_note, group_note, merge_nodes
from jobsight.reports.executables import executable_rows, remainder_row
from jobsight.reports.report import CpuUse, IoUse, JobReport, MemoryUse, NodeRow, TimeUse
from jobsight.reports.states import ACTIVE, describe_state
from jobsight.reports.steps import step_rows
from jobsight.reports.steps import total as _sum
from jobsight.reports.units import format_duration, format_share

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredNode, StoredRun
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
    info, nodes = stored.info, store.nodes(stored.id)
    totals = [node.totals for node in nodes if node.totals is not None]
    state, running = _state(info, nodes)
    as_of = max((part.time for part in totals), default=None)
    start = info.start if info.start is not None else stored.run.start
    now = clock()
    end = info.end if info.end is not None else now if running else as_of
    elapsed = max(end - start, 0) if end is not None else None
    # The counters of a running job are as old as the last batch: their mean is taken up to there.
    counted = max(as_of - start, 0) if running and as_of is not None else elapsed
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
        memory=_memory(info, nodes, totals),
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


def _state(info: JobInfo, nodes: list[StoredNode]) -> tuple[str, bool]:
    if info.state:
        return info.state, info.end is None and info.state.upper() in ACTIVE
    # Only the nodes have spoken so far: what the scheduler will say is not known yet.
    running = info.end is None and not (nodes and all(node.final for node in nodes))
    return ("RUNNING" if running else "UNKNOWN"), running


_Number = TypeVar("_Number", int, float)


def _share(part: _Number | None, whole: _Number | None) -> float | None:
    return part / whole if part is not None and whole else None


def _cpu(info: JobInfo, totals: list[JobTotals], elapsed: int | None) -> CpuUse:
    cpu_time = _sum(part.cpu_time for part in totals)
    cores = _share(cpu_time, elapsed)
    sources = dict.fromkeys(part.cpu_source for part in totals)
    overhead = _sum(part.cpu_overhead for part in totals)
    return CpuUse(
        asked=info.cpus,
        time=cpu_time,
        user=_sum(part.cpu_user for part in totals),
        system=_sum(part.cpu_system for part in totals),
        overhead=overhead,
        cores_mean=cores,
        share=cores / info.cpus if cores is not None and info.cpus else None,
        source=", ".join(sources) or None,
        overhead_text=_overhead_text(overhead) if overhead else "",
    )


def _overhead_text(overhead: int) -> str:
    spent = format_duration(overhead)
    return f"{spent} of slurmstepd, Slurm's process in each step, counted apart."


def _memory(info: JobInfo, nodes: list[StoredNode], totals: list[JobTotals]) -> MemoryUse:
    limits = [part.memory_limit for part in totals]
    # The limits of some nodes only would be too little to hold the use of all against.
    limited = len(limits) == len(nodes) and None not in limits
    asked = info.memory or (_sum(limits) if limited else None)
    used, kernel = (
        _sum(part.memory_used_peak for part in totals),
        _sum(part.memory_peak for part in totals),
    )
    return MemoryUse(
        asked=asked,
        used_peak=used,
        kernel_peak=kernel,
        swap_peak=_sum(part.swap_peak for part in totals),
        oom_kills=_sum(part.oom_kills for part in totals),
        share=_share(used if used is not None else kernel, asked),
    )


def _io(totals: list[JobTotals]) -> IoUse:
    return IoUse(
        read_characters=_sum(part.read_characters for part in totals),
        written_characters=_sum(part.written_characters for part in totals),
        read_bytes=_sum(part.read_bytes for part in totals),
        written_bytes=_sum(part.written_bytes for part in totals),
        read_calls=_sum(part.read_calls for part in totals),
        write_calls=_sum(part.write_calls for part in totals),
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
