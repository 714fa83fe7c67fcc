"""What the archive reads from the store: the runs to archive, with everything that belongs to them.

A run is pending if it ended before a given time and has changed since it was archived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, func, select

from jobsight.store.database import Database
from jobsight.store.findings.rows import FindingRow, row_of
from jobsight.store.read.external import ArchivedRun
from jobsight.store.schema.tables import (
    chunks,
    executables,
    findings,
    gpus,
    paths,
    run_details,
    run_nodes,
    runs,
    steps,
)


class PendingRun(NamedTuple):
    """A run to archive."""

    cluster: str
    start: int
    job_id: int
    id: int
    #: The file with an older version.
    archived: str | None


class MovedRun(NamedTuple):
    """A pending run whose archived version has another start."""

    id: int
    cluster: str
    job_id: int
    archived_start: int
    updated: int


def _pending(before: int) -> ColumnElement[bool]:
    return (runs.c.end < before) & runs.c.archived_updated.is_(None)


def iterate_pending(database: Database, before: int) -> Iterator[PendingRun]:
    """All pending runs, in no order."""
    query = select(runs.c.cluster, runs.c.start, runs.c.job_id, runs.c.id, runs.c.archived)
    query = query.where(_pending(before)).execution_options(stream_results=True)
    with database.read() as connection:
        for row in connection.execute(query):
            yield PendingRun(*row)


def moved_runs(database: Database, before: int) -> list[MovedRun]:
    """The pending runs whose archived version has another start."""
    query = select(
        runs.c.id, runs.c.cluster, runs.c.job_id, runs.c.archived_start, runs.c.updated
    ).where(_pending(before), runs.c.archived_start != runs.c.start)
    with database.read() as connection:
        return [MovedRun(*row) for row in connection.execute(query)]


def pruned_runs(database: Database, ids: Sequence[int]) -> list[tuple[int, ArchivedRun]]:
    """Those of some runs that retention has pruned, with their place in the archive."""
    query = select(
        runs.c.id, runs.c.archived, runs.c.cluster, runs.c.job_id, runs.c.archived_start
    ).where(runs.c.id.in_(ids), runs.c.pruned != 0, runs.c.archived.is_not(None))
    with database.read() as connection:
        return [(run_id, ArchivedRun(*key)) for run_id, *key in connection.execute(query)]


def any_archived_file(database: Database) -> str | None:
    """One of the files that the store refers to."""
    query = select(runs.c.archived).where(runs.c.archived.is_not(None)).limit(1)
    with database.read() as connection:
        file: str | None = connection.scalar(query)
    return file


def archived_files(database: Database) -> list[tuple[str, int]]:
    """The files that the store refers to, and the number of its runs in each."""
    query = select(runs.c.archived, func.count()).where(runs.c.archived.is_not(None))
    with database.read() as connection:
        rows = connection.execute(query.group_by(runs.c.archived)).all()
    return [(file, count) for file, count in rows]


def is_complete(database: Database, archived: ArchivedRun) -> bool:
    """Whether the store has the run and nothing of it was pruned."""
    query = select(runs.c.id).where(
        runs.c.cluster == archived.cluster,
        runs.c.job_id == archived.job_id,
        runs.c.start == archived.start,
        runs.c.pruned == 0,
    )
    with database.read() as connection:
        return connection.scalar(query) is not None


def node_counts(connection: Connection, ids: Sequence[int]) -> dict[int, int]:
    """The number of rows in ``run_nodes`` by run id."""
    query = select(run_nodes.c.run_id, func.count().label("nodes"))
    query = query.where(run_nodes.c.run_id.in_(ids))
    rows = connection.execute(query.group_by(run_nodes.c.run_id))
    return {row.run_id: row.nodes for row in rows}


def run_rows(connection: Connection, ids: Sequence[int]) -> Iterator[RowMapping]:
    """``runs`` with the scheduler's ``details``, by job id and start."""
    query = (
        select(runs, run_details.c.data.label("details"))
        .join(run_details, run_details.c.run_id == runs.c.id, isouter=True)
        .where(runs.c.id.in_(ids))
        .order_by(runs.c.job_id, runs.c.start)
    )
    yield from connection.execute(query).mappings()


def node_rows(connection: Connection, ids: Sequence[int]) -> Iterator[RowMapping]:
    """``run_nodes`` of some runs, by id."""
    query = select(run_nodes).where(run_nodes.c.run_id.in_(ids)).order_by(run_nodes.c.id)
    yield from connection.execute(query).mappings()


def executable_rows(connection: Connection, ids: Sequence[int]) -> Iterator[RowMapping]:
    """``executables`` of some runs with their paths, by node, path and epoch."""
    query = (
        select(executables, paths.c.path)
        .join(run_nodes, run_nodes.c.id == executables.c.run_node_id)
        .join(paths, paths.c.id == executables.c.path_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(executables.c.run_node_id, paths.c.path, executables.c.epoch)
    )
    yield from connection.execute(query).mappings()


def step_rows(connection: Connection, ids: Sequence[int]) -> Iterator[RowMapping]:
    """``steps`` of some runs, by node and first appearance."""
    return _rows_of_nodes(connection, steps, ids, "first_seen", "step")


def gpu_rows(connection: Connection, ids: Sequence[int]) -> Iterator[RowMapping]:
    """``gpus`` of some runs, by node, key and epoch."""
    return _rows_of_nodes(connection, gpus, ids, "key", "epoch")


def _rows_of_nodes(
    connection: Connection, table: Table, ids: Sequence[int], *order: str
) -> Iterator[RowMapping]:
    """The rows of a table for the nodes of some runs, by node and these columns."""
    query = (
        select(table)
        .join(run_nodes, run_nodes.c.id == table.c.run_node_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(table.c.run_node_id, *(table.c[name] for name in order))
    )
    yield from connection.execute(query).mappings()


def finding_rows(connection: Connection, ids: Sequence[int]) -> Iterator[FindingRow]:
    """``findings`` of some runs, by run and kind."""
    columns = [findings.c[name] for name in FindingRow._fields]
    query = select(*columns).where(findings.c.run_id.in_(ids))
    for row in connection.execute(query.order_by(findings.c.run_id, findings.c.kind)):
        yield row_of(tuple(row))


def chunk_rows(connection: Connection, ids: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """The encoded chunks of some runs with their ``run_nodes.id``, in the order of storing."""
    query = (
        select(chunks.c.run_node_id, chunks.c.data)
        .join(run_nodes, run_nodes.c.id == chunks.c.run_node_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(chunks.c.run_node_id, chunks.c.id)
        .execution_options(stream_results=True, max_row_buffer=16)
    )
    for row in connection.execute(query):
        yield row.run_node_id, row.data
