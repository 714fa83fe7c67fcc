"""Compaction: join chunks that were left open, remove unused paths, free pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import msgspec
from sqlalchemy import text

from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.store.database import Database
from jobsight.store.maintenance.check import LATE
from jobsight.store.maintenance.dump import Progress, no_progress
from jobsight.store.maintenance.inventory import disk_free, size_of
from jobsight.store.maintenance.retention import PATHS_BATCH_SIZE, remove_paths
from jobsight.store.schema.tables import metadata
from jobsight.store.series.blocks import join_chunks
from jobsight.store.series.codec import ChunkError

logger = logging.getLogger(__name__)

#: Nothing more is expected of a run that ended this long ago.
QUIET_PERIOD = 3600 * SECOND
BATCH_SIZE = 500

#: Nodes of ended runs whose chunks were never joined; downsampled series are left alone.
_UNJOINED = f"""
    SELECT run_nodes.id, run_nodes.cluster, run_nodes.job_id
    FROM run_nodes JOIN runs ON runs.id = run_nodes.run_id
    WHERE run_nodes.id > :after AND runs."end" < :before
        AND EXISTS (SELECT 1 FROM chunks WHERE run_node_id = run_nodes.id AND level < 2)
        AND NOT EXISTS (
            SELECT 1 FROM chunks WHERE run_node_id = run_nodes.id AND resolution IS NOT NULL)
    ORDER BY run_nodes.id LIMIT {BATCH_SIZE}
"""
_SIZE = "SELECT count(*), coalesce(sum(length(data)), 0) FROM chunks WHERE run_node_id = :id"
_NONE_OPEN = "UPDATE run_nodes SET open_chunks = 0 WHERE id = :id"
_UNUSED = f"""
    SELECT id FROM paths WHERE id > :after
        AND NOT EXISTS (SELECT 1 FROM executables WHERE path_id = paths.id)
    ORDER BY id LIMIT {PATHS_BATCH_SIZE}
"""


class Compacted(msgspec.Struct):
    """What was done, with the bytes before and after."""

    nodes: int = 0
    chunks_before: int = 0
    chunks_after: int = 0
    series_before: int = 0
    series_after: int = 0
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
    """Join open chunks of ended runs, remove unused paths and free pages."""
    done = Compacted(size_before=_size(database))
    before = (time.time_ns() if now is None else now) - QUIET_PERIOD
    for id, lock in _unjoined_nodes(database, before):
        _join(database, id, lock, done)
        progress("nodes joined", done.nodes, 0)
    for ids in _unused_paths(database):
        done.paths += remove_paths(database, ids)
    with database.write() as transaction:
        # Retention examines runs again that got data late.
        transaction.execute(f"UPDATE runs SET pruned = 0 WHERE {LATE}")
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
    after = -1
    while True:
        with database.read() as connection:
            values = {"after": after, "before": before}
            found = list(connection.execute(text(_UNJOINED), values))
        yield from ((id, f"{cluster} {job_id}") for id, cluster, job_id in found)
        if len(found) < BATCH_SIZE:
            return
        after = found[-1][0]


def _join(database: Database, id: int, lock: str, done: Compacted) -> None:
    key = {"id": id}
    try:
        with database.write() as transaction:
            transaction.lock("job", [lock])
            before = transaction.execute(_SIZE, key).fetchone()
            join_chunks(transaction, id, complete=True)
            transaction.execute(_NONE_OPEN, key)
            after = transaction.execute(_SIZE, key).fetchone()
    except ChunkError:
        done.damaged += 1
        return
    done.nodes += 1
    done.chunks_before += before[0]
    done.series_before += int(before[1])
    done.chunks_after += after[0]
    done.series_after += int(after[1])


def _unused_paths(database: Database) -> Iterator[list[int]]:
    after = -1
    while True:
        with database.read() as connection:
            found = list(connection.scalars(text(_UNUSED), {"after": after}))
        if found:
            yield found
            after = found[-1]
        if len(found) < PATHS_BATCH_SIZE:
            return


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
