"""What the scheduler says outside of batches: merged by the rules of a batch, and what is open.

What the scheduler alone knows: all it says of a run, and the cluster's nodes and partitions.

Documents are bytes here; the scheduler's part writes and reads them.

How far a piece of work has come that goes on for ever; read and set inside a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from jobsight.model import Batch, JobInfo, Run
from jobsight.store.database import Database, Transaction
from jobsight.store.schema.tables import cluster_records, run_details, runs
from jobsight.store.write.runs import RunWriter
from jobsight.store.write.validation import check

#: Records in one transaction: agents wait for the writer no longer than these take.
RUNS_BATCH_SIZE = 500


class OpenRun(NamedTuple):
    """A run whose end is not known."""

    job_id: int
    #: None where no scheduler has given one.
    start: int | None
    state: str | None
    source: str
    name: str | None
    partition: str | None


def record_jobs(database: Database, infos: Sequence[JobInfo], now: int | None = None) -> int:
    """Merge records of a scheduler; how many of them changed or added something."""
    now = time.time_ns() if now is None else now
    for cluster in {info.cluster for info in infos}:
        # What may stand in a batch may stand here, and nothing else.
        check(
            Batch(
                cluster=cluster,
                node="scheduler",
                spool="scheduler",
                sequence=0,
                written=now,
                monotonic=0,
                agent="scheduler",
                jobs=[info for info in infos if info.cluster == cluster],
            )
        )
    changed = 0
    for place in range(0, len(infos), RUNS_BATCH_SIZE):
        some = infos[place : place + RUNS_BATCH_SIZE]
        with database.write() as transaction:
            transaction.lock("job", {f"{info.cluster} {info.job_id}" for info in some})
            bookings = RunWriter(transaction, now)
            changed += bookings.record_all(some)
            bookings.flush()
    return changed


def open_runs(connection: Connection, cluster: str) -> list[OpenRun]:
    """The cluster's runs that have not ended, as far as the store knows."""
    query = (
        select(
            runs.c.job_id,
            runs.c.start,
            runs.c.provisional,
            runs.c.state,
            runs.c.source,
            runs.c.name,
            runs.c.partition,
        )
        # Not in their order: SQLite would take the index that has it, and read all runs.
        .where(runs.c.cluster == cluster, runs.c.end.is_(None))
    )
    return [
        OpenRun(job_id, None if provisional else start, *others)
        for job_id, start, provisional, *others in sorted(
            connection.execute(query), key=lambda row: (row.job_id, row.start)
        )
    ]


#: Documents in one transaction: agents' batches wait no longer than these take.
RECORDS_BATCH_SIZE = 1000

_RECORD_DETAILS = """
    INSERT INTO run_details (run_id, changed, data)
    SELECT id, :now, :data FROM runs
    WHERE cluster = :cluster AND job_id = :job_id AND start = :start AND NOT provisional
    ON CONFLICT (run_id) DO UPDATE SET changed = excluded.changed, data = excluded.data
    WHERE run_details.data <> excluded.data
"""
_KEEP_RECORD = """
    INSERT INTO cluster_records (cluster, kind, name, changed, data)
    VALUES (:cluster, :kind, :name, :now, :data)
    ON CONFLICT (cluster, kind, name) DO UPDATE SET changed = excluded.changed, data = excluded.data
    WHERE cluster_records.data <> excluded.data
"""
_DROP_RECORD = """
    DELETE FROM cluster_records WHERE cluster = :cluster AND kind = :kind AND name = :name
"""


class ClusterDocument(NamedTuple):
    """One node, partition or the like."""

    name: str
    changed: int
    data: bytes


def record_details(database: Database, details: Iterable[tuple[Run, bytes]], now: int) -> None:
    """Keep a document for each run; the store must know the runs by now."""
    rows = (
        {"cluster": run.cluster, "job_id": run.job_id, "start": run.start, "now": now, "data": data}
        for run, data in details
    )
    for group in _groups(rows):
        with database.write() as transaction:
            transaction.execute_many(_RECORD_DETAILS, group)


def details_of(connection: Connection, run_id: int) -> bytes | None:
    """The document of a run."""
    query = select(run_details.c.data).where(run_details.c.run_id == run_id)
    found: bytes | None = connection.scalar(query)
    return found


def keep_records(
    database: Database,
    cluster: str,
    kind: str,
    changed: Mapping[str, bytes],
    gone: Iterable[str],
    now: int,
) -> None:
    """Bring the cluster's records of one kind up to date."""
    key = {"cluster": cluster, "kind": kind}
    kept = (key | {"name": name, "now": now, "data": data} for name, data in changed.items())
    for group in _groups(kept):
        with database.write() as transaction:
            transaction.execute_many(_KEEP_RECORD, group)
    dropped: Iterator[dict[str, object]] = ({**key, "name": name} for name in gone)
    for group in _groups(dropped):
        with database.write() as transaction:
            transaction.execute_many(_DROP_RECORD, group)


def list_records(connection: Connection, cluster: str, kind: str) -> list[ClusterDocument]:
    """The cluster's records of one kind, by name."""
    table = cluster_records.c
    query = (
        select(table.name, table.changed, table.data)
        .where(table.cluster == cluster, table.kind == kind)
        .order_by(table.name)
    )
    return [ClusterDocument(*row) for row in connection.execute(query)]


def list_clusters(connection: Connection) -> list[str]:
    """The clusters of which there are records."""
    query = select(cluster_records.c.cluster).distinct().order_by(cluster_records.c.cluster)
    return list(connection.scalars(query))


def _groups(rows: Iterable[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    group: list[dict[str, object]] = []
    for row in rows:
        group.append(row)
        if len(group) == RECORDS_BATCH_SIZE:
            yield group
            group = []
    if group:
        yield group


_READ = "SELECT value, text FROM checkpoints WHERE name = :name"
_SET = """
    INSERT INTO checkpoints (name, value, text) VALUES (:name, :value, :text)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, text = excluded.text
"""
_REMOVE = "DELETE FROM checkpoints WHERE name = :name"


class Checkpoint(NamedTuple):
    value: int
    text: str | None = None


def read_checkpoint(transaction: Transaction, name: str) -> Checkpoint | None:
    found = transaction.execute(_READ, {"name": name}).fetchone()
    return None if found is None else Checkpoint(*found)


def set_checkpoint(
    transaction: Transaction, name: str, value: int, text: str | None = None
) -> None:
    transaction.execute(_SET, {"name": name, "value": value, "text": text})


def remove_checkpoint(transaction: Transaction, name: str) -> None:
    transaction.execute(_REMOVE, {"name": name})
