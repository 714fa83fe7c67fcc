"""Builds the report of a run, and its row in a list, from what the store holds.

:func:`build_report` and :func:`job_row` are the entry points. The report reads nodes, executables
and steps of one run; a row uses only the figures that were read with the run, so that a list costs
no query per row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import field

from jobsight.findings.finding import SEVERITIES, Severity
from jobsight.findings.reported import NO_PRICES
from jobsight.model import SECOND, Coverage, ExecutableUse, JobInfo, JobTotals, real_signal
from jobsight.reports.gpu import gpu_rows, gpu_totals, measure_of
from jobsight.reports.report import (
    CpuUse,
    ExecutableRow,
    GpuMeasure,
    IoUse,
    JobReport,
    MemoryUse,
    NodeRow,
    SchedulerFacts,
    SchedulerStep,
    StepRow,
    TimeUse,
    cpu_note,
    describe_state,
    executables_note,
    group_note,
    merge_nodes,
    own_namespace_note,
)
from jobsight.scheduler.records import JobDetails
from jobsight.store.properties import JobKey, links_of, shown_texts
from jobsight.store.read.memory import is_out_of_memory, requested_memory, used_peak
from jobsight.store.read.state import decide_state
from jobsight.text import readable_path
from jobsight.util.outer import Duration, Time
from jobsight.util.units import format_count, format_duration, format_share, format_time

if TYPE_CHECKING:
    from jobsight.config.settings import PriceSettings
    from jobsight.model import StepUse
    from jobsight.store.findings.read import Worst
    from jobsight.store.read.queries import (
        ExecutableSums,
        StoredNode,
        StoredRun,
        StoredStep,
    )
    from jobsight.store.store import Store

#: A running job without a batch for this long gets a note.
_SILENCE = 5 * 60 * SECOND
#: The executables may exceed the counter by the length of a tick; a larger excess gets a note.
_EXCESS_TOLERANCE = 0.01
#: A larger clock skew gets a note.
_SKEW_TOLERANCE = 2 * SECOND

_NUMBERED_GROUPS = ("memory", "io")
_KNOWN_GROUPS = ("cpu", *_NUMBERED_GROUPS, "executables")

_Number = TypeVar("_Number", int, float)


def _overdue_notes(info: JobInfo, start: int, now: int) -> list[str]:
    """Slurm's record says that a run goes on, which no node confirms and its limit contradicts."""
    if not info.time_limit or now - start - info.time_limit <= _SILENCE:
        return []
    until = format_time(start + info.time_limit)
    return [
        f"Its time limit ended at {until}, and no node reports it: probably its end was not "
        "recorded (sacctmgr show runawayjobs)."
    ]


