"""What the CPUs of a node did, from its own time series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from jobsight.store.series.blocks import SeriesBlock
from jobsight.store.series.packing import Integers, Values

#: Waiting for I/O is idle time.
BUSY: Final = ("node.cpu.user", "node.cpu.system")
IDLE: Final = ("node.cpu.idle", "node.cpu.iowait", "node.cpu.stolen")
_LOW: Final = 2**32 - 1


def cpu_use(block: SeriesBlock) -> tuple[int | None, int | None]:
    """Busy and idle nanoseconds of all CPUs in the time that a block covers; None if that was not
    measured. The sums are exact, whatever a node has sent."""
    return _sum(block, BUSY), _sum(block, IDLE)


def _sum(block: SeriesBlock, names: Iterable[str]) -> int | None:
    total: int | None = None
    for name in names:
        values = block.columns.get(name)
        if values is None:
            continue
        known = _counted(values)
        if len(known) > 1:
            # Of numbers that are not negative, no difference overflows.
            steps = np.diff(known)
            # A counter that falls was reset, when the node booted.
            steps = steps[steps > 0]
            # In two halves, whose sums cannot overflow.
            total = (total or 0) + (int((steps >> 32).sum()) << 32) + int((steps & _LOW).sum())
    return total


def _counted(values: Values) -> Integers:
    """The values that a counter can have. A store may have others from before they were refused:
    floating-point numbers and negative ones."""
    # A missing value is negative, or compares false with everything.
    possible = values >= 0
    if values.dtype.kind == "f":
        possible &= values < 2.0**63
    return values[possible].astype(np.int64)
