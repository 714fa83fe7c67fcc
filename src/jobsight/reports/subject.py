"""The report of several runs: an array, a heterogeneous job, a script, or a user, account or
cluster over a period.

:func:`array_report` reads the runs of the array, :func:`script_report` the newest runs of the same
work. :func:`period_report` reads the rollups, and for what those do not have a bounded number of
the newest runs; it never reads all runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import field

from jobsight.errors import StoreError
from jobsight.findings.costs import price
from jobsight.findings.finding import Cost
from jobsight.findings.reported import NO_PRICES, Amount, WorkEffect
from jobsight.model import JobInfo, RunReference
from jobsight.reports.build import JobRow, job_row
from jobsight.reports.pending import count_pending
from jobsight.reports.run_parts import name_of_run
from jobsight.reports.subject_findings import (
    MAX_SCRIPTS,
    FindingGroup,
    ScriptUse,
    findings_of_period,
    findings_of_rows,
    improvements,
    scripts_of,
)
from jobsight.store.findings.read import FindingFilter
from jobsight.store.findings.shown import ShownTo
from jobsight.store.history import (
    Work,
    WorkUse,
    count_samples,
    find_work,
    largest_works,
    work_of_run,
    works_of_key,
)
from jobsight.store.read.programs import UseOfRuns, use_of_runs
from jobsight.store.read.queries import Filters, StoredRun, run_filter
from jobsight.store.read.visibility import EVERYTHING, Visibility
from jobsight.store.rollups.shares import DAY, UNDETERMINED
from jobsight.store.rollups.usage import (
    KINDS,
    Question,
    UsageRow,
    count_waiting,
    day_of,
    days_of,
    number_of,
    usage,
)
from jobsight.store.store import Store
from jobsight.text import readable_path
from jobsight.util.outer import Time
from jobsight.util.units import format_bytes, format_duration, format_share

if TYPE_CHECKING:
    from jobsight.config.settings import PriceSettings
    from jobsight.store.database import Connection

#: The newest runs of a period whose states are counted and of which the largest are listed, those
#: whose use is distributed, and runs of an array.
MAX_COUNTED: Final = 100_000
MAX_DISTRIBUTED: Final = 2_000
MAX_TASKS: Final = 5_000
MAX_POINTS: Final = 2_000
#: Days of a period that is drawn by day, and by week; a longer one is drawn by month.
_DAILY: Final = 62
_WEEKLY: Final = 500
#: Rows of a list.
MAX_ROWS: Final = 10
#: Rows of a trend, and the lengths of their intervals in days: a day, a week, four weeks, a year.
MAX_TREND: Final = 13
_INTERVALS: Final = (1, 7, 28, 364)
#: Hexadecimal digits of the shortest key of a script.
MIN_KEY: Final = 8
#: Tasks without which nothing is an outlier, and how far from the quartiles and the median one is.
_FEWEST_TASKS: Final = 8
_FENCE: Final = 3.0
_LEAST_DIFFERENCE: Final = 0.2
_HOUR: Final = 3600 * 10**9

Kind: TypeAlias = Literal["array", "het", "script", "user", "account", "cluster"]
Period: TypeAlias = Literal["user", "account", "cluster"]


class Distribution(msgspec.Struct, kw_only=True):
    """The distribution of a figure over runs."""

    figure: Literal[
        "elapsed_seconds", "cpu_share", "memory_share", "memory_bytes", "gpu_share", "wait_seconds"
    ]
    #: The runs for which the figure is known.
    count: int
    minimum: float
    quartile: float
    median: float
    upper_quartile: float
    maximum: float


class Outlier(msgspec.Struct, kw_only=True):
    """A task that differs much from the others."""

    task: str
    run: str
    figure: str
    value: float
    median: float
    text: str


class SoftwareUse(msgspec.Struct, kw_only=True):
    """Software by the core hours that it held."""

    name: str
    jobs: int
    core_hours: float | None
    cpu_hours: float
    gpu_hours: float | None


class ProgramUse(msgspec.Struct, kw_only=True):
    """A program by its CPU time over all runs."""

    kind: Literal["executable", "path unknown"]
    #: Bytes that are not printable UTF-8 are written as \xNN.
    path: str
    #: The path is that of a mount namespace other than the node's, such as that of a container.
    own_namespace: bool
    runs: int
    executions: int
    failures: int
    cpu_hours: float
    #: The share of the CPU time of all programs of these runs.
    cpu_share: float | None
    gpu_hours: float | None
    #: The peak of the largest single process.
    peak_memory_bytes: int | None


class TrendRow(msgspec.Struct, kw_only=True):
    """The ended runs of one interval: how many, how many failed, and medians."""

    since: Time
    runs: int
    failed: int
    elapsed_seconds: float | None
    cpu_share: float | None
    memory_used_bytes: float | None
    memory_requested_bytes: float | None
    wait_seconds: float | None


class PeriodUse(msgspec.Struct, kw_only=True):
    """What was held and used in a day, week or month."""

    #: Its name, 2026-11-15, 2026-W46 or 2026-11, and its first day.
    period: str
    since: Time
    runs: int
    core_hours_held: float | None
    core_hours_used: float


class RunPoints(msgspec.Struct, kw_only=True):
    """Some runs as columns, to be drawn; the oldest first."""

    #: Seconds since 1970.
    start_seconds: list[float]
    #: Of an array.
    task: list[int | None]
    failed: list[bool]
    elapsed_seconds: list[float | None]
    memory_used_bytes: list[int | None]
    memory_requested_bytes: list[int | None]


class Measured(msgspec.Struct, kw_only=True):
    """How much of the runs was measured."""

    #: Ended runs that were read, and those of them whose CPU time is known.
    ended: int
    runs: int
    #: The share of the core hours of the ended runs that these held.
    core_share: float | None
    #: Samples that the store holds of all runs that were read.
    samples: int


class Totals(msgspec.Struct, kw_only=True):
    """What runs held and used."""

    core_hours_held: float | None
    core_hours_used: float | None
    memory_gib_hours_held: float | None = None
    gpu_hours_held: float | None = None
    gpu_hours_used: float | None = None
    #: Of the held hours, those for which the use is known.
    gpu_hours_measured: float | None = None
    gpu_energy_joules: float | None = None
    #: What was held, in the units of the site's price list.
    prices: list[Amount] = field(default_factory=list)

    @property
    def core_share(self) -> float | None:
        held, used = self.core_hours_held, self.core_hours_used
        return used / held if held and used is not None else None

    @property
    def gpu_share(self) -> float | None:
        measured, used = self.gpu_hours_measured, self.gpu_hours_used
        return used / measured if measured and used is not None else None


class SubjectReport(msgspec.Struct, kw_only=True):
    """What several runs held and used."""

    kind: Kind
    #: The id of the array or job, the key of the script, or the name of the user, account or
    #: cluster.
    subject: str
    name: str | None = None
    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    #: The period, or the first start and the last end.
    since: Time | None
    until: Time | None
    #: Runs that started in the period, or tasks that have started.
    runs: int
    states: dict[str, int]
    #: The newest runs that ``states`` counts.
    states_of: int
    #: Tasks that have ended, but whose nodes have not all sent their last figures.
    unreported: int | None = None
    #: The kinds of findings that cost most.
    findings: list[FindingGroup] = field(default_factory=list)
    #: Works of which a finding is gone since it was shown.
    improvements: list[WorkEffect] = field(default_factory=list)
    #: Scripts that held the most core time, with what would have fitted.
    scripts: list[ScriptUse] = field(default_factory=list)
    #: Of a script: its runs over time.
    trend: list[TrendRow] = field(default_factory=list)
    #: Of an array or a script: the newest runs that have ended.
    points: RunPoints | None = None
    #: Of a user, account or cluster: what was held and used by day, week or month.
    usage: list[PeriodUse] = field(default_factory=list)
    measured: Measured
    totals: Totals
    distributions: list[Distribution]
    #: Runs that held the most core time.
    largest: list[JobRow]
    software: list[SoftwareUse] = field(default_factory=list)
    #: By CPU time; of the newest runs.
    programs: list[ProgramUse] = field(default_factory=list)
    outliers: list[Outlier] = field(default_factory=list)
    #: Tasks that have not completed, in a state other than that.
    failures: list[JobRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether a run has not started or not ended."""
        return bool(self.states.get("PENDING") or self.states.get("RUNNING"))


