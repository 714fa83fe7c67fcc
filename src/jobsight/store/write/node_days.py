"""Store the time series of a node as a whole, by day of UTC.

A day of a node is for them what a run is for the series of jobs: chunks are joined in groups while
it lasts, and to one when it is over. The latter is done by
:mod:`jobsight.store.maintenance.node_days`, outside of the transactions of batches: a node chooses
how many days it sends, and how much of each. A late part of a complete day waits for others as any
part does. The node is the one that the batch is from; a series has no name of another.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jobsight.model import SECOND, Column, Series, format_of
from jobsight.store.schema.statements import ChunkStatements
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.store.write.bounds import MAX_NODE_DAY_VALUES
from jobsight.store.write.excess import count_excess
from jobsight.store.write.parts import MAX_OPEN_CHUNKS, pack_series

logger = logging.getLogger(__name__)

DAY: Final = 86400 * SECOND
#: Rows of a chunk that is joined with others in the transaction of a batch. An agent sends a few.
MAX_OPEN_ROWS: Final = 256

_SQL: Final = load_statements("node_days")
#: The owner is a row of ``node_days``.
NODE_CHUNKS: Final = ChunkStatements.of(_SQL)


class PackedDay(NamedTuple):
    """The time series of a node on one day, as a row of ``node_chunks``."""

    day: int
    values: int
    chunk: dict[str, object]
    first: int
    last: int
    #: It waits to be joined with others.
    is_open: bool


def pack_days(series: Series) -> list[PackedDay]:
    """Encode a series for each day that it is of."""
    return [_pack_day(day, part) for day, part in _by_day(series)]


def _pack_day(day: int, series: Series) -> PackedDay:
    from jobsight.store.series.blocks import JOINED, SeriesBlock, chunk_row, join
    from jobsight.store.series.codec import decode

    packed = pack_series(series)
    values = len(series) * (1 + len(series.columns))
    is_open = len(series) <= MAX_OPEN_ROWS
    chunk: dict[str, object] = {**packed._asdict(), "summary": None}
    if not is_open:
        # Large enough to stay as it is while the day lasts, and too large to be joined with others
        # in a transaction.
        chunk = chunk_row(0, JOINED, join([SeriesBlock(*decode(packed.data))]))
    return PackedDay(day, values, chunk, packed.first, packed.last, is_open)


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
    return array(format_of(column), [column[row] for row in rows])


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
    waiting = []
    for each in days:
        stored = known.get(each.day)
        id, _, first, last, open_chunks, values = stored or (
            *(transaction.new_id("node_days"), each.day, each.first, each.last),
            *(0, 0),
        )
        if values + each.values > MAX_NODE_DAY_VALUES:
            sentence = f"node {node} has more than {MAX_NODE_DAY_VALUES:,} values of its own a day"
            count_excess(transaction, cluster, each.values, sentence)
            sentences.append(sentence)
            continue
        figures = {
            "id": id,
            "first_sample": min(first, each.first),
            "last_sample": max(last, each.last),
            "open_chunks": open_chunks + each.is_open,
            "stored_values": values + each.values,
        }
        if stored is None:
            place = {"cluster": cluster, "node": node, "day": each.day}
            transaction.execute(_SQL["insert_node_day"], place | figures)
        else:
            transaction.execute(_SQL["update_node_day"], figures)
        transaction.execute(NODE_CHUNKS.insert, each.chunk | {"owner": id})
        if open_chunks + each.is_open >= MAX_OPEN_CHUNKS:
            waiting.append(id)
    if waiting:
        # The others wait for the next batch.
        _join(transaction, waiting[0])
    return sentences


def _join(transaction: Transaction, id: int) -> None:
    """Join the open chunks of a day."""
    # Imported late: only time series need numpy.
    from jobsight.store.series.blocks import join_chunks
    from jobsight.store.series.codec import ChunkError

    try:
        join_chunks(transaction, id, complete=False, table=NODE_CHUNKS)
    except ChunkError as error:
        # Nothing is changed by then. A damaged chunk, which the check reports, must not stop the
        # batches of the node.
        logger.debug("day %d of a node is not joined: %s", id, error)
        return
    transaction.execute(_SQL["clear_open_chunks"], {"id": id})
