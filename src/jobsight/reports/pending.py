"""Jobs of the scheduler that wait: their rows in a list, and the report of one.

Pending jobs are no runs. They come from the snapshot of the last scrape, which holds one record for
all waiting tasks of an array.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

from jobsight.findings.reported import NO_PRICES
from jobsight.model import JobInfo, RunReference
from jobsight.reports.build import JobRow, build_report, display_id, job_row, scheduler_facts
from jobsight.reports.report import CpuUse, IoUse, JobReport, MemoryUse, TimeUse, describe_state
from jobsight.store.chains import chain_key, read_chains
from jobsight.store.findings.read import worst_of_runs
from jobsight.store.read import viewed
from jobsight.store.read.filters import LATEST, Filters, Position, Sort
from jobsight.store.read.queries import COUNT_LIMIT, GroupKey, GroupSummary, RunNotFound
from jobsight.store.read.visibility import EVERYTHING, Visibility
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.util.units import format_time

if TYPE_CHECKING:
    from jobsight.config.settings import PriceSettings
    from jobsight.scheduler.records import JobRecord
    from jobsight.store.read.queries import StoredRun
    from jobsight.store.store import Store

#: Rows that a list can skip by number; a cursor leads further.
MAX_OFFSET = 10_000
CURSOR_PATTERN = r"^(p[0-9]{1,9}|[0-9]{1,19}-[0-9]{1,18}(\.[A-Za-z0-9_-]{1,6000})?)$"
_CURSOR = re.compile(r"p(\d{1,9})|(\d{1,19})-(\d{1,18})(?:\.([\w-]{1,6000}))?", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)


class JobPage(NamedTuple):
    """Some rows of a list of jobs."""

    rows: list[JobRow]
    #: Where the next page begins; None at the end of the list.
    next: Cursor | None
    #: Jobs on all pages. Not more than ``COUNT_LIMIT`` runs are counted.
    total: int
    total_exact: bool


class Cursor(NamedTuple):
    """A place in a list of jobs: after so many that wait, or after a run."""

    pending: int = 0
    run: Position | None = None

    def __str__(self) -> str:
        if self.run is None:
            return f"p{self.pending}"
        start, id, value = self.run
        if value is None:
            return f"{start}-{id}"
        encoded = base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
        return f"{start}-{id}.{encoded}"

    @classmethod
    def parse(cls, text: str, sort: Sort = LATEST) -> Cursor:
        """The cursor of a text in a list with that order, or :class:`ValueError`."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise ValueError("expected a cursor as the page before gave it")
        if match[1]:
            return cls(int(match[1]))
        value = None
        if match[4]:
            try:
                value = json.loads(base64.urlsafe_b64decode(match[4] + "=" * (-len(match[4]) % 4)))
            except ValueError:
                raise ValueError("expected a cursor as the page before gave it") from None
        position = Position(min(int(match[2]), 2**63 - 1), int(match[3]), value)
        position.check(sort)
        return cls(0, position)


def list_page(
    store: Store,
    *,
    now: int,
    limit: int,
    offset: int = 0,
    cursor: Cursor | None = None,
    sort: Sort = LATEST,
    **filters: Unpack[Filters],
) -> JobPage:
    """A page of a list of jobs: runs, or with the state PENDING the jobs that wait as well.

    It begins at the cursor, or after ``offset`` jobs if none is given. It may have fewer rows than
    the limit although there is a next page; see :class:`jobsight.store.read.queries.RunPage`.
    """
    waiting = _pending(store, sort, **filters)
    position = None if cursor is None else cursor.run
    first = offset if cursor is None else cursor.pending if position is None else len(waiting)
    rows = [pending_row(record) for record in waiting[first : first + limit]]
    following: Cursor | None = Cursor(first + limit)
    wanted = 0
    if first + limit >= len(waiting):
        wanted = limit - len(rows)
    page, count = store.page_of_runs(
        limit=wanted,
        offset=max(first - len(waiting), 0),
        after=position,
        sort=sort,
        **filters,
    )
    if wanted:
        rows += job_rows(store, page.runs, now)
        following = None if page.next is None else Cursor(run=page.next)
    elif first + limit == len(waiting) and not count.number:
        following = None
    total = len(waiting) + min(count.number, COUNT_LIMIT)
    return JobPage(rows, following, total, count.exact and count.number <= COUNT_LIMIT)


