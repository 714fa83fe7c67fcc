"""The time series of nodes as a whole, whatever ran on them, and the sums of a cluster by day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jobsight.model import SECOND
from jobsight.store.database import Database
from jobsight.store.read.queries import StoredSeries, read_series
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("node_days")
_DAY: Final = 86400 * SECOND


class NodesDay(NamedTuple):
    """What the CPUs of the nodes of a cluster did on one day, in seconds."""

    cpu_time: float
    core_time: float


def series_of_node(
    database: Database, cluster: str, node: str, metrics: Sequence[str], since: int, until: int
) -> StoredSeries | None:
    """The time series of a node; None if there are none in the interval."""
    values = {
        "cluster": cluster,
        "node": node,
        "since": since,
        "until": until,
        "first_day": since // _DAY,
        "last_day": until // _DAY,
    }
    with database.query() as transaction:
        rows = transaction.execute(_SQL["chunks_of_node"], values).fetchall()
        chunks = [(id, size) for id, size in rows]
        if not chunks:
            return None
        interval = (since, until)
        return read_series(transaction, node, chunks, _SQL["chunk_data"], metrics, interval)


def use_by_day(database: Database, cluster: str, since: int, until: int) -> dict[int, NodesDay]:
    """What the nodes of a cluster did on the days that are over, by day since 1970."""
    values = {"cluster": cluster, "since": since, "until": until}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["use_by_day"], values).fetchall()
    return {day: NodesDay(int(busy) / 1e6, int(whole) / 1e6) for day, busy, whole in rows}
