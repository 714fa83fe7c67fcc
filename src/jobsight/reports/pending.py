"""Jobs of the scheduler that wait: their rows in a list, and the report of one.

Pending jobs are no runs. They come from the snapshot of the last scrape, which holds one record for
all waiting tasks of an array.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobsight.model import JobInfo, RunReference
from jobsight.reports.build import JobRow, build_report, display_id, job_row, scheduler_facts
from jobsight.reports.report import CpuUse, IoUse, JobReport, MemoryUse, TimeUse, describe_state
from jobsight.reports.units import format_time
from jobsight.store.read.queries import RunNotFound
from jobsight.store.snapshot import read_snapshot, snapshot_clusters

if TYPE_CHECKING:
    from jobsight.scheduler.records import JobRecord
    from jobsight.store.store import Store

_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)


def list_jobs(
    store: Store, *, now: int, limit: int, offset: int = 0, **filters: Any
) -> list[JobRow]:
    """The rows of a list of jobs: runs, or with the state PENDING the jobs that wait as well."""
    waiting = _pending(store, **filters)
    rows = [_pending_row(record) for record in waiting[offset : offset + limit]]
    if len(rows) < limit:
        others = max(offset - len(waiting), 0)
        runs = store.runs(limit=limit - len(rows), offset=others, **filters)
        rows += [job_row(run, now) for run in runs]
    return rows


def count_jobs(store: Store, **filters: Any) -> int:
    """How many jobs :func:`list_jobs` has on all its pages."""
    return len(_pending(store, **filters)) + store.count_runs(**filters)


def find_report(
    store: Store, reference: RunReference, *, clock: Callable[[], int] = time.time_ns
) -> JobReport:
    """The report of a run, or that of a job which has not started."""
    try:
        stored = store.find(reference)
    except RunNotFound:
        for record in _records(store, reference.cluster):
            if reference.start is None and _is_named(record, reference):
                return _pending_report(record)
        raise
    return build_report(store, stored, clock=clock)


def _records(store: Store, cluster: str | None = None) -> list[JobRecord]:
    from jobsight.scheduler.records import JobRecord

    clusters = snapshot_clusters(store.database) if cluster is None else [cluster]
    return [
        record
        for name in clusters
        for record in read_snapshot(store.database, name, "pending", JobRecord)
    ]


def _pending(
    store: Store,
    *,
    state: str | None = None,
    user: str | None = None,
    account: str | None = None,
    search: str | None = None,
    since: int | None = None,
) -> list[JobRecord]:
    """The waiting jobs that pass the filter, the latest submission first."""
    if state != "PENDING" or since is not None:
        return []
    records = [
        record
        for record in _records(store)
        if user in (None, record.info.user)
        and account in (None, record.info.account)
        and (not search or _is_match(record, search.strip().lower()))
    ]
    records.sort(key=lambda record: (-(record.info.submit or 0), -record.info.job_id))
    return records


def _is_match(record: JobRecord, text: str) -> bool:
    info = record.info
    texts = (info.name, info.user, info.account, info.partition, info.command)
    return _shown_id(record).startswith(text) or any(text in (part or "").lower() for part in texts)


def _shown_id(record: JobRecord) -> str:
    return f"{record.info.job_id}_[{record.array_tasks}]" if record.array_tasks else (
        display_id(record.info)
    )  # fmt: skip


def _is_named(record: JobRecord, reference: RunReference) -> bool:
    info = record.info
    if reference.array_task_id is not None:
        ids = (info.array_job_id, info.job_id)
        return reference.job_id in ids and _has_task(record, reference.array_task_id)
    if reference.het_offset is not None:
        return (info.het_job_id, info.het_offset) == (reference.job_id, reference.het_offset)
    return reference.job_id in (info.job_id, info.array_job_id, info.het_job_id)


def _has_task(record: JobRecord, task: int) -> bool:
    if record.info.array_task_id is not None:
        return record.info.array_task_id == task
    for match in _RANGE.finditer((record.array_tasks or "").partition("%")[0]):
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if first <= task <= last and (task - first) % max(step, 1) == 0:
            return True
    return False


def _state_text(record: JobRecord) -> str:
    text = describe_state("PENDING", None, None)
    return f"{text}: {record.reason}" if record.reason not in (None, "", "None") else text


def _name(info: JobInfo) -> str:
    return f"{info.cluster}:{info.job_id}"


def _pending_row(record: JobRecord) -> JobRow:
    info = record.info
    return JobRow(
        run=_name(info),
        cluster=info.cluster,
        job_id=info.job_id,
        display_id=_shown_id(record),
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        state="PENDING",
        state_text=_state_text(record),
        running=False,
        exit_code=None,
        exit_signal=None,
        start=None,
        end=None,
        elapsed=None,
        node_count=record.node_count or 0,
        requested_cpus=info.cpus,
        cpu_time=None,
        cpu_share=None,
        memory_requested_bytes=info.memory,
        memory_used_peak_bytes=None,
        memory_kernel_peak_bytes=None,
        memory_share=None,
        provisional=False,
    )


def _pending_report(record: JobRecord) -> JobReport:
    info = record.info
    notes = [f"The job has not started; Slurm's reason: {record.reason or 'not given'}."]
    if record.expected_start is not None:
        notes.append(f"Slurm expects it to start at {format_time(record.expected_start, None)}.")
    if record.dependency:
        notes.append(f"It depends on {record.dependency}.")
    return JobReport(
        run=_name(info),
        cluster=info.cluster,
        job_id=info.job_id,
        display_id=_shown_id(record),
        name=info.name,
        user=info.user,
        account=info.account,
        partition=info.partition,
        command=info.command or record.submit_line,
        state="PENDING",
        exit_code=None,
        exit_signal=None,
        submit=info.submit,
        start=None,
        end=None,
        source=info.source,
        nodes=[],
        cpu=CpuUse(
            requested_cpus=info.cpus,
            time=None,
            user=None,
            system=None,
            overhead=None,
            mean_cores=None,
            share=None,
            source=None,
        ),
        memory=MemoryUse(
            requested_bytes=info.memory,
            used_peak_bytes=None,
            kernel_peak_bytes=None,
            swap_peak_bytes=None,
            oom_kills=None,
            share=None,
        ),
        time=TimeUse(requested=info.time_limit, elapsed=None, share=None),
        io=IoUse(**dict.fromkeys(IoUse.__struct_fields__)),
        executables=[],
        node_rows=[],
        coverage={},
        coverage_notes=notes,
        state_text=_state_text(record),
        scheduler=scheduler_facts(record),
    )