class GroupedRow(NamedTuple):
    """A row of a list in which a chain, an array or a heterogeneous job is one row."""

    row: JobRow
    #: None of a job on its own. ``row`` is otherwise the first of its runs in the list.
    group: GroupKey | None = None
    summary: GroupSummary | None = None
    #: The runs of a group that is open, not more than :data:`MAX_OPEN`.
    runs: Sequence[JobRow] = ()

    @property
    def name(self) -> str:
        """Names the group in an address."""
        return "" if self.group is None else f"{self.group.cluster}:{self.group.id}"


class GroupedPage(NamedTuple):
    """Some rows of a list of jobs and groups of them."""

    rows: list[GroupedRow]
    next: Cursor | None
    #: Runs and waiting jobs, not rows.
    total: int
    total_exact: bool


#: Runs of a group that a list shows below it.
MAX_OPEN = 25


def list_grouped(
    store: Store,
    *,
    now: int,
    limit: int,
    cursor: Cursor | None = None,
    sort: Sort = LATEST,
    opened: str = "",
    **filters: Unpack[Filters],
) -> GroupedPage:
    """A page of a list of jobs with each chain, array and heterogeneous job as one row. ``opened``
    names the group whose runs are listed below its row."""
    records = _pending(store, sort, **filters)
    waiting = _waiting_groups(store, records, chains=filters.get("chain_job_id") is None)
    first = 0 if cursor is None else cursor.pending if cursor.run is None else len(waiting)
    rows = [_waiting_row(*each, opened) for each in waiting[first : first + limit]]
    page, count, groups = store.page_of_groups(
        limit=max(limit - len(rows), 1),
        after=None if cursor is None else cursor.run,
        sort=sort,
        **filters,
    )
    following: Cursor | None = Cursor(first + limit)
    if len(rows) < limit:
        following = None if page.next is None else Cursor(run=page.next)
        for run, row in zip(page.runs, job_rows(store, page.runs, now), strict=True):
            group = GroupKey.of(run, chains=filters.get("chain_job_id") is None)
            if group is None or groups[group].runs < 2:
                rows.append(GroupedRow(row))
                continue
            grouped = GroupedRow(row, group, groups[group])
            if grouped.name == opened:
                own: Filters = {**filters, "cluster": group.cluster}
                own[group.column] = group.id  # type: ignore[literal-required]
                runs = store.runs(limit=MAX_OPEN, sort=sort, **own)
                grouped = grouped._replace(runs=job_rows(store, runs, now))
            rows.append(grouped)
    elif first + limit == len(waiting) and not count.number:
        following = None
    total = len(records) + min(count.number, COUNT_LIMIT)
    return GroupedPage(rows, following, total, count.exact and count.number <= COUNT_LIMIT)


def _waiting_groups(
    store: Store, records: Sequence[JobRecord], *, chains: bool
) -> list[tuple[GroupKey | None, list[JobRecord]]]:
    """Jobs that wait, those of each chain together at the place of the first. Slurm has one record
    for all waiting tasks of an array."""
    if not chains or not records:
        return [(None, [record]) for record in records]
    with store.database.query() as transaction:
        keys = [(record.info.cluster, chain_key(record.info)) for record in records]
        known = read_chains(transaction, keys)
    groups: dict[object, tuple[GroupKey | None, list[JobRecord]]] = {}
    for number, record in enumerate(records):
        info = record.info
        chain = known.get((info.cluster, info.user or "", chain_key(info)))
        group = None if chain is None else GroupKey("chain_job_id", info.cluster, chain)
        groups.setdefault(group or number, (group, []))[1].append(record)
    return list(groups.values())


def _waiting_row(group: GroupKey | None, records: Sequence[JobRecord], opened: str) -> GroupedRow:
    row = GroupedRow(pending_row(records[0]))
    if group is None or len(records) < 2:
        return row
    grouped = row._replace(group=group, summary=GroupSummary.waiting(len(records)))
    if grouped.name == opened:
        grouped = grouped._replace(runs=[pending_row(record) for record in records[:MAX_OPEN]])
    return grouped


def list_jobs(store: Store, *, now: int, limit: int, **filters: Unpack[Filters]) -> list[JobRow]:
    """The first rows of a list of jobs."""
    waiting = _pending(store, LATEST, **filters)
    rows = [pending_row(record) for record in waiting[:limit]]
    if len(rows) < limit:
        rows += job_rows(store, store.runs(limit=limit - len(rows), **filters), now)
    return rows


def job_rows(store: Store, runs: Sequence[StoredRun], now: int) -> list[JobRow]:
    """The rows of some runs, with the findings that they have."""
    with store.database.query() as transaction:
        worst = worst_of_runs(transaction, [run.id for run in runs])
    return [job_row(run, now, worst.get(run.id)) for run in runs]