def array_report(
    store: Store,
    job_id: int,
    *,
    cluster: str | None = None,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
    visibility: Visibility = EVERYTHING,
    clock: Callable[[], int] = time.time_ns,
) -> SubjectReport:
    """The report of an array or a heterogeneous job, or :class:`StoreError`."""
    now = clock()
    kind, runs = _runs_of_array(store, job_id, cluster, visibility)
    if not runs:
        raise StoreError(
            f"the store has no array and no heterogeneous job {job_id}"
            f"{f' of cluster {cluster}' if cluster else ''}"
        )
    notes = []
    if len(runs) > MAX_TASKS:
        notes.append(f"Only the {MAX_TASKS:,} newest runs are counted.")
    first = runs[0].info
    # The others are of an earlier job with the id.
    owned = [
        run
        for run in runs[:MAX_TASKS]
        if (run.info.cluster, run.info.user) == (first.cluster, first.user)
    ]
    latest: dict[int | None, StoredRun] = {}
    for run in owned:
        part = run.info.array_task_id if kind == "array" else run.info.het_offset
        latest.setdefault(part, run)
    counted = list(latest.values())
    rows_by_id = {run.id: job_row(run, now) for run in counted}
    rows = list(rows_by_id.values())
    incomplete = {str(run.run) for run in owned if run.open_nodes != 0}
    if len(rows) < len(owned):
        again = len(owned) - len(rows)
        notes.append(f"{again:,} earlier runs of requeued tasks are not counted.")
    states = Counter(row.state for row in rows)
    waiting = count_pending(store, job_id, first.cluster)
    if waiting:
        states["PENDING"] += waiting
    ends = [row.end for row in rows if row.end is not None]
    use = _use_of_runs(store, counted, notes)
    return SubjectReport(
        kind=kind,
        subject=str(job_id),
        name=first.name,
        cluster=first.cluster,
        user=first.user,
        account=first.account,
        since=min((row.start for row in rows if row.start is not None), default=None),
        until=max(ends) if len(ends) == len(rows) and not waiting else None,
        runs=len(rows),
        states=dict(states.most_common()),
        states_of=len(rows) + waiting,
        unreported=sum(not row.running and row.run in incomplete for row in rows),
        findings=findings_of_rows(store, rows_by_id, prices),
        scripts=_scripts_of_runs(store, counted, rows, now),
        measured=_measured(store, counted, rows),
        totals=_priced(_sum(rows), prices),
        distributions=_distributions(rows, counted),
        largest=sorted(rows, key=_held, reverse=True)[:MAX_ROWS],
        points=_points(counted, rows),
        software=_software_of_runs(use, first),
        programs=_programs(use),
        outliers=_outliers(rows) if kind == "array" else [],
        failures=_failures(rows),
        notes=notes,
    )


