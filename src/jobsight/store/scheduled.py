"""What the scheduler alone knows: all it says of a run, and the cluster's nodes and partitions.

Documents are bytes here; the scheduler's part writes and reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, select

from jobsight.model import Run
from jobsight.store.database import Database
from jobsight.store.derived import cluster_records, run_details

#: Documents in one transaction: agents' batches wait no longer than these take.
AT_ONCE = 1000

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
        if len(group) == AT_ONCE:
            yield group
            group = []
    if group:
        yield group
