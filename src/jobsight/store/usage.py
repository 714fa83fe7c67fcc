"""Who used what, from the sums by day: one question, rows by any of their keys."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    distinct,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from jobsight.errors import ConfigError
from jobsight.store.contributions import NOT_ATTRIBUTED, UNDETERMINED
from jobsight.store.derived import software_by_day, usage_by_day
from jobsight.store.periods import PERIODS, Period, date_of, grouped, period_name, starts
from jobsight.store.tables import runs, software

OWNERS: Final = ("cluster", "user", "account", "partition")
NAMES: Final = ("software", "version", "local_version")
DIMENSIONS: Final = (*NAMES, *OWNERS, *PERIODS)
#: What stands for software that has no row: CPU time without a name, and without an executable.
KINDS: Final = {UNDETERMINED: "undetermined", NOT_ATTRIBUTED: "not attributed"}

#: The finest first.
_COUNTED_BY: Final = {
    "local_version": "local_version_runs",
    "version": "version_runs",
    "software": "name_runs",
}

#: Microseconds.
HOUR: Final = 3_600_000_000
#: MiB seconds in a GiB hour.
_GIB_HOUR: Final = 1024 * 3600


class Question(msgspec.Struct, kw_only=True, frozen=True):
    """What to group by, and which rows count. Days are numbers since 1970 in UTC."""

    by: tuple[str, ...] = ("software",)
    #: The first day and the one after the last.
    since: int | None = None
    until: int | None = None
    software: str | None = None
    version: str | None = None
    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    #: Count software that the rules ignore, too.
    ignored: bool = False

    @property
    def names_software(self) -> bool:
        return bool({*self.by, *self.given(*NAMES[:2])} & {*NAMES})

    def given(self, *names: str) -> dict[str, str]:
        """The filters that were given."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class UsageKey(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a group has in common; keys that were not asked for are left out."""

    #: "software", "undetermined" or "not attributed", where software was asked for.
    kind: str | None = None
    software: str | None = None
    version: str | None = None
    local_version: str | None = None
    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None


class UsageRow(UsageKey, kw_only=True, omit_defaults=True):
    """One group and what it used."""

    node: str | None = None
    #: 2026-11-15, 2026-W46 or 2026-11.
    period: str | None = None
    #: Runs that began in the time asked for.
    jobs: int
    users: int
    executions: int
    cpu_hours: float
    #: Shares of what was allocated, by CPU time.
    core_hours: float | None
    gpu_hours: float | None
    #: Only where no software was asked for.
    memory_gib_hours: float | None = None
    #: The first and the last day of use.
    first: str
    last: str


class LeftOut(msgspec.Struct, frozen=True):
    """What the rules ignore, and a report therefore leaves out."""

    core_hours: float
    cpu_hours: float


def check(question: Question, allowed: tuple[str, ...] = DIMENSIONS) -> None:
    """Refuse what cannot be grouped by."""
    for name in question.by:
        if name not in (*DIMENSIONS, "node"):
            known = ", ".join((*DIMENSIONS, "node"))
            raise ConfigError(f"there is no grouping by {name!r}; right: {known}")
        if name not in allowed:
            raise ConfigError(f"by node whole runs are counted, which cannot be grouped by {name}")
    if len({*question.by} & {*PERIODS}) > 1:
        raise ConfigError("one of day, week and month is enough to group by")


def usage(connection: Connection, question: Question) -> list[UsageRow]:
    """The groups, in the order of time, the most core hours first."""
    check(question)
    table = software_by_day if question.names_software else usage_by_day
    columns = _group_columns(connection, question, table)
    figures = [
        func.sum(_runs(question, table)),
        func.count(distinct(table.c.user)),
        func.sum(table.c.cpu_time),
        func.sum(table.c.core_time),
        func.sum(table.c.gpu_time),
        func.sum(table.c.executions),
        literal(None) if question.names_software else func.sum(table.c.memory_time),
        func.min(table.c.day),
        func.max(table.c.day),
    ]
    query = select(*columns.values(), *figures).select_from(_joined(question, table))
    found = connection.execute(query.where(*_filters(question, table)).group_by(*_labels(columns)))
    rows = [_row(tuple(columns), row) for row in found if row[-1] is not None]
    return sorted(rows, key=_order)


def _runs(question: Question, table: FromClause) -> ColumnElement[int]:
    """The column that counts a run once in each group, by the finest name that is asked for."""
    asked = {*question.by, *question.given(*NAMES[:2])}
    for name, column in _COUNTED_BY.items():
        if name in asked:
            return table.c[column]
    return table.c.runs