def build_report(
    store: Store,
    stored: StoredRun,
    *,
    clock: Callable[[], int] = time.time_ns,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
    complete: bool = True,
) -> JobReport:
    """Read everything about one run from the store and the archive. Without ``complete`` the report
    has no cost, software and number of samples, and nothing of the runs of the same work."""
    # Imported here: a report that comes from a server is shown without loading SQLAlchemy.
    from jobsight.findings.stored import report_findings
    from jobsight.reports.run_parts import complete_report
    from jobsight.store.read.queries import summarize_nodes

    info, nodes = stored.info, store.nodes(stored.id)
    totals = [node.totals for node in nodes if node.totals is not None]
    on_nodes = summarize_nodes([(node.final, node.totals) for node in nodes])
    as_of, now = on_nodes.counted, clock()
    state, running, start, elapsed, counted = decide_state(
        info, stored.run.start, ended_on_nodes=on_nodes.ended, as_of=as_of, now=now
    )
    cpu = _cpu(info, totals, counted)
    executables = store.largest_executables(stored.id)
    rows = executable_rows(executables, cpu.time)
    coverage = merge_nodes(
        (node.coverage, (node.totals.cpu_time or 0) if node.totals else 0) for node in nodes
    )
    notes = _notes(info, nodes, coverage, cpu, rows, executables.own_namespace)
    gpus = gpu_rows(store.gpus(stored.id))
    properties = store.properties(JobKey(info.cluster, info.job_id, info.user or ""))
    links = links_of(properties)
    details = store.details(stored.id, JobDetails)
    facts = None if details is None else scheduler_facts(details)
    if running and as_of is not None and now - as_of > _SILENCE:
        notes.append(f"No batch has been received for {format_duration(now - as_of)}.")
    if running and (as_of is None or now - as_of > _SILENCE):
        notes += _overdue_notes(info, start, now)
    report = JobReport(
        run=str(stored.run),
        cluster=info.cluster,
        job_id=info.job_id,
        display_id=display_id(info),
        chain_job_id=stored.chain_job_id,
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        command=info.command or (facts.submit_line if facts else None),
        state=state,
        exit_code=info.exit_code,
        exit_signal=real_signal(info.exit_signal),
        submit=info.submit,
        start=start,
        end=info.end,
        source=info.source,
        nodes=list(dict.fromkeys([*(info.nodes or ()), *(node.node for node in nodes)])),
        cpu=cpu,
        memory=_memory(requested_memory(info, on_nodes), totals, state),
        time=TimeUse(
            requested=info.time_limit, elapsed=elapsed, share=_ratio(elapsed, info.time_limit)
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
        scheduler=facts,
        findings=report_findings(store, stored.id, prices),
        gpu=gpu_totals(stored.gpus, gpus, info.gpus, coverage.get("gpu")),
        gpus=gpus,
        properties=shown_texts(properties, links),
        links=links,
    )
    if complete:
        complete_report(report, store, stored, now, prices)
    return report


def scheduler_facts(details: JobDetails) -> SchedulerFacts:
    """What a report shows of the scheduler's own record."""
    steps = [
        SchedulerStep(
            step=step.step,
            name=step.name,
            state=step.state,
            tasks=step.tasks,
            cpu_time=step.cpu_time,
            memory_peak_bytes=step.memory_peak,
            elapsed=None if step.start is None or step.end is None else step.end - step.start,
        )
        for step in sorted(details.steps, key=lambda step: _step_order(step.step))
    ]
    peaks = [step.memory_peak_bytes for step in steps if step.memory_peak_bytes is not None]
    cpu_time = details.cpu_time
    return SchedulerFacts(
        # Slurm writes "None" for a job that nothing delays.
        reason=details.reason if details.reason not in ("", "None") else None,
        submit_line=details.submit_line,
        working_directory=details.working_directory,
        expected_start=details.expected_start,
        cpu_time=total(step.cpu_time for step in steps) if cpu_time is None else cpu_time,
        cpu_user=details.cpu_user,
        cpu_system=details.cpu_system,
        memory_peak_bytes=max(peaks, default=None),
        steps=steps,
    )


class JobRow(msgspec.Struct, kw_only=True):
    """One run as a row of a list."""

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
    start: Time | None
    end: Time | None
    elapsed: Duration | None = field(name="elapsed_seconds")
    node_count: int
    requested_cpus: int | None
    cpu_time: Duration | None = field(name="cpu_seconds")
    cpu_share: float | None
    memory_requested_bytes: int | None
    memory_used_peak_bytes: int | None
    memory_kernel_peak_bytes: int | None
    memory_share: float | None
    #: Only nodes have reported the run; the scheduler's start may still change its key.
    provisional: bool
    requested_gpus: int | None = None
    #: GPUs that the nodes reported, and those of them that the run never used.
    gpu_count: int | None = None
    gpu_unused_count: int | None = None
    gpu_held: Duration | None = field(default=None, name="gpu_held_seconds")
    gpu_used: Duration | None = field(default=None, name="gpu_used_seconds")
    #: Used of the held time for which the use is known, and what it stands for.
    gpu_share: float | None = None
    gpu_measure: GpuMeasure | None = None
    #: Summed over the GPUs.
    gpu_memory_peak_bytes: int | None = None
    gpu_energy_joules: float | None = None
    #: Findings for the user that hold, and the highest severity of them.
    findings: int = 0
    severity: Severity | None = None
    qos: str | None = None
    #: The chain of jobs that depend on each other, by the id of one of them.
    chain_job_id: int | None = None
    submit: Time | None = None
    time_limit: Duration | None = field(default=None, name="time_requested_seconds")
    #: When Slurm expects a job that waits to start.
    expected_start: Time | None = None


def job_row(stored: StoredRun, now: int, worst: Worst | None = None) -> JobRow:
    """The row of one run, with its findings."""
    info, on_nodes, gpus = stored.info, stored.on_nodes, stored.gpus
    state, running, start, elapsed, counted = decide_state(
        info, stored.run.start, ended_on_nodes=on_nodes.ended, as_of=on_nodes.counted, now=now
    )
    memory = requested_memory(info, on_nodes)
    used = used_peak(stored.memory_used_peak, stored.memory_peak, memory, state)
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
        exit_signal=real_signal(info.exit_signal),
        start=start,
        end=info.end,
        elapsed=elapsed,
        node_count=stored.node_count,
        requested_cpus=info.cpus,
        cpu_time=stored.cpu_time,
        cpu_share=_cpu_share(stored.cpu_time, counted, info.cpus),
        memory_requested_bytes=memory,
        memory_used_peak_bytes=used,
        memory_kernel_peak_bytes=stored.memory_peak,
        memory_share=_ratio(used if used is not None else stored.memory_peak, memory),
        provisional=stored.provisional,
        requested_gpus=info.gpus,
        gpu_count=gpus.gpu_count,
        gpu_unused_count=gpus.gpu_unused_count,
        gpu_held=gpus.gpu_held_time,
        gpu_used=gpus.gpu_used_time,
        gpu_share=_ratio(gpus.gpu_used_time, gpus.gpu_measured_time),
        gpu_measure=measure_of(gpus.gpu_measured_time, gpus.gpu_profiled_time),
        gpu_memory_peak_bytes=gpus.gpu_memory_peak,
        gpu_energy_joules=None if gpus.gpu_energy is None else gpus.gpu_energy / 1e6,
        findings=worst.findings if worst else 0,
        severity=SEVERITIES[worst.severity] if worst else None,
        qos=info.qos,
        chain_job_id=stored.chain_job_id,
        submit=info.submit,
        time_limit=info.time_limit,
    )


