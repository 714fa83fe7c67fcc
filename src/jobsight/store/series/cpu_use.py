"""What the CPUs of a node did, from its own time series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from jobsight.store.series.blocks import SeriesBlock, present

#: Waiting for I/O is idle time.
BUSY: Final = ("node.cpu.user", "node.cpu.system")
IDLE: Final = ("node.cpu.idle", "node.cpu.iowait", "node.cpu.stolen")


def cpu_use(blocks: Iterable[SeriesBlock]) -> tuple[int | None, int | None]:
    """Busy and idle nanoseconds of all CPUs in the time that the blocks cover; None if that was not
    measured."""
    busy = idle = None
    for block in blocks:
        busy = _sum(busy, block, BUSY)
        idle = _sum(idle, block, IDLE)
    return busy, idle


def _sum(total: int | None, block: SeriesBlock, names: Iterable[str]) -> int | None:
    for name in names:
        values = block.columns.get(name)
        if values is None:
            continue
        known = values[present(values)]
        if len(known) > 1:
            steps = np.diff(known)
            # A counter that falls was reset, when the node booted.
            total = (total or 0) + int(steps[steps > 0].sum())
    return total