def find_report(
    store: Store,
    reference: RunReference,
    *,
    visibility: Visibility = EVERYTHING,
    clock: Callable[[], int] = time.time_ns,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
    complete: bool = True,
) -> JobReport:
    """The report of a run, or that of a job which has not started. ``complete`` as in
    :func:`build_report`."""
    try:
        stored = store.find(reference, visibility)
    except RunNotFound:
        for record in pending_records(store, reference.cluster):
            if (
                reference.start is None
                and _is_named(record, reference)
                and _is_visible(record, visibility)
            ):
                return _pending_report(record)
        raise
    return build_report(store, stored, clock=clock, prices=prices, complete=complete)


def find_info(store: Store, reference: RunReference, visibility: Visibility) -> JobInfo:
    """What the scheduler says of a run or of a job that waits, or :class:`RunNotFound`."""
    try:
        return store.find(reference, visibility).info
    except RunNotFound:
        for record in pending_records(store, reference.cluster):
            is_named = reference.start is None and _is_named(record, reference)
            if is_named and _is_visible(record, visibility):
                viewed.note(record.info.user, _name(record.info))
                return record.info
        raise


def count_pending(store: Store, job_id: int, cluster: str) -> int:
    """The waiting tasks of an array, or components of a heterogeneous job."""
    from jobsight.scheduler.cluster_metrics import count_tasks

    reference = RunReference(job_id=job_id)
    records = pending_records(store, cluster)
    return sum(count_tasks(record) for record in records if _is_named(record, reference))


def pending_records(store: Store, cluster: str | None = None) -> list[JobRecord]:
    """The jobs that wait on a cluster, or on all."""
    from jobsight.scheduler.records import JobRecord

    clusters = snapshot_clusters(store.database) if cluster is None else [cluster]
    return [
        record
        for name in clusters
        for record in read_snapshot(store.database, name, "pending", JobRecord)
    ]


#: Filters that no waiting job passes: they are about what a run did.
_OF_RUNS_ONLY = (
    *("since", "until", "unused_gpus", "finding", "node", "software", "property"),
    *("cpu_share_below", "cpu_share_above"),
)


def _pending(store: Store, sort: Sort, **filters: Unpack[Filters]) -> list[JobRecord]:
    """The waiting jobs that pass the filters in the order of the sort, by default the latest
    submission first."""
    if filters.get("state") != "PENDING":
        return []
    if any(filters.get(name) not in (None, False) for name in _OF_RUNS_ONLY):
        return []
    search, visibility = filters.get("search"), filters.get("visibility", EVERYTHING)
    equal = {
        name: filters[name]
        for name in ("user", "account", "partition", "qos", "name", "array_job_id", "het_job_id")
        if filters.get(name) is not None
    }
    records = [
        record
        for record in _of_chain(store, filters)
        if all(getattr(record.info, name) == value for name, value in equal.items())
        and (not filters.get("gpus") or record.info.gpus)
        and (not search or _is_match(record, search.strip().lower()))
        and _is_visible(record, visibility)
    ]
    records.sort(key=lambda record: (-(record.info.submit or 0), -record.info.job_id))
    if sort.key in ("job_id", "name", "user", "account", "cluster", "partition", "qos", "cpus"):
        known = [record for record in records if getattr(record.info, sort.key) is not None]
        known.sort(key=lambda record: getattr(record.info, sort.key), reverse=sort.descending)
        return known + [each for each in records if getattr(each.info, sort.key) is None]
    return records if sort.descending else records[::-1]


def _of_chain(store: Store, filters: Filters) -> list[JobRecord]:
    """The jobs that wait, of one chain if the filters name one."""
    records = pending_records(store, filters.get("cluster"))
    if (chain := filters.get("chain_job_id")) is None:
        return records
    with store.database.query() as transaction:
        keys = [(record.info.cluster, chain_key(record.info)) for record in records]
        known = read_chains(transaction, keys)
    return [
        record
        for record in records
        if known.get((record.info.cluster, record.info.user or "", chain_key(record.info))) == chain
    ]


def _is_visible(record: JobRecord, visibility: Visibility) -> bool:
    info = record.info
    return visibility.includes(
        cluster=info.cluster, user=info.user, account=info.account, start=None
    )


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


def pending_row(record: JobRecord) -> JobRow:
    """The row of a job that waits."""
    info = record.info
    viewed.note(info.user)
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
        requested_gpus=info.gpus,
        qos=info.qos,
        submit=info.submit,
        time_limit=info.time_limit,
        expected_start=record.expected_start,
    )


def _pending_report(record: JobRecord) -> JobReport:
    info = record.info
    viewed.note(info.user, _name(info))
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