def display_id(info: JobInfo) -> str:
    """The job id as Slurm's commands print it: 12, 62_3 or 88+1."""
    if info.array_task_id is not None:
        return f"{info.array_job_id or info.job_id}_{info.array_task_id}"
    if info.het_offset is not None:
        return f"{info.het_job_id or info.job_id}+{info.het_offset}"
    return str(info.job_id)


def total(values: Iterable[int | None]) -> int | None:
    """The sum of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _ratio(part: _Number | None, whole: _Number | None) -> float | None:
    return part / whole if part is not None and whole else None


def _cpu_share(cpu_time: int | None, counted: int | None, cpus: int | None) -> float | None:
    return _ratio(cpu_time, counted * cpus if counted and cpus else None)


def _cpu(info: JobInfo, totals: list[JobTotals], counted: int | None) -> CpuUse:
    cpu_time = total(part.cpu_time for part in totals)
    sources = dict.fromkeys(part.cpu_source for part in totals)
    overhead = total(part.cpu_overhead for part in totals)
    text = f"{format_duration(overhead)} of slurmstepd, Slurm's process in each step, not included."
    return CpuUse(
        requested_cpus=info.cpus,
        time=cpu_time,
        user=total(part.cpu_user for part in totals),
        system=total(part.cpu_system for part in totals),
        overhead=overhead,
        mean_cores=_ratio(cpu_time, counted),
        share=_cpu_share(cpu_time, counted, info.cpus),
        source=", ".join(sources) or None,
        overhead_text=text if overhead else "",
    )


def _memory(requested: int | None, totals: list[JobTotals], state: str) -> MemoryUse:
    kills = total(part.oom_kills for part in totals)
    kernel = total(part.memory_peak for part in totals)
    used = used_peak(total(part.memory_used_peak for part in totals), kernel, requested, state)
    return MemoryUse(
        requested_bytes=requested,
        used_peak_bytes=used,
        kernel_peak_bytes=kernel,
        swap_peak_bytes=total(part.swap_peak for part in totals),
        # Slurm's state proves a kill; a count of zero was read too early.
        oom_kills=kills or (None if is_out_of_memory(state) else kills),
        share=_ratio(used if used is not None else kernel, requested),
    )


def _io(totals: list[JobTotals]) -> IoUse:
    return IoUse(
        syscall_read_bytes=total(part.read_characters for part in totals),
        syscall_written_bytes=total(part.written_characters for part in totals),
        storage_read_bytes=total(part.read_bytes for part in totals),
        storage_written_bytes=total(part.written_bytes for part in totals),
        read_calls=total(part.read_calls for part in totals),
        write_calls=total(part.write_calls for part in totals),
    )


def _node_row(node: StoredNode) -> NodeRow:
    totals = node.totals
    return NodeRow(
        node=node.node,
        cpu_time=totals.cpu_time if totals else None,
        memory_used_peak_bytes=totals.memory_used_peak if totals else None,
        memory_kernel_peak_bytes=totals.memory_peak if totals else None,
        syscall_read_bytes=totals.read_characters if totals else None,
        syscall_written_bytes=totals.written_characters if totals else None,
        final=node.final,
        clock_skew=node.clock_skew,
    )


def _notes(
    info: JobInfo,
    nodes: list[StoredNode],
    coverage: Mapping[str, Coverage],
    cpu: CpuUse,
    rows: list[ExecutableRow],
    own_namespace: int,
) -> list[str]:
    """The sentences about the coverage; ``coverage`` is corrected by what the report knows."""
    named = [row for row in rows if row.kind != "remainder"]
    attributed = sum(row.cpu_time for row in named)
    executables = coverage["executables"]
    if cpu.time and executables.quality in ("exact", "estimate"):
        # The agents' shares are those of their last batch; the totals here are newer.
        executables.cpu_share = min(attributed / cpu.time, 1.0)
    silent = _silent_nodes(info, nodes, coverage)
    executions = sum(row.executions or 0 for row in named)
    estimated = _ratio(sum(row.cpu_estimated for row in named), attributed)
    return [
        cpu_note(coverage["cpu"], cpu.source),
        *(group_note(group, part) for group, part in coverage.items() if group in _NUMBERED_GROUPS),
        executables_note(executables, executions, estimated, cpu.time),
        *own_namespace_note(own_namespace),
        *(
            group_note(group, part)
            for group, part in coverage.items()
            if group not in _KNOWN_GROUPS
        ),
        *_warnings(cpu.time, attributed, silent, nodes),
    ]


def _silent_nodes(
    info: JobInfo, nodes: list[StoredNode], coverage: Mapping[str, Coverage]
) -> list[str]:
    """Nodes of the job that never reported; the sums do not include them."""
    reported = {node.node for node in nodes}
    silent = [name for name in info.nodes or () if name not in reported]
    if silent and nodes:
        for part in coverage.values():
            if part.quality == "exact":
                part.quality = "estimate"
                part.reason = f"{len(silent)} of {len(silent) + len(reported)} nodes sent nothing"
    return silent


def _warnings(
    cpu_time: int | None, attributed: int, silent: list[str], nodes: list[StoredNode]
) -> list[str]:
    notes = []
    if cpu_time and attributed > cpu_time * (1 + _EXCESS_TOLERANCE):
        notes.append(
            f"The executables sum to {format_share(attributed / cpu_time - 1)} more than the CPU "
            "time of the counter; their shares refer to the larger sum."
        )
    if silent:
        shown = ", ".join(silent[:3]) + (", ..." if len(silent) > 3 else "")
        notes.append(f"Nodes that sent nothing: {len(silent)} ({shown}).")
    skewed = [(abs(node.clock_skew or 0), node.node) for node in nodes]
    skew, name = max(skewed, default=(0, ""))
    if skew > _SKEW_TOLERANCE:
        notes.append(f"Clocks: {name} differs from the server by {format_duration(skew)}.")
    return notes


def executable_rows(sums: ExecutableSums, cpu_time: int | None) -> list[ExecutableRow]:
    """One row per executable with its share, then the others, and the CPU time of none."""
    rows = [_executable_row(use) for use in sums.largest]
    rows.sort(key=lambda row: (-row.cpu_time, -(row.executions or 0), row.path))
    if sums.others is not None:
        others = _executable_row(sums.others)
        others.kind, others.executables = "others", sums.executables - len(sums.largest)
        others.path = f"{format_count(others.executables)} other executables"
        rows.append(others)
    attributed = sum(row.cpu_time for row in rows)
    gpu_time = total(row.gpu_time for row in rows)
    if cpu_time is not None and cpu_time > attributed:
        rows.append(_remainder_row(cpu_time - attributed))
    for row in rows:
        row.cpu_share = _ratio(row.cpu_time, max(cpu_time or 0, attributed))
        row.gpu_share = _ratio(row.gpu_time, gpu_time)
    return rows


def _executable_row(use: ExecutableUse) -> ExecutableRow:
    return ExecutableRow(
        kind="executable" if use.path_known else "path unknown",
        path=readable_path(use.path),
        own_namespace=use.own_namespace,
        executions=use.executions,
        processes=use.processes,
        cpu_time=use.cpu_time,
        cpu_user=use.cpu_user,
        cpu_system=use.cpu_system,
        cpu_estimated=use.cpu_estimated,
        cpu_share=None,
        storage_read_bytes=use.read_bytes,
        storage_written_bytes=use.written_bytes,
        peak_memory_bytes=use.peak_memory or None,
        failures=use.failures,
        gpu_time=use.gpu_time or None,
        gpu_memory_peak_bytes=use.gpu_memory_peak or None,
    )


def _remainder_row(cpu_time: int) -> ExecutableRow:
    return ExecutableRow(
        kind="remainder",
        path="not attributed",
        executables=0,
        own_namespace=False,
        executions=None,
        processes=None,
        cpu_time=cpu_time,
        cpu_user=None,
        cpu_system=None,
        cpu_estimated=0,
        cpu_share=None,
        storage_read_bytes=None,
        storage_written_bytes=None,
        peak_memory_bytes=None,
        failures=None,
    )


#: The batch script precedes the steps that it starts; the external step is last.
_FIRST_STEPS = ("", "batch", "interactive")
_LAST_STEPS = ("extern",)


def step_rows(stored: Iterable[StoredStep]) -> list[StepRow]:
    """One row per step over all nodes."""
    uses: dict[str, list[StepUse]] = {}
    for part in stored:
        uses.setdefault(part.use.step, []).append(part.use)
    return [_step_row(name, uses[name]) for name in sorted(uses, key=_step_order)]


def has_steps(rows: list[StepRow]) -> bool:
    """False for a job whose only step has no name: its row would repeat the job's figures."""
    return any(row.step for row in rows)


