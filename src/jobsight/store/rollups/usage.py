"""Queries of usage, grouped by any of the dimensions.

:func:`usage` reads the rollups by month, and those by day for the days before and after complete
months. :func:`node_usage` groups by node and reads the executables, since the rollups have no
nodes: it counts complete runs by their start, and has no core hours, since allocations are not
known by node; GPU hours are those of the GPUs that the nodes reported. Days are numbers since 1970
in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    Row,
    Text,
    case,
    distinct,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    union_all,
)
from sqlalchemy import (
    cast as sql_cast,
)

from jobsight.errors import ConfigError
from jobsight.store.dead_letters import ROLLUP
from jobsight.store.read import pseudonyms, viewed
from jobsight.store.rollups.shares import (
    DAY,
    NOT_ATTRIBUTED,
    OTHER,
    UNDETERMINED,
    first_day,
    month_of,
)
from jobsight.store.schema.tables import (
    dead_letters,
    executables,
    gpus,
    paths,
    run_nodes,
    runs,
    software,
    software_by_day,
    software_by_month,
    usage_by_day,
    usage_by_month,
)

Period: TypeAlias = Literal["day", "week", "month"]
PERIODS: Final = ("day", "week", "month")

_EPOCH: Final = date(1970, 1, 1)
OWNERS: Final = ("cluster", "user", "account", "partition")
NAMES: Final = ("software", "version", "local_version")
DIMENSIONS: Final = (*NAMES, *OWNERS, *PERIODS)
#: The kinds of CPU time without a row of software: without a name, without an executable, and of
#: the executables of a run beyond its largest.
KINDS: Final = {
    UNDETERMINED: "undetermined",
    NOT_ATTRIBUTED: "not attributed",
    OTHER: "other software",
}

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
    #: Shares of the allocations, by CPU time; of GPUs by GPU time if that is known.
    core_hours: float | None
    gpu_hours: float | None
    #: GPU hours used: of the multiprocessors where they are known, else the utilization. Of the
    #: held hours, those for which the use is known, and those of them by multiprocessors.
    gpu_used_hours: float | None = None
    gpu_measured_hours: float | None = None
    gpu_profiled_hours: float | None = None
    gpu_energy_joules: float | None = None
    #: None if software was requested.
    memory_gib_hours: float | None = None
    #: The first and the last day of use.
    first: str
    last: str


class GpuUsage(NamedTuple):
    """The GPUs of all runs of a partition."""

    cluster: str
    #: Empty if it is not known.
    partition: str
    held_seconds: float
    measured_seconds: float
    used_seconds: float
    energy_joules: float


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
    if pseudonyms.is_active() and question.given("user", "account"):
        # Whoever sees pseudonyms would find out whose they are.
        return []
    source = _summed(connection, question)
    columns = _group_columns(question, source.rows)
    table = source.rows.c
    query = select(
        *columns.values(),
        func.sum(table.runs),
        func.count(distinct(table.user)),
        *(func.sum(table[name]) for name in _TIMES),
        literal(None) if question.names_software else func.sum(table.memory_time),
        func.min(table.first),
        func.max(table.last),
    ).select_from(_joined(question, source.rows))
    if question.names_software:
        query = query.where(*name_filters(question, source.rows, table.software_id))
    query = query.group_by(*_labels(columns))
    rows = [
        _usage_row(tuple(columns), tuple(row), source.by_month)
        for row in connection.execute(query)
        if row[-1] is not None
    ]
    viewed.note(question.user if rows else None)
    return sorted(rows, key=_order)


def gpu_usage(connection: Connection, most: int) -> list[GpuUsage]:
    """The GPUs of all runs by cluster and partition. Nodes may name partitions without bound: those
    with the most GPU time are listed, and the others of a cluster are one row, "other"."""
    table = usage_by_month.c
    figures = (table.gpu_time, table.gpu_measured_time, table.gpu_used_time, table.gpu_energy)
    query = (
        select(table.cluster, table.partition, *map(total, figures))
        .where(or_(table.gpu_time > 0, table.gpu_energy > 0))
        .group_by(table.cluster, table.partition)
    )
    rows = sorted(map(tuple, connection.execute(query)), key=lambda row: (-row[2], row[:2]))
    sums: dict[tuple[str, str], list[float]] = {}
    for number, (cluster, partition, *values) in enumerate(rows):
        key = (cluster, partition if number < most else _OTHER_PARTITIONS)
        known = sums.setdefault(key, [0.0] * len(values))
        sums[key] = [before + value for before, value in zip(known, values, strict=True)]
    return [
        # Microseconds, and millijoules.
        GpuUsage(*key, held / 1e6, measured / 1e6, used / 1e6, energy / 1e3)
        for key, (held, measured, used, energy) in sorted(sums.items())
    ]


_OTHER_PARTITIONS: Final = "other"
_TIMES: Final = (
    *("cpu_time", "core_time", "gpu_time", "executions"),
    *("gpu_measured_time", "gpu_profiled_time", "gpu_used_time", "gpu_energy"),
)
#: The bits of the days of a month; a month and its days are one number, ordered by time.
_MONTH_BITS: Final = 31


class _Source(NamedTuple):
    """The rows of the rollups for a question, without the keys that it does not need."""

    rows: FromClause
    #: Whether ``first``, ``last`` and the period are months with the bits of days; else days.
    by_month: bool


def _summed(
    connection: Connection, question: Question, *filters: Callable[[FromClause], Any]
) -> _Source:
    """The sums of a question by its keys and users, before they get names.

    Most rows have the same few keys: the names of software are joined and compared after that.
    """
    use_memory(connection)
    parts, by_month = _parts(connection, question)
    keys: list[str] = [name for name in OWNERS if name in ("user", *question.by)]
    if question.names_software:
        if "account" not in keys and _names_projects(connection):
            keys.append("account")
        keys.insert(0, "software_id")
    if {*question.by} & {*PERIODS}:
        keys.append("period")
    times = _TIMES if question.names_software else (*_TIMES, "memory_time")
    selects = [
        select(
            *(part.period.label(name) if name == "period" else part.table.c[name] for name in keys),
            _runs(question, part.table).label("runs"),
            *(part.table.c[name] for name in times),
            part.first.label("first"),
            part.last.label("last"),
        ).where(
            *part.condition,
            *_owner_filters(question, part.table),
            *(filter(part.table) for filter in (*_software_filters(question), *filters)),
        )
        for part in parts
    ]
    every = (selects[0] if len(selects) == 1 else union_all(*selects)).subquery("parts")
    query = select(
        *(every.c[name] for name in keys),
        func.sum(every.c.runs).label("runs"),
        *(total(every.c[name]).label(name) for name in times),
        func.min(every.c.first).label("first"),
        func.max(every.c.last).label("last"),
    ).group_by(*(every.c[name] for name in keys))
    return _Source(query.subquery("summed"), by_month)


def use_memory(connection: Connection) -> None:
    """Let PostgreSQL group in memory, for this transaction: by default it sorts on disk what it
    expects to need more than 4 MB."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL work_mem = '64MB'"))


