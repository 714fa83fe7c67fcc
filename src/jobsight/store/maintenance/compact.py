"""Compaction: join chunks that were left open, remove unused paths, free pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.store.database import Database, Transaction
from jobsight.store.maintenance.dump import Progress, no_progress
from jobsight.store.maintenance.inventory import disk_free, size_of
from jobsight.store.maintenance.node_days import complete_days
from jobsight.store.maintenance.retention import PATHS_BATCH_SIZE, remove_paths
from jobsight.store.schema.tables import metadata
from jobsight.store.series.blocks import join_chunks
from jobsight.store.series.codec import ChunkError
from jobsight.store.sql.load import load_statements

logger = logging.getLogger(__name__)

#: A run that ended this long ago is not expected to get more data.
QUIET_PERIOD = 3600 * SECOND
BATCH_SIZE = 500

_SQL: Final = load_statements("maintenance")


class Compacted(msgspec.Struct):
    """What was done, with the bytes before and after."""

    nodes: int = 0
    chunks_before: int = 0
    chunks_after: int = 0
    series_before: int = 0
    series_after: int = 0
    #: Days of nodes that were joined.
    node_days: int = 0
    paths: int = 0
    #: Nodes whose chunks cannot be read; they are left as they are.
    damaged: int = 0
    size_before: int = 0
    size_after: int = 0


def compact(
    database: Database,
    progress: Progress = no_progress,
    *,
    now: int | None = None,
    vacuum: bool = True,
) -> Compacted:
    """Join open chunks of ended runs and past days, remove unused paths and free pages."""
    done = Compacted(size_before=_size(database))
    before = (time.time_ns() if now is None else now) - QUIET_PERIOD
    for id, lock in _unjoined_nodes(database, before):
        _join(database, id, lock, done)
        progress("nodes joined", done.nodes, 0)
    days = complete_days(database, time.time_ns() if now is None else now)
    done.node_days = days.runs
    done.damaged += days.damaged
    done.series_before += days.bytes
    done.series_after += days.bytes_left
    for rows in _pages(database, "unused_paths", PATHS_BATCH_SIZE):
        done.paths += remove_paths(database, [id for (id,) in rows])
    with database.write() as transaction:
        # Retention examines runs again that got data late.
        transaction.execute(f"UPDATE runs SET pruned = 0 WHERE id IN ({_SQL['late_runs']})")
    if vacuum:
        progress("free pages", 0, 1)
        _vacuum(database)
        progress("free pages", 1, 1)
    done.size_after = _size(database)
    logger.info(
        "compaction: %d nodes joined, %d paths removed, %d to %d bytes",
        *(done.nodes, done.paths, done.size_before, done.size_after),
    )
    return done


def _unjoined_nodes(database: Database, before: int) -> Iterator[tuple[int, str]]:
    for rows in _pages(database, "unjoined_nodes", BATCH_SIZE, before=before):
        yield from ((id, f"{cluster} {job_id}") for id, cluster, job_id in rows)


def _pages(database: Database, query: str, limit: int, **values: int) -> Iterator[list[Any]]:
    """The rows of a query in pages, by the id in the first column."""
    after = -1
    while True:
        with database.query() as transaction:
            parameters = {"after": after, "limit": limit, **values}
            rows = transaction.execute(_SQL[query], parameters).fetchall()
        if rows:
            yield rows
        if len(rows) < limit:
            return
        after = rows[-1][0]


def _join(database: Database, id: int, lock: str, done: Compacted) -> None:
    try:
        with database.write() as transaction:
            transaction.lock("job", [lock])
            chunks_before, bytes_before = _size_of_chunks(transaction, id)
            join_chunks(transaction, id, complete=True)
            transaction.execute(_SQL["clear_open_chunks"], {"id": id})
            chunks_after, bytes_after = _size_of_chunks(transaction, id)
    except ChunkError:
        done.damaged += 1
        return
    done.nodes += 1
    done.chunks_before += chunks_before
    done.series_before += bytes_before
    done.chunks_after += chunks_after
    done.series_after += bytes_after


def _size_of_chunks(transaction: Transaction, run_node_id: int) -> tuple[int, int]:
    ((count, size),) = transaction.look_up(_SQL["size_of_chunks"], [(run_node_id,)])
    return int(count), int(size)


def _size(database: Database) -> int:
    with database.read() as connection:
        return size_of(connection)


def _vacuum(database: Database) -> None:
    if database.postgresql:
        with database.alone() as connection:
            connection.execute(f"VACUUM (ANALYZE) {', '.join(metadata.tables)}")
        return
    # VACUUM writes a copy of the file through the log.
    needed, free = 2 * _size(database), disk_free(database)
    if free < needed:
        raise StoreError(
            f"the disk of {database.where} has {free} bytes free, VACUUM needs {needed}; free "
            "some space or use --no-vacuum"
        )
    with database.alone() as connection:
        connection.execute("VACUUM")
        connection.execute("ANALYZE")
        # The log has grown to the size of the file.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
