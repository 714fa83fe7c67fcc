"""Store the time series of a node as a whole, by day of UTC.

A day of a node is for them what a run is for the series of jobs: chunks are joined in groups while
it lasts, and to one when it is over. The first series of a later day say that it is. The node is
the one that the batch is from; a series has no name of another.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.model import SECOND, Column, Series
from jobsight.store.schema.statements import ChunkStatements
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.store.write.bounds import MAX_NODE_DAY_VALUES
from jobsight.store.write.excess import count_excess
from jobsight.store.write.parts import MAX_OPEN_CHUNKS, PackedSeries, pack_series

if TYPE_CHECKING:
    from jobsight.store.series.blocks import SeriesBlock

logger = logging.getLogger(__name__)

DAY: Final = 86400 * SECOND
#: Rollups have microseconds.
_MICROSECOND: Final = 1000

_SQL: Final = load_statements("node_days")
#: The owner is a row of ``node_days``.
NODE_CHUNKS: Final = ChunkStatements.of(_SQL)


class PackedDay(NamedTuple):
    """The time series of a node on one day, as a row of ``node_chunks``."""

    day: int
    values: int
    series: PackedSeries


def pack_days(series: Series) -> list[PackedDay]:
    """Encode a series for each day that it is of."""
    return [
        PackedDay(day, len(part) * (1 + len(part.columns)), pack_series(part))
        for day, part in _by_day(series)
    ]


def _by_day(series: Series) -> Iterator[tuple[int, Series]]:
    first, last = min(series.times) // DAY, max(series.times) // DAY
    if first == last:
        yield int(first), series
        return
    for day in sorted({int(time) // DAY for time in series.times}):
        rows = [row for row, time in enumerate(series.times) if time // DAY == day]
        columns = {name: _chosen(column, rows) for name, column in series.columns.items()}
        yield day, Series(_chosen(series.times, rows), columns)


def _chosen(column: Column, rows: Sequence[int]) -> Column:
    kind = column.format if isinstance(column, memoryview) else column.typecode
    return array(kind, [column[row] for row in rows])


def store_days(
    transaction: Transaction, cluster: str, node: str, days: Sequence[PackedDay]
) -> list[str]:
    """Store the series of a node, whose agent must be locked; returns a sentence for each day that
    has too many of them."""
    known = {
        row[1]: row
        for row in transaction.look_up(
            _SQL["find_node_days"], [(cluster, node, each.day) for each in days]
        )
    }
    sentences = []
    for each in days:
        stored = known.get(each.day)
        id, _, first, last, open_chunks, values, complete = stored or (
            *(transaction.new_id("node_days"), each.day, each.series.first, each.series.last),
            *(0, 0, False),
        )
        if values + each.values > MAX_NODE_DAY_VALUES:
            sentence = f"node {node} has more than {MAX_NODE_DAY_VALUES:,} values of its own a day"
            count_excess(transaction, cluster, each.values, sentence)
            sentences.append(sentence)
            continue
        figures = {
            "id": id,
            "first_sample": min(first, each.series.first),
            "last_sample": max(last, each.series.last),
            "open_chunks": open_chunks + 1,
            "stored_values": values + each.values,
        }
        if stored is None:
            place = {"cluster": cluster, "node": node, "day": each.day}
            transaction.execute(_SQL["insert_node_day"], place | figures)
        else:
            transaction.execute(_SQL["update_node_day"], figures)
        chunk = {"owner": id, **each.series._asdict(), "summary": None}
        transaction.execute(NODE_CHUNKS.insert, chunk)
        if complete or open_chunks + 1 >= MAX_OPEN_CHUNKS:
            _join(transaction, id, complete=complete)
    latest = {"cluster": cluster, "node": node, "day": max(each.day for each in days)}
    for (id,) in transaction.execute(_SQL["days_to_complete"], latest).fetchall():
        _join(transaction, id, complete=True)
    return sentences


def _join(transaction: Transaction, id: int, *, complete: bool) -> None:
    # Imported late: only time series need numpy.
    from jobsight.store.series.blocks import join_chunks
    from jobsight.store.series.codec import ChunkError

    try:
        if complete:
            complete_day(transaction, id)
        else:
            join_chunks(transaction, id, complete=False, table=NODE_CHUNKS)
            transaction.execute(_SQL["clear_open_chunks"], {"id": id})
    except ChunkError as error:
        # Nothing is changed by then. A damaged chunk, which the check reports, must not stop the
        # batches of the node.
        logger.debug("day %d of a node is not joined: %s", id, error)


def complete_day(transaction: Transaction, id: int) -> None:
    """Join all chunks of a day that is over, and compute its sums for the cluster."""
    from jobsight.store.series.blocks import join_chunks
    from jobsight.store.series.cpu_use import cpu_use

    blocks: list[SeriesBlock] = []
    join_chunks(transaction, id, complete=True, table=NODE_CHUNKS, visit=blocks.append)
    busy, idle = cpu_use(blocks)
    sums = {"cpu_time": busy, "core_time": None if busy is None else busy + (idle or 0)}
    rounded = {
        name: None if value is None else round(value / _MICROSECOND) for name, value in sums.items()
    }
    transaction.execute(_SQL["complete_node_day"], rounded | {"id": id})
