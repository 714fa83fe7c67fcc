"""Time series of made-up nodes, with known figures."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable
from typing import Any

from jobsight.model import MISSING, SECOND, Batch, Series
from jobsight.store.store import Store
from tests.store.sample import batch

DAY = 86400 * SECOND
CPUS = 32
MEMORY = 128 * 2**30
#: Samples that an agent sends together.
ROWS = 5


def node_series(
    since: int,
    rows: int,
    step: int = 60 * SECOND,
    busy: Callable[[int], float] = lambda time: 8.0,
    first_of_all: int | None = None,
) -> Series:
    """Samples from ``since`` on, of a node on which ``busy`` CPUs work, a quarter of that in the
    kernel; its counters began at zero at ``first_of_all``."""
    times = array("q", (since + row * step for row in range(rows)))
    columns: dict[str, Any] = {
        "node.load.1m": array("d", (busy(time) + 0.5 for time in times)),
        "node.memory.total": array("q", [MEMORY] * rows),
        "node.memory.used": array("q", (round(2**30 * (4 + 2 * busy(time))) for time in times)),
        "node.memory.cache": array("q", [40 * 2**30] * rows),
    }
    # The integral of busy since the beginning, by steps.
    begin = since if first_of_all is None else first_of_all
    total = sum(busy(time) * step for time in range(begin, since, step))
    user, system, idle = array("q"), array("q"), array("q")
    received = array("q")
    for time in times:
        user.append(round(total * 0.75))
        system.append(round(total * 0.25))
        idle.append(round((time - begin) * CPUS - total))
        # Ten megabytes a second.
        received.append((time - begin) // SECOND * 10**7)
        total += busy(time) * step
    columns |= {"node.cpu.user": user, "node.cpu.system": system, "node.cpu.idle": idle}
    columns |= {
        "node.network.received_bytes": received,
        "node.network.sent_bytes": array("q", (value // 2 for value in received)),
        "node.energy.node": array("q", ((time - begin) // SECOND * 250_000_000 for time in times)),
        "node.pressure.cpu": array("q", ((time - begin) // 50 for time in times)),
        "node.pressure.io": array("q", ((time - begin) // 10 for time in times)),
        "node.disk.read_bytes": array("q", ((time - begin) // SECOND * 10**6 for time in times)),
        "node.disk.written_bytes": array("q", [MISSING] * rows),
    }
    return Series(times, columns)


def node_batch(series: Series, node: str = "n1", **more: Any) -> Batch:
    return batch(node=node, node_series=series, **({"written": series.times[-1]} | more))


def write_day(store: Store, since: int, hours: float = 24.0, node: str = "n1", **more: Any) -> None:
    """The batches of a node as an agent sends them, from ``since`` on."""
    step = 60 * SECOND
    rows = round(hours * 60)
    for first in range(0, rows, ROWS):
        count = min(ROWS, rows - first)
        begin = since + first * step
        series = node_series(begin, count, step, first_of_all=since, **more)
        assert store.write(node_batch(series, node))


def wave(time: int) -> float:
    """Between 2 and 22 busy CPUs, once every eight hours, and never quite the same."""
    noise = random.Random(time).uniform(-1, 1)
    return 12 + 9 * math.sin(time / (8 * 3600 * SECOND) * 2 * math.pi) + noise
