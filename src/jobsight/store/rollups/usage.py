"""Queries of usage, grouped by any of the dimensions.

:func:`usage` reads the daily rollups. :func:`node_usage` groups by node and reads the executables,
since the rollups have no nodes: it counts complete runs by their start, and has no core or GPU
hours, since allocations are not known by node. Days are numbers since 1970 in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    Row,
    case,
    distinct,
    func,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy import (
    cast as sql_cast,
)

from jobsight.errors import ConfigError
from jobsight.store.rollups.shares import DAY, NOT_ATTRIBUTED, UNDETERMINED
from jobsight.store.schema.tables import (
    executables,
    paths,
    run_nodes,
    runs,
    software,
    software_by_day,
    usage_by_day,
)

Period: TypeAlias = Literal["day", "week", "month"]
PERIODS: Final = ("day", "week", "month")

_EPOCH: Final = date(1970, 1, 1)
OWNERS: Final = ("cluster", "user", "account", "partition")
NAMES: Final = ("software", "version", "local_version")
DIMENSIONS: Final = (*NAMES, *OWNERS, *PERIODS)
#: The kinds of CPU time without a row of software: without a name, and without an executable.
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
    #: Include software that the rules ignore.
    ignored: bool = False

    @property
    def names_software(self) -> bool:
        return bool({*self.by, *self.given(*NAMES[:2])} & {*NAMES})

    def given(self, *names: str) -> dict[str, str]:
        """The filters that were given."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class UsageKey(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The key of a group; parts that were not requested are left out."""

    #: "software", "undetermined" or "not attributed", if software was requested.
    kind: str | None = None
    software: str | None = None
    version: str | None = None
    local_version: str | None = None
    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None


class UsageRow(UsageKey, kw_only=True, omit_defaults=True):
    """One group and its usage."""

    node: str | None = None
    #: 2026-11-15, 2026-W46 or 2026-11.
    period: str | None = None
    #: Runs that started in the requested interval.
    jobs: int
    users: int
    executions: int
    cpu_hours: float
    #: Shares of the allocations, by CPU time.
    core_hours: float | None
    gpu_hours: float | None
    #: None if software was requested.
    memory_gib_hours: float | None = None
    #: The first and the last day of use.
    first: str
    last: str


class LeftOut(msgspec.Struct, frozen=True):
    """The hours of software that the rules ignore."""

    core_hours: float
    cpu_hours: float


def check(question: Question, allowed: tuple[str, ...] = DIMENSIONS) -> None:
    """Raise an error for a grouping that is not possible."""
    for name in question.by:
        if name not in (*DIMENSIONS, "node"):
            known = ", ".join((*DIMENSIONS, "node"))
            raise ConfigError(f"there is no grouping by {name!r}; expected {known}")
        if name not in allowed:
            raise ConfigError(
                f"complete runs are counted by node, which cannot be grouped by {name}"
            )
    if len({*question.by} & {*PERIODS}) > 1:
        raise ConfigError("expected at most one of day, week and month to group by")


def usage(connection: Connection, question: Question) -> list[UsageRow]:
    """The groups by period, then by decreasing core hours."""
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
    query = query.where(*_filters(question, table)).group_by(*_labels(columns))
    rows = [
        _usage_row(tuple(columns), row) for row in connection.execute(query) if row[-1] is not None
    ]
    return sorted(rows, key=_order)


def _runs(question: Question, table: FromClause) -> ColumnElement[int]:
    """The column that counts a run once in each group, by the finest requested name."""
    requested = {*question.by, *question.given(*NAMES[:2])}
    for name, column in _COUNTED_BY.items():
        if name in requested:
            return table.c[column]
    return table.c.runs


def _order(row: UsageRow) -> tuple[object, ...]:
    # Of equal usage, groups with a name come first.
    names = [getattr(row, name) or "" for name in (*NAMES, *OWNERS)]
    return row.period or "", -(row.core_hours or 0), -row.cpu_hours, not names[0], names


def left_out(connection: Connection, question: Question) -> LeftOut:
    """The hours of ignored software that a report leaves out."""
    if question.ignored or not question.names_software:
        return LeftOut(0, 0)
    table = software_by_day
    complete = msgspec.structs.replace(question, ignored=True)
    query = select(func.sum(table.c.core_time), func.sum(table.c.cpu_time))
    query = query.select_from(_joined(complete, table))
    core, cpu = connection.execute(
        query.where(*_filters(complete, table), software.c.ignored)
    ).one()
    return LeftOut(int(core or 0) / HOUR, int(cpu or 0) / HOUR)