def _order(row: UsageRow) -> tuple[object, ...]:
    # What has no name comes after what has one, where both used the same.
    names = [getattr(row, name) or "" for name in (*NAMES, *OWNERS)]
    return row.period or "", -(row.core_hours or 0), -row.cpu_hours, not names[0], names


def left_out(connection: Connection, question: Question) -> LeftOut:
    """The hours of software that the rules ignore, where a report does not show them."""
    if question.ignored or not question.names_software:
        return LeftOut(0, 0)
    table = software_by_day
    whole = msgspec.structs.replace(question, ignored=True)
    query = select(func.sum(table.c.core_time), func.sum(table.c.cpu_time))
    query = query.select_from(_joined(whole, table))
    core, cpu = connection.execute(query.where(*_filters(whole, table), software.c.ignored)).one()
    return LeftOut(int(core or 0) / HOUR, int(cpu or 0) / HOUR)


def count_waiting(connection: Connection) -> int:
    """Runs that have changed since they were summed up."""
    return connection.scalar(select(func.count()).select_from(runs).where(runs.c.stale)) or 0


def days_of(connection: Connection) -> tuple[int, int] | None:
    """The first and the last day that the sums know."""
    first, last = connection.execute(
        select(func.min(usage_by_day.c.day), func.max(usage_by_day.c.day))
    ).one()
    return None if first is None else (first, last)


def _joined(question: Question, table: FromClause) -> FromClause:
    if not question.names_software:
        return table
    return table.join(software, software.c.id == table.c.software_id, isouter=True)


def _group_columns(
    connection: Connection, question: Question, table: FromClause
) -> dict[str, ColumnElement[Any]]:
    columns: dict[str, ColumnElement[Any]] = {}
    for name in question.by:
        if name in OWNERS:
            columns[name] = table.c[name]
        elif name in NAMES:
            columns[name] = name_column(name, table)
        elif name == "day":
            columns[name] = table.c.day
        else:
            first, last = days_of(connection) or (0, 0)
            first = first if question.since is None else max(first, question.since)
            last = last if question.until is None else min(last, question.until - 1)
            bounds = starts(cast(Period, name), first, max(first, last))
            columns[name] = grouped(table.c.day, bounds)
    if question.names_software and {*question.by} & {*NAMES}:
        columns["kind"] = func.coalesce(software.c.id * 0 + 1, table.c.software_id)
    return {name: column.label(f"key_{name}") for name, column in columns.items()}


def _labels(columns: dict[str, ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    # By the labels: PostgreSQL takes an expression with parameters for another one in each place.
    return [literal_column(f"key_{name}") for name in columns]


def name_column(name: str, owners: FromClause) -> ColumnElement[str]:
    """A part of a software's name, with the run's user and project in their places."""
    column = software.c["name" if name == "software" else name]
    with_user = func.replace(column, "%(user)s", owners.c.user)
    return func.replace(with_user, "%(project)s", owners.c.account)


def name_filters(
    question: Question, owners: FromClause, software_id: ColumnElement[int]
) -> list[ColumnElement[bool]]:
    """What a question says of software."""
    filters: list[ColumnElement[bool]] = []
    if question.software is not None:
        ids = [id for id, kind in KINDS.items() if kind == question.software]
        named = name_column("software", owners) == question.software
        filters.append(or_(named, software_id.in_(ids)) if ids else named)
    if question.version is not None:
        filters.append(name_column("version", owners) == question.version)
    if not question.ignored:
        filters.append(or_(software.c.id.is_(None), ~software.c.ignored))
    return filters


def _filters(question: Question, table: FromClause) -> list[ColumnElement[bool]]:
    filters = [table.c[name] == value for name, value in question.given(*OWNERS).items()]
    if question.since is not None:
        filters.append(table.c.day >= question.since)
    if question.until is not None:
        filters.append(table.c.day < question.until)
    if question.names_software:
        filters += name_filters(question, table, table.c.software_id)
    return filters


def _row(names: tuple[str, ...], row: Row[Any]) -> UsageRow:
    keys = dict(zip(names, row, strict=False))
    jobs, users, cpu, core, gpu, executions, memory, first, last = row[len(names) :]
    kind = keys.pop("kind", None)
    if kind is not None:
        keys["kind"] = KINDS.get(kind, "software")
    for period in PERIODS:
        if period in keys:
            keys["period"] = period_name(period, keys.pop(period))
    return UsageRow(
        **keys,
        jobs=int(jobs),
        users=int(users),
        executions=int(executions),
        cpu_hours=int(cpu) / HOUR,
        core_hours=int(core) / HOUR,
        gpu_hours=int(gpu) / HOUR,
        memory_gib_hours=None if memory is None else int(memory) / _GIB_HOUR,
        first=date_of(first).isoformat(),
        last=date_of(last).isoformat(),
    )
