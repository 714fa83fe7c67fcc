"""Chunks joined: a few while a job runs, all of a node's when it has ended there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from jobsight.store import chunks, statements
from jobsight.store.curves import Curves, join, summarise
from jobsight.store.database import Transaction

#: So many parts wait until they are joined: each is then rewritten twice in its life, and the
#: curves of a running job are read from few chunks.
OPEN_CHUNKS = 64
#: Values (rows times metrics) of one chunk at most, which bounds the memory it takes to read one.
MAX_VALUES = 1 << 23

ARRIVED, JOINED, WHOLE = 0, 1, 2

_encode = msgspec.msgpack.Encoder().encode


def join_chunks(transaction: Transaction, run_node_id: int, *, whole: bool) -> None:
    """Replace the waiting chunks of a node (all of its chunks where ``whole``) by one."""
    node = {"run_node_id": run_node_id}
    if whole:
        found = transaction.execute(statements.CHUNKS_OF_NODE, node).fetchall()
    else:
        found = transaction.execute(statements.CHUNKS_BELOW, node | {"level": JOINED}).fetchall()
    level = WHOLE if whole else JOINED
    # In the order of arrival, so that of two readings at one time the later one stays.
    joined = [_row(run_node_id, level, curves) for curves in _groups(found)]
    transaction.execute_many(statements.DELETE_CHUNK, [{"id": id} for id, _ in found])
    transaction.execute_many(statements.INSERT_CHUNK, joined)


def _groups(found: list[tuple[int, bytes]]) -> Iterator[Curves]:
    waiting: list[Curves] = []
    rows = 0
    names: set[str] = set()
    for _, data in found:
        part = Curves(*chunks.decode(data))
        if waiting and (rows + len(part.times)) * len(names | part.columns.keys()) > MAX_VALUES:
            yield join(waiting)
            waiting, rows, names = [], 0, set()
        waiting.append(part)
        rows += len(part.times)
        names |= part.columns.keys()
    if waiting:
        yield join(waiting)


def _row(run_node_id: int, level: int, curves: Curves) -> dict[str, object]:
    return {
        "run_node_id": run_node_id,
        "first": int(curves.times[0]),
        "last": int(curves.times[-1]),
        "rows": len(curves.times),
        "level": level,
        "data": chunks.encode(curves.times, curves.columns),
        "summary": chunks.compress(_encode(summarise(curves))),
    }
