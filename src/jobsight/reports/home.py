"""What a user sees first: jobs that run, with what they use now, jobs that wait, the latest runs,
the usage of the month, and the fair share.

:func:`home_report` reads a bounded number of runs. Without a user it is about the whole site.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from jobsight.model import SECOND
from jobsight.reports.build import JobRow
from jobsight.reports.pending import job_rows, pending_records, pending_row
from jobsight.reports.subject import Totals, month_totals
from jobsight.scheduler.adapters.policy import AssociationInfo
from jobsight.scheduler.cluster_metrics import count_tasks
from jobsight.scheduler.records import JobRecord
from jobsight.store.read.filters import Sort
from jobsight.store.read.queries import COUNT_LIMIT, StoredRun, TooLarge
from jobsight.store.read.visibility import Visibility
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.store.store import Store

#: Rows of each list, and running jobs whose use at present is read.
MAX_RUNNING, MAX_WAITING, MAX_RECENT = 8, 8, 12
#: Nodes of a job whose use at present is read.
_MAX_NODES: Final = 64
#: How far back from its last sample.
_RECENT: Final = 90 * SECOND


class RunningJob(NamedTuple):
    """A job that runs, and what it uses at present."""

    row: JobRow
    #: CPU cores and bytes at its last samples; None if they are not known.
    cores: float | None
    memory_bytes: int | None


class WaitingJob(NamedTuple):
    """A job that waits, and its place among those that wait for the same partition."""

    row: JobRow
    reason: str | None
    tasks: int
    submit: int | None
    expected_start: int | None
    #: By priority; None if the scheduler does not report one.
    position: int | None
    waiting_in_partition: int


class FairShare(NamedTuple):
    """The share of a user in an account."""

    cluster: str
    account: str
    share: float | None
    usage_share: float | None
    fair_share: float | None


class HomeReport(NamedTuple):
    """What the page shows."""

    running: list[RunningJob]
    running_count: int
    waiting: list[WaitingJob]
    waiting_count: int
    recent: list[JobRow]
    #: The first day of the month, in nanoseconds, and the usage since.
    month: int
    totals: Totals
    jobs_of_month: int
    fair_shares: list[FairShare]


def home_report(store: Store, user: str | None, visibility: Visibility, now: int) -> HomeReport:
    """The jobs of a user, or of all users that may be seen."""
    page, count = store.page_of_runs(
        limit=MAX_RUNNING, state="RUNNING", user=user, visibility=visibility
    )
    rows = job_rows(store, page.runs, now)
    running = [
        RunningJob(row, *_present_use(store, run)) for run, row in zip(page.runs, rows, strict=True)
    ]
    waiting, waiting_count = _waiting(store, user, visibility)
    recent = store.runs(limit=MAX_RECENT, sort=Sort("end"), user=user, visibility=visibility)
    month = _first_of_month(now)
    totals, jobs = month_totals(store, user, month, now)
    return HomeReport(
        running=running,
        running_count=min(count.number, COUNT_LIMIT),
        waiting=waiting,
        waiting_count=waiting_count,
        recent=[row for row in job_rows(store, recent, now) if not row.running],
        month=month,
        totals=totals,
        jobs_of_month=jobs,
        fair_shares=[] if user is None else fair_shares(store, user),
    )


def _present_use(store: Store, run: StoredRun) -> tuple[float | None, int | None]:
    """Cores and memory in use at the last samples, summed over the nodes."""
    if run.last_seen is None or run.node_count > _MAX_NODES or store.external_series is not None:
        return None, None
    try:
        series = store.series(run.id, ("cpu.time", "memory.used"), since=run.last_seen - _RECENT)
    except TooLarge:
        return None, None
    cores, memory = [], []
    for node in series:
        times, used = node.times, node.columns.get("cpu.time")
        if used is not None and len(times) > 1 and times[-1] > times[-2]:
            cores.append(float(used[-1] - used[-2]) / float(times[-1] - times[-2]))
        resident = node.columns.get("memory.used")
        if resident is not None and len(resident):
            memory.append(float(resident[-1]))
    known = [value for value in cores if value == value and value >= 0]
    resident_known = [value for value in memory if value == value]
    return (
        sum(known) if known else None,
        round(sum(resident_known)) if resident_known else None,
    )


def _waiting(
    store: Store, user: str | None, visibility: Visibility
) -> tuple[list[WaitingJob], int]:
    records = pending_records(store)
    own = [
        record
        for record in records
        if user in (None, record.info.user)
        and visibility.includes(
            cluster=record.info.cluster,
            user=record.info.user,
            account=record.info.account,
            start=None,
        )
    ]
    # Those that are expected to start first, then by submission.
    own.sort(
        key=lambda record: (
            record.expected_start is None,
            record.expected_start or 0,
            record.info.submit or 0,
            record.info.job_id,
        )
    )
    queues: dict[tuple[str, str | None], list[int]] = {}
    for record in records:
        key = (record.info.cluster, record.info.partition)
        if record.priority is not None:
            queues.setdefault(key, []).append(record.priority)
    waiting = [_waiting_job(record, queues) for record in own[:MAX_WAITING]]
    return waiting, sum(count_tasks(record) for record in own)


def _waiting_job(record: JobRecord, queues: dict[tuple[str, str | None], list[int]]) -> WaitingJob:
    queue: Sequence[int] = queues.get((record.info.cluster, record.info.partition), ())
    position = None
    if record.priority is not None:
        position = 1 + sum(priority > record.priority for priority in queue)
    return WaitingJob(
        row=pending_row(record),
        reason=record.reason if record.reason not in ("", "None") else None,
        tasks=count_tasks(record),
        submit=record.info.submit,
        expected_start=record.expected_start,
        position=position,
        waiting_in_partition=len(queue),
    )


def fair_shares(store: Store, user: str) -> list[FairShare]:
    """The associations of a user as the scheduler reports them."""
    return [
        FairShare(each.cluster, each.account, each.share, each.usage_share, each.fair_share)
        for cluster in snapshot_clusters(store.database)
        for each in read_snapshot(store.database, cluster, "association", AssociationInfo)
        if each.user == user and each.fair_share is not None
    ]


def _first_of_month(now: int) -> int:
    today = datetime.fromtimestamp(now // SECOND, UTC)
    first = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(first.timestamp()) * SECOND
