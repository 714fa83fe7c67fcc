"""Queries of the software names in the store, and of their paths."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    case,
    cast,
    distinct,
    func,
    or_,
    select,
    true,
)

from jobsight.store.read import pseudonyms
from jobsight.store.rollups.shares import OTHER, UNDETERMINED
from jobsight.store.rollups.usage import (
    HOUR,
    KINDS,
    date_of,
    day_of_code,
    last_code,
    total,
    use_memory,
)
from jobsight.store.schema.tables import (
    executables,
    paths,
    run_nodes,
    runs,
    software,
    software_by_month,
)
from jobsight.text import readable_path

#: Nanoseconds.
_HOUR: Final = 3600e9
_UNNAMED: Final = paths.c.software_id.is_(None)


class SoftwareRow(msgspec.Struct, kw_only=True):
    """A name from the rules and its total usage; placeholders of user and project are kept."""

    id: int
    #: "software", "undetermined" or "not attributed".
    kind: str = "software"
    software: str | None = None
    version: str | None = None
    local_version: str | None = None
    user_provided: bool = False
    ignored: bool = False
    paths: int = 0
    jobs: int = 0
    users: int = 0
    cpu_hours: float = 0.0
    core_hours: float = 0.0
    #: The last day of use.
    last: str | None = None


class PathRow(msgspec.Struct, kw_only=True):
    """A path and its usage in the stored runs."""

    path: str
    #: False if only the name of the command is known.
    path_known: bool
    jobs: int
    users: int
    executions: int
    cpu_hours: float
    #: Its share of the allocations of its runs, by CPU time: an estimate for sorting.
    core_hours: float
    #: The start of its last run, in nanoseconds.
    last: int | None
    #: None before the rules are applied, 0 if no rule matches.
    software_id: int | None


def count_software(connection: Connection) -> int:
    """The number of names. Users decide how many there are, by the paths of their programs."""
    return connection.execute(select(func.count()).select_from(software)).scalar_one()


def list_software(
    connection: Connection, name: str | None = None, limit: int | None = None
) -> list[SoftwareRow]:
    """All names, with the kinds of usage without a name; or the versions of one name. With a limit
    those with the most core hours."""
    usage = _usage_by_id(connection, limit)
    by_name = select(paths.c.software_id, func.count()).group_by(paths.c.software_id)
    query = select(software).order_by(
        software.c.name, software.c.version, software.c.local_version, software.c.id
    )
    if name is not None:
        query = query.where(software.c.name == name)
    if limit is not None:
        largest = sorted(usage, key=lambda id: usage[id][3], reverse=True)
        ids = [id for id in largest if id not in KINDS][:limit]
        unused = select(software.c.id).where(software.c.id.not_in(ids)).order_by(software.c.id)
        ids += connection.execute(unused.limit(limit - len(ids))).scalars()
        query = query.where(software.c.id.in_(ids))
        by_name = by_name.where(or_(paths.c.software_id.in_([*ids, *KINDS]), _UNNAMED))
    counts: dict[int | None, int] = {row[0]: row[1] for row in connection.execute(by_name)}
    counts[UNDETERMINED] = counts.get(UNDETERMINED, 0) + counts.pop(None, 0)
    rows = []
    for stored in connection.execute(query):
        shown, version, local_version = pseudonyms.software(
            stored.name, stored.version, stored.local_version, stored.user_provided
        )
        rows.append(
            SoftwareRow(
                id=stored.id,
                software=shown,
                version=version,
                local_version=local_version,
                user_provided=bool(stored.user_provided),
                ignored=bool(stored.ignored),
            )
        )
    if name is None:
        rows += [
            SoftwareRow(id=id, kind=kind)
            for id, kind in KINDS.items()
            if id != OTHER or id in usage
        ]
    for row in rows:
        row.paths = counts.get(row.id, 0)
        if row.id in usage:
            row.jobs, row.users, cpu, core, last = usage[row.id]
            row.cpu_hours, row.core_hours = int(cpu) / HOUR, int(core) / HOUR
            row.last = date_of(last).isoformat()
    return rows


def _usage_by_id(
    connection: Connection, limit: int | None
) -> dict[int, tuple[int, int, float, float, int]]:
    """Runs, users, CPU time, core time and the last day of each row of software; with a limit of
    those with the most core time, and of the kinds of usage without a name."""
    use_memory(connection)
    columns = software_by_month.c
    among: ColumnElement[bool] = true()
    if limit is not None:
        # Found first, because users count for these alone.
        is_kind = case((columns.software_id.in_([*KINDS]), 0), else_=1)
        largest = (
            select(columns.software_id)
            .group_by(columns.software_id)
            .order_by(is_kind, total(columns.core_time).desc(), columns.software_id)
            .limit(limit + len(KINDS))
        )
        among = columns.software_id.in_(connection.execute(largest).scalars().all())
    by_user = (
        select(
            columns.software_id,
            columns.user,
            func.sum(columns.runs).label("runs"),
            total(columns.cpu_time).label("cpu_time"),
            total(columns.core_time).label("core_time"),
            func.max(last_code(software_by_month)).label("last"),
        )
        .where(among)
        .group_by(columns.software_id, columns.user)
        .subquery("by_user")
    )
    query = select(
        by_user.c.software_id,
        func.sum(by_user.c.runs),
        func.count(),
        func.sum(by_user.c.cpu_time),
        func.sum(by_user.c.core_time),
        func.max(by_user.c.last),
    ).group_by(by_user.c.software_id)
    return {
        id: (int(jobs), users, cpu, core, day_of_code(last))
        for id, jobs, users, cpu, core, last in connection.execute(query)
    }


def find_path(connection: Connection, path: bytes) -> PathRow | None:
    """One path; None if it is not in the store."""
    if pseudonyms.is_hidden(path):
        return None
    digest = hashlib.blake2b(path, digest_size=16).digest()
    return next(iter(_paths(connection, paths.c.digest == digest, 1, None)), None)


def paths_of(
    connection: Connection, software_ids: list[int], limit: int, since: int | None = None
) -> list[PathRow]:
    """The paths of software, by decreasing core hours."""
    return _paths(connection, paths.c.software_id.in_(software_ids), limit, since)


def use_of(connection: Connection, path_ids: list[int]) -> dict[str, PathRow]:
    """The usage of some paths by the readable path, without paths that no run used."""
    rows = _paths(connection, paths.c.id.in_(path_ids), len(path_ids), None)
    return {row.path: row for row in rows}


def undetermined_paths(
    connection: Connection, limit: int, since: int | None = None
) -> list[PathRow]:
    """The paths that no rule matches, in runs that started since then."""
    unmatched = or_(paths.c.software_id == UNDETERMINED, paths.c.software_id.is_(None))
    return _paths(connection, unmatched, limit, since)


def _paths(
    connection: Connection, condition: ColumnElement[bool], limit: int, since: int | None
) -> list[PathRow]:
    length = func.coalesce(runs.c.end, runs.c.last_seen, runs.c.start) - runs.c.start
    allocated = cast(runs.c.cpus, Float) * length
    share = cast(executables.c.cpu_time, Float) / func.nullif(runs.c.cpu_time, 0)
    core_time = func.coalesce(func.sum(share * allocated), 0.0).label("core_time")
    cpu_time = func.sum(cast(executables.c.cpu_time, Float)).label("cpu_time")
    query = (
        select(
            paths.c.path,
            paths.c.software_id,
            func.max(case((executables.c.path_known, 1), else_=0)),
            func.count(distinct(runs.c.id)),
            func.count(distinct(runs.c.user)),
            func.sum(cast(executables.c.executions, Float)),
            cpu_time,
            core_time,
            func.max(runs.c.start),
        )
        .join(executables, executables.c.path_id == paths.c.id)
        .join(run_nodes, run_nodes.c.id == executables.c.run_node_id)
        .join(runs, runs.c.id == run_nodes.c.run_id)
        .where(condition)
        .group_by(paths.c.id, paths.c.path, paths.c.software_id)
        .order_by(core_time.desc(), cpu_time.desc(), paths.c.id)
        .limit(limit)
    )
    if since is not None:
        query = query.where(runs.c.start >= since)
    rows = connection.execute(query)
    return [
        PathRow(
            path=readable_path(pseudonyms.path(bytes(path))),
            path_known=bool(known),
            software_id=software_id,
            jobs=jobs,
            users=users,
            executions=int(executions),
            cpu_hours=float(cpu) / _HOUR,
            core_hours=float(core) / _HOUR,
            last=last,
        )
        for path, software_id, known, jobs, users, executions, cpu, core, last in rows
    ]