def count_waiting(connection: Connection) -> int:
    """The number of stale runs, which changed since the last update of the rollups."""
    return connection.scalar(select(func.count()).select_from(runs).where(runs.c.stale)) or 0


def days_of(connection: Connection) -> tuple[int, int] | None:
    """The first and the last day in the rollups."""
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
    # By label: PostgreSQL does not recognise an expression with parameters that occurs twice.
    return [literal_column(f"key_{name}") for name in columns]


def name_column(name: str, owners: FromClause) -> ColumnElement[str]:
    """A part of a software name, with the user and project of the run substituted."""
    column = software.c["name" if name == "software" else name]
    with_user = func.replace(column, "%(user)s", owners.c.user)
    return func.replace(with_user, "%(project)s", owners.c.account)


def name_filters(
    question: Question, owners: FromClause, software_id: ColumnElement[int]
) -> list[ColumnElement[bool]]:
    """The conditions on software."""
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


def _usage_row(names: tuple[str, ...], row: Row[Any]) -> UsageRow:
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


NODE_DIMENSIONS: Final = ("node", *OWNERS, *NAMES)


def node_usage(connection: Connection, question: Question) -> list[UsageRow]:
    """The groups by decreasing CPU time; with software, the time that no executable accounts for
    is a separate row."""
    check(question, NODE_DIMENSIONS)
    seen = _seen(question)
    if not question.names_software:
        rows = _counted(connection, question.by, seen)
    else:
        rows = _by_software(connection, question, seen)
        if question.software in (None, KINDS[NOT_ATTRIBUTED]) and question.version is None:
            rows += _remainders(connection, question, seen)
    return sorted(rows, key=lambda row: (row.node or "", -row.cpu_hours))


def _seen(question: Question) -> FromClause:
    """The sightings of the requested runs."""
    owners = {name: func.coalesce(runs.c[name], "") for name in OWNERS}
    query = select(
        *(column.label(name) for name, column in owners.items()),
        run_nodes.c.node,
        run_nodes.c.id,
        run_nodes.c.run_id,
        run_nodes.c.cpu_time,
        runs.c.start,
    ).join(runs, runs.c.id == run_nodes.c.run_id)
    query = query.where(*(owners[name] == value for name, value in question.given(*OWNERS).items()))
    if question.since is not None:
        query = query.where(runs.c.start >= question.since * DAY)
    if question.until is not None:
        query = query.where(runs.c.start < question.until * DAY)
    return query.subquery("seen")


def _microseconds(cpu_time: ColumnElement[int]) -> ColumnElement[Any]:
    # The sum over years of a large cluster has to fit into 63 bits.
    return cpu_time / literal_column("1000", Integer)


def _count(executions: ColumnElement[Any]) -> ColumnElement[Any]:
    # A wrong number of one executable must not overflow 63 bits.
    return func.sum(sql_cast(executions, Float))


def _figures(seen: FromClause, cpu_time: ColumnElement[Any], executions: Any) -> list[Any]:
    return [
        func.count(distinct(seen.c.run_id)),
        func.count(distinct(seen.c.user)),
        func.sum(cpu_time),
        _count(executions),
        func.min(seen.c.start),
        func.max(seen.c.start),
    ]


def _counted(connection: Connection, by: Sequence[str], seen: FromClause) -> list[UsageRow]:
    """By the counters of the jobs; executions are counted separately."""
    columns = [seen.c[name] for name in by]
    cpu_time = _microseconds(seen.c.cpu_time)
    query = select(*columns, *_figures(seen, cpu_time, literal_column("0")))
    groups = connection.execute(query.group_by(*columns)).all()
    programs = (
        select(*columns, _count(executables.c.executions))
        .join(executables, executables.c.run_node_id == seen.c.id)
        .group_by(*columns)
    )
    executions = {tuple(row[:-1]): int(row[-1]) for row in connection.execute(programs)}
    rows = [_node_row(by, group) for group in groups if group[-1] is not None]
    for row, values in zip(rows, groups, strict=False):
        row.executions = executions.get(tuple(values[: len(by)]), 0)
    return rows


