"""Curves with fewer rows, to be kept longer: counters keep their totals, gauges their means."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from jobsight.metrics import find_metric
from jobsight.store import chunks, frames
from jobsight.store.chunks import absent
from jobsight.store.compaction import MAX_VALUES
from jobsight.store.curves import Curves, join, present, summarise
from jobsight.store.transforms import Integers, Values

#: So many stretches always stay: the page of a short job draws its curve as before.
POINTS = 120
#: Chunks are left as they are where less than this share of their bytes would go.
WORTHWHILE = 0.25
#: A mean below this is kept with decimals: "1.5 processes" must not become two.
SMALL = 1000

Places = npt.NDArray[np.intp]

_encode = msgspec.msgpack.Encoder().encode


class Thinned(NamedTuple):
    """What takes the place of a node's chunks."""

    first: int
    last: int
    rows: int
    data: bytes
    #: That of the rows as they were: the true minimum and maximum are known only there.
    summary: bytes
    resolution: int


def thin_chunks(data: list[bytes], resolution: int) -> list[Thinned] | None:
    """Thin all chunks of one node; None where that is not worthwhile."""
    parts = [Curves(*chunks.decode(piece)) for piece in data]
    names = {name for part in parts for name in part.columns}
    rows = sum(len(part.times) for part in parts)
    # Chunks that were too large for one stay apart: memory is bounded, and readers join them.
    whole = [join(parts)] if rows * len(names) <= MAX_VALUES else parts
    made = [_thin_one(part, resolution) for part in whole if len(part.times)]
    if sum(len(part.data) for part in made) > (1 - WORTHWHILE) * sum(map(len, data)):
        return None
    return made


def _thin_one(curves: Curves, resolution: int) -> Thinned:
    # Of a chunk that has just arrived the times may be in any order.
    curves = join([curves])
    width = stretch(int(curves.times[-1]) - int(curves.times[0]), resolution)
    made = thin(curves, width)
    return Thinned(
        first=int(made.times[0]),
        last=int(made.times[-1]),
        rows=len(made.times),
        data=chunks.encode(made.times, made.columns),
        summary=frames.compress(_encode(summarise(curves))),
        resolution=width,
    )


def stretch(length: int, resolution: int) -> int:
    """Nanoseconds that become one row, of curves that are so long."""
    return max(min(resolution, length // POINTS), 1)


def thin(curves: Curves, width: int) -> Curves:
    """Keep one row of each stretch; the times must be in order.

    A row is the last of its stretch, with the counters as they stood then. A gauge is its mean over
    the time since the row before, each reading weighted with the time for which it stands, so that
    the integral stays. The first row stays, and so do the rows around each place where a counter
    began: what a counter has grown in all can still be read off.
    """
    rows = _kept(curves, width)
    return Curves(
        curves.times[rows],
        {
            name: _counter(values, rows) if _counts(name) else _gauge(curves.times, values, rows)
            for name, values in curves.columns.items()
        },
    )


def _counts(name: str) -> bool:
    metric = find_metric(name)
    return metric is not None and metric.kind == "counter"


def _kept(curves: Curves, width: int) -> Places:
    stretches = curves.times // width
    kept = np.append(stretches[1:] != stretches[:-1], True)
    kept[0] = True
    for name, values in curves.columns.items():
        there = np.flatnonzero(present(values))
        if not _counts(name) or not len(there):
            continue
        kept[there[0]] = True
        known = values[there]
        falls = np.flatnonzero(known[1:] < known[:-1])
        kept[there[falls]] = True
        kept[there[falls + 1]] = True
    return np.flatnonzero(kept)


def _counter(values: Values, rows: Places) -> Values:
    """The last reading up to each kept row since the one before it."""
    places = np.where(present(values), np.arange(len(values)), -1)
    last = np.maximum.reduceat(places, _begins(rows))
    return np.where(last < 0, absent(values.dtype.kind, len(rows)), values[last])


def _gauge(times: Integers, values: Values, rows: Places) -> Values:
    there = np.flatnonzero(present(values))
    mean: npt.NDArray[np.float64] = np.full(len(rows), np.nan)
    if len(there):
        known = values[there].astype(np.float64)
        weights = np.diff(times[there], prepend=times[there[0]]).astype(np.float64)
        # The kept row that each reading belongs to: the first at or behind it.
        owner = np.searchsorted(rows, there)
        weight = np.bincount(owner, weights, len(rows))
        count = np.bincount(owner, minlength=len(rows))
        with np.errstate(all="ignore"):
            timed = np.bincount(owner, known * weights, len(rows)) / weight
            plain = np.bincount(owner, known, len(rows)) / count
        # Only the very first reading stands for no time.
        mean = np.where(weight > 0, timed, plain)
    unknown = np.isnan(mean)
    if values.dtype.kind == "i" and np.nanmax(np.abs(mean), initial=SMALL) > SMALL:
        whole = np.where(unknown, 0.0, np.rint(mean))
        # The nearest float of the largest integer is one above it.
        whole = np.clip(whole, -(2.0**63) + 1024, 2.0**63 - 1024)
        return np.where(unknown, absent("i", len(rows)), whole.astype(np.int64))
    return np.where(unknown, absent("f", len(rows)), mean)


def _begins(rows: Places) -> Places:
    """The first row of each segment that ends with a kept row."""
    return np.concatenate(([0], rows[:-1] + 1))
