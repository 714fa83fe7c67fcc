"""Paths of executables and the software names that rules assigned to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlalchemy import func, select

from jobsight.store.database import Database
from jobsight.store.schema.tables import executables, paths, run_nodes, software


class SoftwareKey(NamedTuple):
    """The columns of ``software`` that identify a name."""

    name: str
    version: str
    local_version: str
    user_provided: bool
    ignored: bool


class StoredPath(NamedTuple):
    """A path and its name: None if no rule set has been applied to it, 0 if no rule matched."""

    id: int
    path: bytes
    software_id: int | None


def software_keys(database: Database) -> dict[int, SoftwareKey]:
    """All names by their ids."""
    columns = (software.c.name, software.c.version, software.c.local_version)
    flags = (software.c.user_provided, software.c.ignored)
    with database.read() as connection:
        rows = connection.execute(select(software.c.id, *columns, *flags)).all()
    return {row[0]: SoftwareKey(*row[1:4], bool(row[4]), bool(row[5])) for row in rows}


def unnamed_paths(database: Database, limit: int) -> list[StoredPath]:
    """The oldest paths to which no rule set has been applied."""
    query = select(paths.c.id, paths.c.path, paths.c.software_id)
    query = query.where(paths.c.software_id.is_(None)).order_by(paths.c.id).limit(limit)
    with database.read() as connection:
        return [StoredPath(id, bytes(path), None) for id, path, _ in connection.execute(query)]


def paths_after(database: Database, after: int, limit: int) -> list[StoredPath]:
    """The next paths by id."""
    query = select(paths.c.id, paths.c.path, paths.c.software_id)
    query = query.where(paths.c.id > after).order_by(paths.c.id).limit(limit)
    with database.read() as connection:
        return [StoredPath(id, bytes(path), named) for id, path, named in connection.execute(query)]


def iterate_paths(database: Database) -> Iterator[StoredPath]:
    """All paths in the order of their insertion."""
    query = select(paths.c.id, paths.c.path, paths.c.software_id).order_by(paths.c.id)
    with database.read() as connection:
        for id, path, software_id in connection.execute(query):
            yield StoredPath(id, bytes(path), software_id)


def count_paths(database: Database, up_to: int | None = None) -> int:
    """The number of paths, or of those with an id up to one."""
    query = select(func.count()).select_from(paths)
    if up_to is not None:
        query = query.where(paths.c.id <= up_to)
    with database.read() as connection:
        return connection.scalar(query) or 0


def path_digests(database: Database, ids: Iterable[int]) -> dict[int, bytes]:
    """The digests of paths by their ids."""
    query = select(paths.c.id, paths.c.digest).where(paths.c.id.in_(list(ids)))
    with database.read() as connection:
        return {id: bytes(digest) for id, digest in connection.execute(query)}


def runs_of_paths(database: Database, path_ids: Iterable[int]) -> set[int]:
    """The ids of all runs that executed one of the paths."""
    run_ids: set[int] = set()
    query = select(run_nodes.c.run_id).join(
        executables, executables.c.run_node_id == run_nodes.c.id
    )
    with database.read() as connection:
        for path_id in path_ids:
            run_ids.update(connection.scalars(query.where(executables.c.path_id == path_id)))
    return run_ids
