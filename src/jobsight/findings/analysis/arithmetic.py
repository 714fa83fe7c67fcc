"""Arithmetic with figures that may not be known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from jobsight.findings.timeline import Floats

#: Reasons that several themes give.
NO_CORES: Final = "the number of allocated CPUs is not known"
NO_TIME: Final = "how long the run lasted is not known"
NO_TIMES: Final = "it is not known when the programs ran"
NO_NODE_RECORDS: Final = "the scheduler's records of the nodes are not known"


def ratio(part: float | None, whole: float | None) -> float | None:
    """A part of a whole; None if one is not known or the whole is nothing."""
    return part / whole if part is not None and whole else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def quantile(values: Floats, share: float) -> float:
    """The quantile of some values, without missing ones: numpy's own takes most of its time for the
    forms of arguments that are not used here."""
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    ordered = np.partition(values, (low, high))
    below = float(ordered[low])
    return below + (float(ordered[high]) - below) * (place - low)