def _runs_of_array(
    store: Store, job_id: int, cluster: str | None, visibility: Visibility
) -> tuple[Kind, list[StoredRun]]:
    """The runs of the array or heterogeneous job with an id, the newest first: Slurm gives an id
    again after years, and the newest job with it is meant."""
    limit = MAX_TASKS + 1
    array = store.runs(limit=limit, array_job_id=job_id, cluster=cluster, visibility=visibility)
    het = store.runs(limit=limit, het_job_id=job_id, cluster=cluster, visibility=visibility)
    if het and (not array or het[0].start > array[0].start):
        return "het", het
    return "array", array


def _failures(rows: Iterable[JobRow]) -> list[JobRow]:
    return [row for row in rows if _has_failed(row)][:MAX_ROWS]


def _has_failed(row: JobRow) -> bool:
    return not row.running and row.state not in ("COMPLETED", "PENDING")


def _scripts_of_runs(
    store: Store, runs: Sequence[StoredRun], rows: Sequence[JobRow], now: int
) -> list[ScriptUse]:
    """The one work of some runs, with what would have fitted it."""
    work_id = next((id for run in runs[:1] if (id := work_of_run(store.database, run.id))), None)
    if work_id is None:
        return []
    held, failed = sum(map(_held, rows)), sum(map(_has_failed, rows))
    use = WorkUse(work_id, len(runs), held, failed, runs[0].id)
    return scripts_of(store, [use], now=now)