class _Part(NamedTuple):
    """Some rows of one table of rollups."""

    table: FromClause
    condition: list[ColumnElement[bool]]
    #: The first and the last day, and the period, as :class:`_Source` has them.
    first: ColumnElement[int]
    last: ColumnElement[int]
    period: ColumnElement[int]


def _parts(connection: Connection, question: Question) -> tuple[list[_Part], bool]:
    """The complete months of a question from the rollups by month, the days before and after them
    from those by day. Days and weeks are read by day."""
    named = question.names_software
    by_day, by_month = (
        (software_by_day, software_by_month) if named else (usage_by_day, usage_by_month)
    )
    bounds = days_of(connection)
    first, last = bounds or (0, 0)
    since = first if question.since is None else max(first, question.since)
    until = last + 1 if question.until is None else min(last + 1, question.until)
    periods = [name for name in ("day", "week") if name in question.by]
    if bounds is None or since >= until or periods:
        period: ColumnElement[int] = by_day.c.day
        if "week" in periods and since < until:
            period = grouped(by_day.c.day, starts("week", since, until - 1))
        days = [by_day.c.day >= since, by_day.c.day < until]
        return [_Part(by_day, days, by_day.c.day, by_day.c.day, period)], False
    # Months that begin within the time, and those that end within it or have no later day.
    begin = month_of(since) + (since != first and since != first_day(month_of(since)))
    end = month_of(until) + (until > last and until != first_day(month_of(until)))
    parts = []
    if begin < end:
        month: ColumnElement[int] = by_month.c.month
        condition = [month >= begin, month < end]
        first_code = _code(month, by_month.c.days.bitwise_and(-by_month.c.days))
        parts.append(_Part(by_month, condition, first_code, last_code(by_month), month))
        ranges = [(since, first_day(begin)), (first_day(end), until)]
    else:
        ranges = [(since, min(until, first_day(begin))), (max(since, first_day(begin)), until)]
    for start, stop in ranges:
        if start < stop:
            number = month_of(start)
            month = literal_column(str(number), Integer)
            bit = literal_column("1", BigInteger).bitwise_lshift(by_day.c.day - first_day(number))
            code = _code(month, bit)
            condition = [by_day.c.day >= start, by_day.c.day < stop]
            parts.append(_Part(by_day, condition, code, code, month))
    return parts, True