def _step_order(name: str) -> tuple[int, int, str]:
    if name in _FIRST_STEPS:
        return 0, _FIRST_STEPS.index(name), name
    number = name.partition("+")[0].partition(".")[0]
    if number.isdecimal():
        return 1, int(number), name
    return (3 if name in _LAST_STEPS else 2), 0, name


def _step_row(name: str, uses: list[StepUse]) -> StepRow:
    # 0 is a time that the agent did not know.
    begins = [use.first_seen for use in uses if use.first_seen]
    ends = [use.last_seen for use in uses if use.last_seen]
    return StepRow(
        step=name,
        nodes=len(uses),
        # 0 means that the agent could not count the tasks.
        tasks=sum(use.tasks for use in uses) or None,
        cpu_time=total(use.cpu_time for use in uses),
        cpu_overhead=total(use.cpu_overhead for use in uses),
        memory_kernel_peak_bytes=total(use.memory_peak for use in uses),
        oom_kills=total(use.oom_kills for use in uses),
        elapsed=max(max(ends) - min(begins), 0) if begins and ends else None,
        ended=all(use.ended for use in uses),
        gpu_time=total(use.gpu_time for use in uses),
        gpu_memory_peak_bytes=total(use.gpu_memory_peak for use in uses),
        first_seen=min(begins, default=None),
    )
