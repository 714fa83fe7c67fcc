"""The CPU counter of a run at the midnights it went through, from its curves."""

from __future__ import annotations

import logging

import numpy as np

from jobsight.store import chunks as codec
from jobsight.store.contributions import NodeFacts, RunFacts
from jobsight.store.curves import Curves, join, present
from jobsight.store.database import Transaction
from jobsight.store.frames import ChunkError

logger = logging.getLogger("jobsight.store")

_CPU = "cpu.time"
_CHUNKS_OF_RUN = """
    SELECT run_nodes.id, chunks.data
    FROM run_nodes JOIN chunks ON chunks.run_node_id = run_nodes.id
    WHERE run_nodes.run_id = :id ORDER BY run_nodes.id, chunks.id
"""


def with_midnights(
    transaction: Transaction, run: RunFacts, nodes: dict[int, NodeFacts]
) -> list[NodeFacts]:
    """The nodes of a run, with their counters at its midnights where curves tell them."""
    if not nodes or not run.midnights():
        return list(nodes.values())
    parts: dict[int, list[Curves]] = {}
    for run_node_id, data in transaction.execute(_CHUNKS_OF_RUN, {"id": run.id}).fetchall():
        try:
            times, columns = codec.decode(bytes(data), frozenset([_CPU]))
        except ChunkError as error:
            # Its hours are right without it, only less exactly laid on the days.
            logger.warning("a curve of run %d is left out of its sums: %s", run.id, error)
            continue
        if _CPU in columns:
            parts.setdefault(run_node_id, []).append(Curves(times, columns))
    return [
        node._replace(at_midnight=_read_off(join(parts[id]), run, node)) if id in parts else node
        for id, node in nodes.items()
    ]


def _read_off(curves: Curves, run: RunFacts, node: NodeFacts) -> list[int]:
    """The counter between two points is taken to have grown evenly."""
    start, end = run.interval()
    values = curves.columns[_CPU]
    inside = present(values) & (curves.times > start) & (curves.times < end)
    # It counts from nothing at the start and up to what was booked at the end.
    times = np.concatenate(([start], curves.times[inside], [end])) - start
    points = np.concatenate(([0], values[inside], [node.counted()])).astype(np.float64)
    counter = np.minimum(np.maximum.accumulate(points), node.counted())
    midnights = np.array(run.midnights(), dtype=np.int64) - start
    return [int(value) for value in np.interp(midnights, times, counter)]
