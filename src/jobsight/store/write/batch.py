"""Write batches to the store: each completely or not at all, and exactly once.

:func:`write` and :func:`write_all` are the entry points. A batch is validated and its series are
encoded before the transaction begins, because SQLite has a single writer. Batches that are passed
together share one transaction (group commit), so that many small batches wait for the disk once.
Batches are idempotent: :func:`record_sequence` rejects a sequence number that is already stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from jobsight.model import SECOND, Batch, JobInfo, JobPart, Series, Sighting
from jobsight.store.database import Database, Transaction
from jobsight.store.schema import statements
from jobsight.store.write.excess import count_excess
from jobsight.store.write.node_days import PackedDay, pack_days, store_days
from jobsight.store.write.parts import PackedSeries, Parts, PartStamp, pack_series
from jobsight.store.write.runs import RunWriter
from jobsight.store.write.validation import check

logger = logging.getLogger(__name__)

#: A clock skew that was measured longer ago than this is replaced by the next one.
_SKEW_LIFETIME = 3600 * SECOND

_Result = TypeVar("_Result")


class Written(NamedTuple):
    """The outcome of a batch that is stored."""

    #: False if it had been stored before.
    new: bool
    #: A sentence for each value of it that is out of bounds and was not stored.
    left_out: tuple[str, ...] = ()


def write(database: Database, batch: Batch, received: int | None = None) -> bool:
    """Store a batch; False if it is stored already."""
    store = _prepare(batch, received)
    with database.write() as transaction:
        return store(transaction).new


def write_all(database: Database, batches: Sequence[Batch]) -> list[Written | Exception]:
    """Store several batches; the outcome of each, or what :func:`write` raises for it."""
    outcomes: list[Written | Exception] = [Written(False)] * len(batches)
    prepared: dict[int, Callable[[Transaction], Written]] = {}
    for index, batch in enumerate(batches):
        try:
            prepared[index] = _prepare(batch)
        except Exception as error:
            outcomes[index] = error
    for index, outcome in zip(prepared, commit_all(database, [*prepared.values()]), strict=True):
        outcomes[index] = outcome
    return outcomes


def commit_all(
    database: Database, operations: Sequence[Callable[[Transaction], _Result]]
) -> list[_Result | Exception]:
    """Run several operations in one transaction; if it fails, each in a transaction of its own.

    An operation must be repeatable, because it runs again after the failure of another. On
    PostgreSQL every operation has its own transaction: writers run in parallel there, and a long
    transaction would hold its locks for all of them.
    """
    if not database.postgresql and len(operations) > 1:
        try:
            with database.write() as transaction:
                return [operation(transaction) for operation in operations]
        except Exception as error:
            logger.debug("%d batches are written one by one: %r", len(operations), error)
    outcomes: list[_Result | Exception] = []
    for operation in operations:
        try:
            with database.write() as transaction:
                result = operation(transaction)
        except Exception as error:
            outcomes.append(error)
        else:
            outcomes.append(result)
    return outcomes


def _prepare(batch: Batch, received: int | None = None) -> Callable[[Transaction], Written]:
    """Validate and encode a batch; the result stores it within a transaction."""
    left_out = check(batch)
    now = time.time_ns() if received is None else received
    packed = _pack([part.series for part in batch.parts])
    days = pack_days(batch.node_series) if batch.node_series is not None else []
    return lambda transaction: _store(transaction, batch, packed, days, now, left_out)


def _store(
    transaction: Transaction,
    batch: Batch,
    packed: list[PackedSeries | None],
    days: Sequence[PackedDay],
    received: int,
    left_out: Sequence[str],
) -> Written:
    if not record_sequence(transaction, batch, received):
        return Written(False)
    lock_jobs(transaction, batch.cluster, batch.jobs, batch.parts)
    stamp = PartStamp(batch.cluster, batch.written, received, batch.sequence)
    beyond = store_parts(transaction, stamp, batch.jobs, batch.parts, packed)
    # The lock of the agent is held. Last, as this may count what was left out.
    of_node = store_days(transaction, batch.cluster, batch.node, days) if days else ()
    return Written(True, (*left_out, *beyond, *of_node))


def lock_jobs(
    transaction: Transaction, cluster: str, jobs: Iterable[JobInfo], parts: Iterable[JobPart]
) -> None:
    """Lock these jobs. Locks are always taken in this order: agent, jobs, paths."""
    ids = {info.job_id for info in jobs} | {part.sighting.job_id for part in parts}
    transaction.lock("job", (f"{cluster} {job_id}" for job_id in ids))


def store_parts(
    transaction: Transaction,
    stamp: PartStamp,
    jobs: Sequence[JobInfo],
    parts: Sequence[JobPart],
    packed: Sequence[PackedSeries | None],
    completions: Iterable[tuple[Sighting, JobInfo]] = (),
) -> Sequence[str]:
    """Store job records, then parts with their packed series. The jobs must be locked.

    ``completions`` are records without a start, each with the sighting that finds its run. Returns
    a sentence for each part of which something is left out, because the run has too much of it.
    """
    run_writer = RunWriter(transaction, stamp.received)
    run_writer.record_all(jobs)
    for sighting, info in completions:
        run_writer.complete(sighting, info)
    path_ids = _path_ids(transaction, parts)
    stored = Parts(transaction, run_writer, stamp)
    stored.store(parts, packed, path_ids)
    if stored.left_out:
        # Last: writers of other jobs wait for this row.
        count_excess(transaction, stamp.cluster, stored.left_out, stored.sentences[0])
    return stored.sentences


def _pack(series: list[Series | None]) -> list[PackedSeries | None]:
    if not any(series):
        return [None] * len(series)
    return [pack_series(part) if part else None for part in series]


def _path_ids(transaction: Transaction, parts: Sequence[JobPart]) -> dict[bytes, int]:
    """The id of every path in the parts; unknown paths are inserted."""
    named = {use.path for part in parts for use in part.executables}
    paths = {statements.path_digest(path): path for path in named}
    ids = _find_paths(transaction, sorted(paths))
    if len(ids) < len(paths):
        # Always insert in sorted order to avoid deadlocks.
        missing = sorted(paths.keys() - ids.keys())
        transaction.execute_rows(
            statements.INSERT_PATH, [(digest, paths[digest]) for digest in missing]
        )
        ids |= _find_paths(transaction, missing)
    return {path: ids[digest] for digest, path in paths.items()}


def _find_paths(transaction: Transaction, digests: list[bytes]) -> dict[bytes, int]:
    rows = transaction.look_up(statements.FIND_PATHS, [(digest,) for digest in digests])
    return {bytes(digest): id for digest, id in rows}


def record_sequence(transaction: Transaction, batch: Batch, received: int) -> bool:
    """Record a batch as received; False if it has been received before."""
    transaction.lock("agent", [f"{batch.cluster} {batch.node}"])
    agent_id = _record_agent(transaction, batch, received)
    spool = {"agent_id": agent_id, "name": batch.spool}
    row = transaction.execute(statements.FIND_SPOOL, spool).fetchone()
    if row is None:
        transaction.execute(statements.INSERT_SPOOL, spool)
        row = transaction.execute(statements.FIND_SPOOL, spool).fetchone()
    return _record_number(transaction, row[0], batch.sequence)


def _record_number(transaction: Transaction, spool_id: int, sequence: int) -> bool:
    """Add a number to the spool's intervals of received sequence numbers, merging neighbours."""
    key = {"spool_id": spool_id, "sequence": sequence}
    before = transaction.execute(statements.INTERVAL_BEFORE, key).fetchone()
    if before is not None and sequence <= before[1]:
        return False
    after = transaction.execute(statements.INTERVAL_AFTER, key).fetchone()
    last = sequence if after is None else after[0]
    if after is not None:
        follower = {"spool_id": spool_id, "first": sequence + 1}
        transaction.execute(statements.DELETE_INTERVAL, follower)
    continues = before is not None and before[1] == sequence - 1
    first = before[0] if continues else sequence
    statement = statements.EXTEND_INTERVAL if continues else statements.INSERT_INTERVAL
    transaction.execute(statement, {"spool_id": spool_id, "first": first, "last": last})
    return True


def _record_agent(transaction: Transaction, batch: Batch, received: int) -> int:
    """Update the agent's row with its version and clock skew; its id."""
    ahead = batch.written - received
    values = {
        "cluster": batch.cluster,
        "node": batch.node,
        "version": batch.agent,
        "written": batch.written,
        "received": received,
        "clock_skew": ahead,
        "skew_measured": received,
    }
    row = transaction.execute(statements.FIND_AGENT, values).fetchone()
    if row is None:
        transaction.execute(statements.INSERT_AGENT, values)
        return int(transaction.execute(statements.FIND_AGENT, values).fetchone()[0])
    id, skew, skew_measured = row
    # Time spent in the spool makes a clock appear late, never early: the highest skew of the last
    # hour is the best estimate.
    if ahead < skew and abs(received - skew_measured) < _SKEW_LIFETIME:
        values["clock_skew"], values["skew_measured"] = skew, skew_measured
    transaction.execute(statements.UPDATE_AGENT, values | {"id": id})
    return int(id)