def _code(month: ColumnElement[int], bits: ColumnElement[int]) -> ColumnElement[int]:
    return month * literal_column(str(2**_MONTH_BITS), BigInteger) + bits


def last_code(table: FromClause) -> ColumnElement[int]:
    """A month and its days as one number, from which :func:`day_of_code` has the last day."""
    return _code(table.c.month, table.c.days)


def day_of_code(code: int) -> int:
    """The day of a month with the bit of a day, or the last day if there are several."""
    bits: int = code & (2**_MONTH_BITS - 1)
    return first_day(code >> _MONTH_BITS) + bits.bit_length() - 1


def _names_projects(connection: Connection) -> bool:
    """Whether a name of software contains that of the project."""
    names = [software.c[name] for name in ("name", "version", "local_version")]
    projects = or_(*(name.contains("%(project)s", autoescape=True) for name in names))
    return connection.scalar(select(software.c.id).where(projects).limit(1)) is not None


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
    ignored = select(software.c.id).where(software.c.ignored)
    complete = msgspec.structs.replace(question, by=("software",), ignored=True)
    rows = _summed(connection, complete, lambda table: table.c.software_id.in_(ignored)).rows
    query = select(func.sum(rows.c.core_time), func.sum(rows.c.cpu_time))
    query = query.select_from(_joined(complete, rows))
    core, cpu = connection.execute(
        query.where(*name_filters(complete, rows, rows.c.software_id))
    ).one()
    return LeftOut(int(core or 0) / HOUR, int(cpu or 0) / HOUR)


class Waiting(NamedTuple):
    """Runs that have changed since the rollups included them."""

    #: The next updates include them.
    pending: int
    #: They failed, and are dead letters.
    set_aside: int


def count_waiting(connection: Connection, cluster: str | None = None) -> Waiting:
    """The number of stale runs of a cluster, or of all."""
    stale = select(func.count()).select_from(runs).where(runs.c.stale)
    letters = select(sql_cast(dead_letters.c.key, BigInteger)).where(dead_letters.c.kind == ROLLUP)
    if cluster is not None:
        stale = stale.where(runs.c.cluster == cluster)
        letters = letters.where(dead_letters.c.cluster == cluster)
    both = connection.scalar(stale) or 0
    aside = connection.scalar(stale.where(runs.c.id.in_(letters))) or 0
    return Waiting(both - aside, aside)


def days_of(connection: Connection) -> tuple[int, int] | None:
    """The first and the last day in the rollups."""
    # Two queries: SQLite finds one of them by index, both together by reading all rows.
    first, last = connection.execute(
        select(
            select(func.min(usage_by_day.c.day)).scalar_subquery(),
            select(func.max(usage_by_day.c.day)).scalar_subquery(),
        )
    ).one()
    return None if first is None else (first, last)


def _joined(question: Question, table: FromClause) -> FromClause:
    if not question.names_software:
        return table
    return table.join(software, software.c.id == table.c.software_id, isouter=True)


def _group_columns(question: Question, table: FromClause) -> dict[str, ColumnElement[Any]]:
    columns: dict[str, ColumnElement[Any]] = {}
    for name in question.by:
        if name in OWNERS:
            columns[name] = table.c[name]
        elif name in NAMES:
            columns[name] = name_column(name, table)
        else:
            columns[name] = table.c.period
    if question.names_software and {*question.by} & {*NAMES}:
        columns["kind"] = func.coalesce(software.c.id * 0 + 1, table.c.software_id)
    return {name: column.label(f"key_{name}") for name, column in columns.items()}