def _by_software(connection: Connection, question: Question, seen: FromClause) -> list[UsageRow]:
    columns: dict[str, ColumnElement[Any]] = {
        name: name_column(name, seen) if name in NAMES else seen.c[name] for name in question.by
    }
    columns["kind"] = func.coalesce(software.c.id * 0 + 1, literal_column(str(UNDETERMINED)))
    cpu_time = _microseconds(executables.c.cpu_time)
    labelled = [column.label(f"key_{name}") for name, column in columns.items()]
    query = (
        select(*labelled, *_figures(seen, cpu_time, executables.c.executions))
        .join(executables, executables.c.run_node_id == seen.c.id)
        .join(paths, paths.c.id == executables.c.path_id)
        .join(software, software.c.id == paths.c.software_id, isouter=True)
        .where(*name_filters(question, seen, func.coalesce(paths.c.software_id, UNDETERMINED)))
        .group_by(*(literal_column(f"key_{name}") for name in columns))
    )
    return [
        _node_row(tuple(columns), row) for row in connection.execute(query) if row[-1] is not None
    ]


def _remainders(connection: Connection, question: Question, seen: FromClause) -> list[UsageRow]:
    """The CPU time of the counters beyond all executables, by the groups without names."""
    named = func.coalesce(func.sum(_microseconds(executables.c.cpu_time)), 0)
    left = (
        select(
            *seen.c,
            (_microseconds(seen.c.cpu_time) - named).label("remainder"),
            func.count(executables.c.path_id).label("programs"),
        )
        .join(executables, executables.c.run_node_id == seen.c.id, isouter=True)
        .group_by(*seen.c)
        .subquery("remainders")
    )
    keys = [name for name in question.by if name not in NAMES]
    columns = [left.c[name] for name in keys]
    query = (
        select(*columns, *_figures(left, left.c.remainder, literal_column("0")))
        # A microsecond may be lost in each division above.
        .where(left.c.remainder > left.c.programs)
        .group_by(*columns)
    )
    rows = [_node_row(keys, row) for row in connection.execute(query) if row[-1] is not None]
    for row in rows:
        row.kind = KINDS[NOT_ATTRIBUTED]
    return rows


def _node_row(names: Sequence[str], row: Row[Any]) -> UsageRow:
    keys = dict(zip(names, row, strict=False))
    jobs, users, cpu, executions, first, last = row[len(names) :]
    if "kind" in keys:
        keys["kind"] = KINDS.get(keys["kind"], "software")
    return UsageRow(
        **keys,
        jobs=jobs,
        users=users,
        executions=int(executions or 0),
        cpu_hours=int(cpu or 0) / HOUR,
        core_hours=None,
        gpu_hours=None,
        first=date_of(day_of(first)).isoformat(),
        last=date_of(day_of(last)).isoformat(),
    )


def day_of(moment: int) -> int:
    """The day that a time in nanoseconds lies in."""
    return moment // DAY


def date_of(day: int) -> date:
    return _EPOCH + timedelta(days=day)


def number_of(when: date) -> int:
    return (when - _EPOCH).days


def today() -> int:
    return number_of(datetime.now(UTC).date())


def starts(period: Period, first: int, last: int) -> list[int]:
    """The first days of the periods that the days from ``first`` to ``last`` lie in."""
    result = [_start(period, date_of(first))]
    while (following := _next(period, result[-1])) <= date_of(last):
        result.append(following)
    return [number_of(start) for start in result]


def period_name(period: Period, day: int) -> str:
    """2026-11-15, 2026-W46 or 2026-11."""
    when = date_of(day)
    if period == "week":
        year, week, _ = when.isocalendar()
        return f"{year}-W{week:02d}"
    return when.strftime("%Y-%m") if period == "month" else when.isoformat()


def grouped(column: ColumnElement[int], bounds: Sequence[int]) -> ColumnElement[int]:
    """The first day of the period of each row, as SQL; both engines lack a calendar of days."""
    first: ColumnElement[int] = literal_column(str(bounds[0]), Integer)
    later = [(column >= bound, literal_column(str(bound), Integer)) for bound in bounds[:0:-1]]
    return case(*later, else_=first) if later else first


def _start(period: Period, day: date) -> date:
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _next(period: Period, start: date) -> date:
    if period == "month":
        return (start + timedelta(days=32)).replace(day=1)
    return start + timedelta(days=7 if period == "week" else 1)
