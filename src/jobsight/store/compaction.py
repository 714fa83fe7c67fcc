"""Chunks joined: a few while a job runs, all of a node's when it has ended there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from jobsight.store import chunks, frames, statements
from jobsight.store.curves import Curves, join, summarise
from jobsight.store.database import Transaction

#: Values (rows times metrics) of one chunk at most, which bounds the memory it takes to read one.
MAX_VALUES = 1 << 23

ARRIVED, JOINED, WHOLE = 0, 1, 2

_encode = msgspec.msgpack.Encoder().encode


def join_chunks(transaction: Transaction, run_node_id: int, *, whole: bool) -> None:
    """Replace the waiting chunks of a node (all of its chunks where ``whole``) by one."""
    replaced = {"run_node_id": run_node_id, "level": WHOLE if whole else ARRIVED}
    found = transaction.execute(statements.CHUNKS_UP_TO, replaced).fetchall()
    level = WHOLE if whole else JOINED
    # In the order of arrival, so that of two readings at one time the later one stays.
    joined = [_row(run_node_id, level, curves) for curves in _groups(found)]
    transaction.execute(statements.DELETE_CHUNKS_UP_TO, replaced)
    transaction.execute_many(statements.INSERT_CHUNK, joined)


def _groups(found: list[tuple[bytes]]) -> Iterator[Curves]:
    waiting: list[Curves] = []
    rows = 0
    names: set[str] = set()
    for times, columns in chunks.decode_many(data for (data,) in found):
        part = Curves(times, columns)
        if waiting and (rows + len(part.times)) * len(names | part.columns.keys()) > MAX_VALUES:
            yield join(waiting)
            waiting, rows, names = [], 0, set()
        waiting.append(part)
        rows += len(part.times)
        names |= part.columns.keys()
    if waiting:
        yield join(waiting)


def _row(run_node_id: int, level: int, curves: Curves) -> dict[str, object]:
    # What waits for the end of its run is packed once more then: the search can wait too.
    encode = chunks.encode if level == WHOLE else chunks.encode_quickly
    return {
        "run_node_id": run_node_id,
        "first": int(curves.times[0]),
        "last": int(curves.times[-1]),
        "rows": len(curves.times),
        "level": level,
        "data": encode(curves.times, curves.columns),
        "summary": frames.compress(_encode(summarise(curves))),
    }