def _labels(columns: dict[str, ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    # By label: PostgreSQL does not recognise an expression with parameters that occurs twice.
    return [literal_column(f"key_{name}") for name in columns]


def name_column(name: str, owners: FromClause) -> ColumnElement[str]:
    """A part of a software name, with the user and project of the run substituted."""
    column = software.c["name" if name == "software" else name]
    if pseudonyms.is_active():
        # No parameter: in a grouping, it would be another expression each time.
        hidden = literal_column(f"'{pseudonyms.OF_USERS if name == 'software' else ''}'", Text)
        if name == "local_version":
            return hidden
        return case((software.c.user_provided, hidden), else_=column)
    with_user = func.replace(column, "%(user)s", owners.c.user)
    if "account" not in owners.c:
        # No name contains it; see _summed.
        return with_user
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


def _owner_filters(question: Question, table: FromClause) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in question.given(*OWNERS).items()]


def _software_filters(question: Question) -> list[Callable[[FromClause], ColumnElement[bool]]]:
    """Keep the software that can have the requested name, before names are compared."""
    if question.software is None:
        return []
    ids = [id for id, kind in KINDS.items() if kind == question.software]
    named = or_(
        software.c.name == question.software, software.c.name.contains("%(", autoescape=True)
    )
    can = select(software.c.id).where(named)
    return [lambda table: or_(table.c.software_id.in_(can), table.c.software_id.in_(ids))]


def _usage_row(names: tuple[str, ...], row: tuple[Any, ...], by_month: bool) -> UsageRow:
    keys = dict(zip(names, row, strict=False))
    jobs, users, cpu, core, gpu, executions, *gpus, memory, first, last = row[len(names) :]
    measured, profiled, used, energy = map(int, gpus)
    _hide_owners(keys)
    kind = keys.pop("kind", None)
    if kind is not None:
        keys["kind"] = KINDS.get(kind, "software")
    for period in PERIODS:
        if period in keys:
            number = keys.pop(period)
            keys["period"] = period_name(period, first_day(number) if by_month else number)
    return UsageRow(
        **keys,
        jobs=int(jobs),
        users=int(users),
        executions=int(executions),
        cpu_hours=int(cpu) / HOUR,
        core_hours=int(core) / HOUR,
        gpu_hours=int(gpu) / HOUR,
        gpu_used_hours=used / HOUR,
        gpu_measured_hours=measured / HOUR,
        gpu_profiled_hours=profiled / HOUR,
        gpu_energy_joules=energy / 1000,
        memory_gib_hours=None if memory is None else int(memory) / _GIB_HOUR,
        first=date_of(day_of_code(first) if by_month else first).isoformat(),
        last=date_of(day_of_code(last) if by_month else last).isoformat(),
    )


def _hide_owners(keys: dict[str, Any]) -> None:
    for name in ("user", "account"):
        if name in keys:
            keys[name] = pseudonyms.pseudonym(name, keys[name])
    viewed.note(keys.get("user"))


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
    viewed.note(question.user if rows else None)
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


def total(figure: ColumnElement[Any]) -> ColumnElement[Any]:
    """The sum of a figure as a floating-point number: SQLite fails at a sum beyond 63 bits."""
    return func.sum(sql_cast(figure, Float))


def _figures(seen: FromClause, cpu_time: ColumnElement[Any], executions: Any) -> list[Any]:
    return [
        func.count(distinct(seen.c.run_id)),
        func.count(distinct(seen.c.user)),
        total(cpu_time),
        total(executions),
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
        select(*columns, total(executables.c.executions))
        .join(executables, executables.c.run_node_id == seen.c.id)
        .group_by(*columns)
    )
    executions = {tuple(row[:-1]): int(row[-1]) for row in connection.execute(programs)}
    held = _gpus_of_nodes(connection, columns, seen)
    rows = [_node_row(by, group) for group in groups if group[-1] is not None]
    for row, values in zip(rows, groups, strict=False):
        key = tuple(values[: len(by)])
        row.executions = executions.get(key, 0)
        if key in held:
            row.gpu_hours, row.gpu_measured_hours, row.gpu_profiled_hours = held[key][:3]
            row.gpu_used_hours, row.gpu_energy_joules = held[key][3:]
    return rows


def _gpus_of_nodes(
    connection: Connection, columns: Sequence[ColumnElement[Any]], seen: FromClause
) -> dict[tuple[Any, ...], list[float]]:
    """Hours held, measured, profiled and used, and joules, of the GPUs that the nodes reported."""
    profiled = case((gpus.c.multiprocessor_time.is_not(None), gpus.c.measured_time), else_=0)
    times = [gpus.c.held_time, gpus.c.measured_time, profiled, gpus.c.used_time]
    query = (
        select(*columns, *map(total, times), total(gpus.c.energy))
        .join(gpus, gpus.c.run_node_id == seen.c.id)
        .group_by(*columns)
    )
    found = {}
    for row in connection.execute(query):
        *hours, energy = row[len(columns) :]
        found[tuple(row[: len(columns)])] = [
            *((value or 0) / 1000 / HOUR for value in hours),
            (energy or 0) / 1e6,
        ]
    return found


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
    _hide_owners(keys)
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