def find_works(store: Store, text: str) -> list[Work]:
    """The works that the key of a script, its beginning, or a run of it name."""
    if len(text) >= MIN_KEY and not text.isdecimal() and not set(text) - set("0123456789abcdef"):
        found = works_of_key(store.database, bytes.fromhex(text[: len(text) // 2 * 2]))
        found = [work for work in found if work.key.hex().startswith(text)]
        keys = {work.key for work in found}
        if len(keys) > 1:
            raise StoreError(
                f"{len(keys)} scripts begin with {text}; expected more digits of one, or a run"
            )
        if not found:
            raise StoreError(f"the store has no script {text}")
        return found
    stored = store.find(RunReference.parse(text))
    work_id = work_of_run(store.database, stored.id)
    work = None if work_id is None else find_work(store.database, work_id)
    if work is None:
        raise StoreError(
            f"the script of run {stored.run} is not known yet; `jobsight findings update` judges "
            "the runs of the store"
        )
    return [work]


def script_report(
    store: Store,
    works: Sequence[Work],
    *,
    since: int | None = None,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
    visibility: Visibility = EVERYTHING,
    clock: Callable[[], int] = time.time_ns,
) -> SubjectReport:
    """The report of a script: the runs of the same work over time. ``since`` is the first day."""
    now = clock()
    ids = [work.id for work in works]
    filters = Filters(work_ids=ids, visibility=visibility)
    if since is not None:
        filters["since"] = since * DAY
    runs = store.runs(limit=MAX_TASKS + 1, **filters)
    notes = []
    if len(runs) > MAX_TASKS:
        notes.append(f"Only the {MAX_TASKS:,} newest runs are counted.")
        runs = runs[:MAX_TASKS]
    users = sorted({work.user for work in works if work.user})
    clusters = sorted({work.cluster for work in works})
    if len(works) > 1:
        notes.append(f"The script is run by {len(users)} users on {len(clusters)} clusters.")
    rows_by_id = {run.id: job_row(run, now) for run in runs}
    rows = list(rows_by_id.values())
    ends = [row.end for row in rows if row.end is not None]
    first = works[0]
    use = _use_of_runs(store, runs[:MAX_DISTRIBUTED], notes)
    return SubjectReport(
        kind="script",
        subject=first.key.hex(),
        name=rows[0].name if rows else first.name,
        cluster=clusters[0] if len(clusters) == 1 else None,
        user=users[0] if len(users) == 1 else None,
        account=rows[0].account if rows else first.account or None,
        since=min((row.start for row in rows if row.start is not None), default=None),
        until=max(ends, default=None),
        runs=len(rows),
        states=dict(Counter(row.state for row in rows).most_common()),
        states_of=len(rows),
        findings=findings_of_rows(store, rows_by_id, prices),
        improvements=improvements(
            store, ShownTo(user=first.user if len(users) == 1 else ""), prices, {*ids}
        ),
        scripts=_scripts_of_runs(store, runs, rows, now),
        trend=_trend(runs, rows),
        points=_points(runs, rows),
        software=_software_of_runs(use, runs[0].info) if runs else [],
        programs=_programs(use),
        measured=_measured(store, runs[:MAX_DISTRIBUTED], rows),
        totals=_priced(_sum(rows), prices),
        distributions=_distributions(rows, runs),
        largest=sorted(rows, key=_held, reverse=True)[:MAX_ROWS],
        outliers=_outliers(rows),
        failures=_failures(rows),
        notes=notes,
    )


def _points(runs: Sequence[StoredRun], rows: Sequence[JobRow]) -> RunPoints:
    ended = [(run, row) for run, row in zip(runs, rows, strict=True) if not row.running]
    ended = sorted(ended[:MAX_POINTS], key=lambda pair: (pair[0].start, pair[0].id))
    return RunPoints(
        start_seconds=[run.start / 10**9 for run, _ in ended],
        task=[run.info.array_task_id for run, _ in ended],
        failed=[_has_failed(row) for _, row in ended],
        elapsed_seconds=[_elapsed(row) for _, row in ended],
        memory_used_bytes=[row.memory_used_peak_bytes for _, row in ended],
        memory_requested_bytes=[row.memory_requested_bytes for _, row in ended],
    )


def _period_uses(connection: Connection, question: Question, now: int) -> list[PeriodUse]:
    """What was held and used over time, by the daily rollups."""
    known = days_of(connection)
    if known is None:
        return []
    first = known[0] if question.since is None else max(question.since, known[0])
    last = min(question.until or day_of(now) + 1, known[1] + 1)
    days = last - first
    by = "day" if days <= _DAILY else "week" if days <= _WEEKLY else "month"
    rows = usage(connection, msgspec.structs.replace(question, by=(by,)))
    found = [
        PeriodUse(
            period=row.period or "",
            since=number_of(date.fromisoformat(_first_day(row.period or ""))) * DAY,
            runs=row.jobs,
            core_hours_held=row.core_hours,
            core_hours_used=row.cpu_hours,
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each.since)


def _first_day(period: str) -> str:
    """2026-11-15, 2026-W46 or 2026-11 as a date."""
    return period if len(period) != 7 else f"{period}-01"


def _trend(runs: Sequence[StoredRun], rows: Sequence[JobRow]) -> list[TrendRow]:
    """The ended runs by interval: the shortest of which there are not too many."""
    ended = [(run, row) for run, row in zip(runs, rows, strict=True) if not row.running]
    if not ended:
        return []
    days = [run.start // DAY for run, _ in ended]
    span = max(days) - min(days) + 1
    interval = next((each for each in _INTERVALS if span <= each * MAX_TREND), _INTERVALS[-1])
    groups: dict[int, list[tuple[StoredRun, JobRow]]] = {}
    for day, pair in zip(days, ended, strict=True):
        # Days since 1970 begin with a Thursday; weeks begin with a Monday.
        groups.setdefault((day + 3) // interval * interval - 3, []).append(pair)
    return [_trend_row(day, groups[day]) for day in sorted(groups)[-MAX_TREND:]]


def _trend_row(day: int, pairs: Sequence[tuple[StoredRun, JobRow]]) -> TrendRow:
    rows = [row for _, row in pairs]
    return TrendRow(
        since=day * DAY,
        runs=len(rows),
        failed=sum(map(_has_failed, rows)),
        elapsed_seconds=_median(_elapsed(row) for row in rows),
        cpu_share=_median(row.cpu_share for row in rows),
        memory_used_bytes=_median(row.memory_used_peak_bytes for row in rows),
        memory_requested_bytes=_median(row.memory_requested_bytes for row in rows),
        wait_seconds=_median(_wait(run) for run, _ in pairs),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None


def _wait(run: StoredRun) -> float | None:
    submit = run.info.submit
    return None if submit is None or run.start < submit else (run.start - submit) / 10**9


def _measured(store: Store, runs: Sequence[StoredRun], rows: Sequence[JobRow]) -> Measured:
    ended = [row for row in rows if not row.running]
    known = [row for row in ended if row.cpu_time is not None]
    held = sum(map(_held, ended))
    return Measured(
        ended=len(ended),
        runs=len(known),
        core_share=sum(map(_held, known)) / held if held else None,
        samples=count_samples(store.database, [run.id for run in runs]),
    )


def _priced(totals: Totals, prices: Mapping[str, PriceSettings]) -> Totals:
    memory, energy = totals.memory_gib_hours_held, totals.gpu_energy_joules
    held = Cost(
        core_hours=totals.core_hours_held,
        gpu_hours=totals.gpu_hours_held,
        memory_gb_hours=None if memory is None else memory * 2**30 / 1e9,
        energy_kwh=None if energy is None else energy / 3.6e6,
    )
    totals.prices = price(held, prices)
    return totals


def period_report(
    store: Store,
    kind: Period,
    name: str,
    *,
    since: int | None,
    until: int | None = None,
    prices: Mapping[str, PriceSettings] = NO_PRICES,
    clock: Callable[[], int] = time.time_ns,
) -> SubjectReport:
    """The report of a user, account or cluster. ``since`` is the first day and ``until`` the one
    after the last, as numbers since 1970 in UTC."""
    now = clock()
    filters = Filters()
    question = Question(by=(), since=since, until=until)
    # Findings for staff are those of the system: a cluster's.
    audience = None if kind == "cluster" else "user"
    found = FindingFilter(since=since, until=until, audience=audience)
    if kind == "user":
        filters["user"] = name
        question = msgspec.structs.replace(question, user=name)
        found, owner = found._replace(user=name), ShownTo(user=name)
    elif kind == "account":
        filters["account"] = name
        question = msgspec.structs.replace(question, account=name)
        found, owner = found._replace(account=name), ShownTo(account=name)
    else:
        filters["cluster"] = name
        question = msgspec.structs.replace(question, cluster=name)
        found, owner = found._replace(cluster=name), ShownTo(cluster=name)
    if since is not None:
        filters["since"] = since * DAY
    if until is not None:
        filters["until"] = until * DAY
    with store.database.read() as connection:
        totals = next(iter(usage(connection, question)), None)
        software = usage(connection, msgspec.structs.replace(question, by=("software",)))
        stale = count_waiting(connection, name if kind == "cluster" else None)
        over_time = _period_uses(connection, question, now)
    states = store.count_states(MAX_COUNTED, **filters)
    runs = store.runs(limit=MAX_DISTRIBUTED, **filters)
    newest = [job_row(run, now) for run in runs]
    works = largest_works(store.database, run_filter(**filters), MAX_COUNTED, MAX_SCRIPTS)
    counted = sum(states.values())
    notes = []
    if counted >= MAX_COUNTED:
        notes.append(f"States and largest runs are of the {MAX_COUNTED:,} newest runs.")
    if len(newest) >= MAX_DISTRIBUTED:
        notes.append(f"Quartiles are of the {MAX_DISTRIBUTED:,} newest runs.")
    if stale.pending:
        notes.append(
            f"{stale.pending:,} runs of the store are not in the daily rollups yet; the hours are "
            "without them."
        )
    use = _use_of_runs(store, runs, notes)
    return SubjectReport(
        kind=kind,
        subject=name,
        since=None if since is None else since * DAY,
        until=now if until is None else until * DAY,
        runs=max(counted, 0 if totals is None else totals.jobs),
        states=dict(sorted(states.items(), key=lambda item: -item[1])),
        states_of=counted,
        findings=findings_of_period(store, found, prices),
        improvements=improvements(store, owner, prices, since=0 if since is None else since * DAY),
        scripts=scripts_of(store, works, now=now),
        usage=over_time,
        measured=_measured(store, runs, newest),
        totals=_priced(
            _from_rollups(totals, any(row.cpu_time is not None for row in newest)), prices
        ),
        distributions=_distributions(newest, runs),
        software=[_software(row) for row in software[:MAX_ROWS]],
        programs=_programs(use),
        largest=[job_row(run, now) for run in store.largest_runs(MAX_COUNTED, MAX_ROWS, **filters)],
        notes=notes,
    )


def month_totals(store: Store, user: str | None, since: int, now: int) -> tuple[Totals, int]:
    """What a user, or everybody, has held and used since a time, and in how many runs: the days up
    to now of the daily rollups."""
    question = Question(by=(), since=since // DAY, until=now // DAY + 1, user=user)
    with store.database.read() as connection:
        row = next(iter(usage(connection, question)), None)
    return _from_rollups(row, measured=True), 0 if row is None else row.jobs


def _from_rollups(row: UsageRow | None, measured: bool) -> Totals:
    """The rollups do not tell what was never measured from what used nothing."""
    if row is None:
        return Totals(core_hours_held=None, core_hours_used=None)
    totals = Totals(
        core_hours_held=row.core_hours,
        core_hours_used=row.cpu_hours if row.cpu_hours or measured else None,
        memory_gib_hours_held=row.memory_gib_hours,
    )
    if row.gpu_hours:
        totals.gpu_hours_held = row.gpu_hours
        totals.gpu_hours_measured = row.gpu_measured_hours
        totals.gpu_hours_used = row.gpu_used_hours
        totals.gpu_energy_joules = row.gpu_energy_joules
    return totals


def _software(row: UsageRow) -> SoftwareUse:
    return SoftwareUse(
        name=row.software or row.kind or "",
        jobs=row.jobs,
        core_hours=row.core_hours,
        cpu_hours=row.cpu_hours,
        gpu_hours=row.gpu_hours,
    )


def _use_of_runs(store: Store, runs: Sequence[StoredRun], notes: list[str]) -> UseOfRuns:
    """The programs and software of some runs; a note if the newest of them only were read."""
    use = use_of_runs(store.database, [run.id for run in runs], MAX_ROWS)
    if use.runs < len(runs):
        notes.append(f"Programs are of the {use.runs:,} newest runs.")
    return use


def _programs(use: UseOfRuns) -> list[ProgramUse]:
    return [
        ProgramUse(
            kind="executable" if each.path_known else "path unknown",
            path=readable_path(each.path),
            own_namespace=each.own_namespace,
            runs=each.runs,
            executions=each.executions,
            failures=each.failures,
            cpu_hours=each.cpu_time / _HOUR,
            cpu_share=each.cpu_time / use.cpu_time if use.cpu_time else None,
            gpu_hours=each.gpu_time / _HOUR if each.gpu_time else None,
            peak_memory_bytes=each.peak_memory or None,
        )
        for each in use.programs
    ]


def _software_of_runs(use: UseOfRuns, info: JobInfo) -> list[SoftwareUse]:
    """The software of one user's runs; nothing if no rule names any of it."""
    if not any(each.name for each in use.software):
        return []
    return [
        SoftwareUse(
            name=name_of_run(each.name, info) or KINDS[UNDETERMINED],
            jobs=each.runs,
            # The rollups, which divide it, are not by run.
            core_hours=None,
            cpu_hours=each.cpu_time / _HOUR,
            gpu_hours=each.gpu_time / _HOUR if each.gpu_time else None,
        )
        for each in use.software
    ]


def _held(row: JobRow) -> float:
    return float(row.requested_cpus or 0) * (row.elapsed or 0)


def _sum(rows: Sequence[JobRow]) -> Totals:
    used = [row.cpu_time for row in rows if row.cpu_time is not None]
    memory = [
        row.memory_requested_bytes * row.elapsed
        for row in rows
        if row.memory_requested_bytes is not None and row.elapsed is not None
    ]
    totals = Totals(
        core_hours_held=sum(map(_held, rows)) / _HOUR,
        core_hours_used=sum(used) / _HOUR if used else None,
        memory_gib_hours_held=sum(memory) / _HOUR / 2**30 if memory else None,
    )
    if any(row.gpu_held for row in rows):
        known = [row for row in rows if row.gpu_share is not None]
        totals.gpu_hours_held = sum(row.gpu_held or 0 for row in rows) / _HOUR
        totals.gpu_hours_used = sum(row.gpu_used or 0 for row in known) / _HOUR
        shares = ((row.gpu_used or 0) / row.gpu_share for row in known if row.gpu_share)
        totals.gpu_hours_measured = sum(shares) / _HOUR
        energies = [each for row in rows if (each := row.gpu_energy_joules) is not None]
        totals.gpu_energy_joules = sum(energies) if energies else None
    return totals


def _distributions(rows: Sequence[JobRow], runs: Iterable[StoredRun]) -> list[Distribution]:
    """Of the runs that have ended: a run that has just begun says nothing of its use. All of them
    have waited."""
    ended = [row for row in rows if not row.running]
    figures: dict[str, list[float]] = {
        "elapsed_seconds": [row.elapsed / 10**9 for row in ended if row.elapsed is not None],
        "cpu_share": [row.cpu_share for row in ended if row.cpu_share is not None],
        "memory_share": [row.memory_share for row in ended if row.memory_share is not None],
        "memory_bytes": [
            float(row.memory_used_peak_bytes)
            for row in ended
            if row.memory_used_peak_bytes is not None
        ],
        "gpu_share": [row.gpu_share for row in ended if row.gpu_share is not None],
        "wait_seconds": [wait for run in runs if (wait := _wait(run)) is not None],
    }
    return [_distribution(name, values) for name, values in figures.items() if values]


def _distribution(name: str, values: list[float]) -> Distribution:
    low, middle, high = _quartiles(values)
    return Distribution(
        figure=name,  # type: ignore[arg-type]
        count=len(values),
        minimum=min(values),
        quartile=low,
        median=middle,
        upper_quartile=high,
        maximum=max(values),
    )


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _outliers(rows: Sequence[JobRow]) -> list[Outlier]:
    """Tasks outside of three times the distance of the quartiles, which also differ from the median
    by a fifth; the farthest first."""
    ended = [row for row in rows if not row.running]
    found: list[tuple[float, Outlier]] = []
    for name, value_of, text_of in _COMPARED:
        values = [(row, value) for row in ended if (value := value_of(row)) is not None]
        if len(values) < _FEWEST_TASKS:
            continue
        low, middle, high = _quartiles([value for _, value in values])
        allowed = max(_FENCE * (high - low), _LEAST_DIFFERENCE * middle)
        for row, value in values:
            distance = max(low - value, value - high)
            if distance <= allowed:
                continue
            text = f"{name} {text_of(value)}, median {text_of(middle)}"
            outlier = Outlier(
                task=row.display_id, run=row.run, figure=name, value=value, median=middle, text=text
            )
            found.append((distance / (middle or 1.0), outlier))
    found.sort(key=lambda item: -item[0])
    return [outlier for _, outlier in found[:MAX_ROWS]]


def _elapsed(row: JobRow) -> float | None:
    return None if row.elapsed is None else row.elapsed / 10**9


def _memory(row: JobRow) -> float | None:
    used = row.memory_used_peak_bytes
    return None if used is None else float(used)


_COMPARED: Final[
    tuple[tuple[str, Callable[[JobRow], float | None], Callable[[float], str]], ...]
] = (
    ("elapsed", _elapsed, lambda value: format_duration(round(value * 10**9))),
    ("CPU", lambda row: row.cpu_share, format_share),
    ("memory", _memory, format_bytes),
)
