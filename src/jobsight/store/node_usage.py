"""Use by node: from the executables themselves, since the sums by day know no nodes.

Whole runs count, by the time of their start. Allocations are not known by node, so there are no
core or GPU hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    Row,
    cast,
    distinct,
    func,
    literal_column,
    select,
)

from jobsight.store.contributions import DAY, NOT_ATTRIBUTED, UNDETERMINED
from jobsight.store.periods import date_of, day_of
from jobsight.store.tables import executables, paths, run_nodes, runs, software
from jobsight.store.usage import (
    HOUR,
    KINDS,
    NAMES,
    OWNERS,
    Question,
    UsageRow,
    check,
    name_column,
    name_filters,
)

DIMENSIONS: Final = ("node", *OWNERS, *NAMES)


def node_usage(connection: Connection, question: Question) -> list[UsageRow]:
    """The groups, the most CPU time first; with software, what no executable accounts for is a
    row of its own."""
    check(question, DIMENSIONS)
    seen = _seen(question)
    if not question.names_software:
        rows = _counted(connection, question.by, seen)
    else:
        rows = _by_software(connection, question, seen)
        if question.software in (None, KINDS[NOT_ATTRIBUTED]) and question.version is None:
            rows += _remainders(connection, question, seen)
    return sorted(rows, key=lambda row: (row.node or "", -row.cpu_hours))


def _seen(question: Question) -> FromClause:
    """The sightings of the runs that the question asks for."""
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
    # So that the years of a large machine fit into 63 bits.
    return cpu_time / literal_column("1000", Integer)


def _count(executions: ColumnElement[Any]) -> ColumnElement[Any]:
    # A wrong number of one program must not run over 63 bits and take all others with it.
    return func.sum(cast(executions, Float))


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
    """By the jobs' own counters; programs are counted beside."""
    columns = [seen.c[name] for name in by]
    cpu_time = _microseconds(seen.c.cpu_time)
    query = select(*columns, *_figures(seen, cpu_time, literal_column("0")))
    found = connection.execute(query.group_by(*columns)).all()
    programs = (
        select(*columns, _count(executables.c.executions))
        .join(executables, executables.c.run_node_id == seen.c.id)
        .group_by(*columns)
    )
    executions = {tuple(row[:-1]): int(row[-1]) for row in connection.execute(programs)}
    rows = [_row(by, row) for row in found if row[-1] is not None]
    for row, values in zip(rows, found, strict=False):
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
    return [_row(tuple(columns), row) for row in connection.execute(query) if row[-1] is not None]


def _remainders(connection: Connection, question: Question, seen: FromClause) -> list[UsageRow]:
    """What the counters say beyond all executables, by what is left of the groups."""
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
    rows = [_row(keys, row) for row in connection.execute(query) if row[-1] is not None]
    for row in rows:
        row.kind = KINDS[NOT_ATTRIBUTED]
    return rows


def _row(names: Sequence[str], row: Row[Any]) -> UsageRow:
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
