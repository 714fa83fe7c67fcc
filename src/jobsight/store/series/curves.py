"""Stretches of curves put together, and summed up.

Chunks joined: a few while a job runs, all of a node's when it has ended there.

Curves with fewer rows, to be kept longer: counters keep their totals, gauges their means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from jobsight.metrics import find_metric
from jobsight.model import MISSING
from jobsight.store.database import Transaction
from jobsight.store.schema import statements
from jobsight.store.series import codec
from jobsight.store.series.codec import absent
from jobsight.store.series.packing import Integers, Values, groups


class SeriesBlock(NamedTuple):
    """Some metrics of one run on one node over a stretch of time."""

    times: Integers
    columns: dict[str, Values]


class Summary(msgspec.Struct, array_like=True):
    """One metric over one stretch. Summaries of neighbouring stretches can be put together."""

    minimum: int | float
    maximum: int | float
    first: int | float
    last: int | float
    first_time: int
    last_time: int
    #: Of value times seconds, each value standing for the time since the one before.
    integral: float
    duration: float


def join(parts: Sequence[SeriesBlock]) -> SeriesBlock:
    """Put stretches together, sorted by time.

    Where two rows have the same time they become one; of each column the later part's reading
    stays, unless it is missing.
    """
    if len(parts) == 1 and (np.diff(parts[0].times) > 0).all():
        return parts[0]
    kinds: dict[str, str] = {}
    for part in parts:
        for name, values in part.columns.items():
            # Integers and floats under one name: only floats can hold both.
            kinds[name] = "f" if "f" in (kinds.get(name), values.dtype.kind) else "i"
    times = np.concatenate([part.times for part in parts]) if parts else np.zeros(0, np.int64)
    columns = {
        name: np.concatenate([_column(part, name, kind) for part in parts])
        for name, kind in kinds.items()
    }
    if len(times) < 2 or (np.diff(times) > 0).all():
        return SeriesBlock(times, columns)
    order = np.argsort(times, kind="stable")
    times = times[order]
    starts = np.flatnonzero(np.concatenate(([True], times[1:] != times[:-1])))
    repeated = len(starts) < len(times)
    for name, values in columns.items():
        values = values[order]
        if repeated:
            rows = np.arange(len(values))
            # The last row of each group that has a reading, else its first.
            best = np.maximum.reduceat(np.where(present(values), rows, -1), starts)
            values = values[np.where(best < 0, starts, best)]
        columns[name] = values
    return SeriesBlock(times[starts], columns)


def between(curves: SeriesBlock, since: int | None, until: int | None) -> SeriesBlock:
    """The rows from ``since`` to ``until``, both included."""
    first = 0 if since is None else int(np.searchsorted(curves.times, since, "left"))
    last = len(curves.times)
    if until is not None:
        last = int(np.searchsorted(curves.times, until, "right"))
    if first == 0 and last == len(curves.times):
        return curves
    columns = {name: values[first:last] for name, values in curves.columns.items()}
    return SeriesBlock(curves.times[first:last], columns)


def present(values: Values) -> npt.NDArray[np.bool_]:
    """Which readings are there."""
    found = values != MISSING if values.dtype.kind == "i" else ~np.isnan(values)
    return np.asarray(found, np.bool_)


def summarise(curves: SeriesBlock) -> dict[str, Summary]:
    """Sum up every metric that has a reading; the times must be in order."""
    found: dict[str, Summary] = {}
    for kind in ("i", "f"):
        names = [name for name, column in curves.columns.items() if column.dtype.kind == kind]
        for some in groups(names, len(curves.times)):
            found |= _summaries(curves, some)
    return {name: found[name] for name in curves.columns if name in found}


def _summaries(curves: SeriesBlock, names: Sequence[str]) -> dict[str, Summary]:
    """Those of metrics of one type: of whole columns together, of each other by itself."""
    matrix: Values = np.stack([curves.columns[name] for name in names])  # type: ignore[assignment]
    there = present(matrix)
    whole: npt.NDArray[np.bool_] = np.all(there, axis=1)
    complete = [name for name, all_there in zip(names, whole, strict=True) if all_there]
    found = {}
    if complete:
        values = matrix if len(complete) == len(names) else matrix[whole]
        found = dict(zip(complete, _sum_up(values, curves.times), strict=True))
    for name, values, readings in zip(names, matrix, there, strict=True):
        if name not in found and readings.any():
            found[name] = _sum_up(values[None, readings], curves.times[readings])[0]
    return found


def _sum_up(values: Values, times: Integers) -> list[Summary]:
    gaps = np.diff(times) / 1e9
    with np.errstate(all="ignore"):
        integrals = (values[:, 1:] * gaps).sum(axis=1)
    figures = zip(
        values.min(axis=1).tolist(),
        values.max(axis=1).tolist(),
        values[:, 0].tolist(),
        values[:, -1].tolist(),
        integrals.tolist(),
        strict=True,
    )
    first_time, last_time, duration = int(times[0]), int(times[-1]), float(gaps.sum())
    return [
        Summary(minimum, maximum, first, last, first_time, last_time, integral, duration)
        for minimum, maximum, first, last, integral in figures
    ]


def combine(summaries: Iterable[Summary]) -> tuple[float, float, float, float]:
    """Minimum, mean, maximum and last of stretches that together are one curve."""
    parts = sorted(summaries, key=lambda part: (part.first_time, part.last_time))
    integral = duration = 0.0
    end = parts[0].first_time
    for part in parts:
        gap = max(part.first_time - end, 0) / 1e9
        integral += part.integral + part.first * gap
        duration += part.duration + gap
        end = max(end, part.last_time)
    last = max(parts, key=lambda part: part.last_time).last
    mean = integral / duration if duration else parts[0].first
    return (
        min(part.minimum for part in parts),
        mean,
        max(part.maximum for part in parts),
        last,
    )


def _column(part: SeriesBlock, name: str, kind: str) -> Values:
    values = part.columns.get(name)
    if values is None:
        return absent(kind, len(part.times))
    if kind == "f" and values.dtype.kind == "i":
        return np.where(present(values), values.astype(np.float64), absent("f", len(values)))
    return values


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


def _groups(found: list[tuple[bytes]]) -> Iterator[SeriesBlock]:
    waiting: list[SeriesBlock] = []
    rows = 0
    names: set[str] = set()
    for times, columns in codec.decode_many(data for (data,) in found):
        part = SeriesBlock(times, columns)
        if waiting and (rows + len(part.times)) * len(names | part.columns.keys()) > MAX_VALUES:
            yield join(waiting)
            waiting, rows, names = [], 0, set()
        waiting.append(part)
        rows += len(part.times)
        names |= part.columns.keys()
    if waiting:
        yield join(waiting)


def _row(run_node_id: int, level: int, curves: SeriesBlock) -> dict[str, object]:
    # What waits for the end of its run is packed once more then: the search can wait too.
    encode = codec.encode if level == WHOLE else codec.encode_quickly
    return {
        "run_node_id": run_node_id,
        "first": int(curves.times[0]),
        "last": int(curves.times[-1]),
        "rows": len(curves.times),
        "level": level,
        "data": encode(curves.times, curves.columns),
        "summary": codec.compress(_encode(summarise(curves))),
    }


#: So many stretches always stay: the page of a short job draws its curve as before.
POINTS = 120
#: Chunks are left as they are where less than this share of their bytes would go.
WORTHWHILE = 0.25
#: A mean below this is kept with decimals: "1.5 processes" must not become two.
SMALL = 1000

Places = npt.NDArray[np.intp]


class Downsampled(NamedTuple):
    """What takes the place of a node's chunks."""

    first: int
    last: int
    rows: int
    data: bytes
    #: That of the rows as they were: the true minimum and maximum are known only there.
    summary: bytes
    resolution: int


def downsample_chunks(data: list[bytes], resolution: int) -> list[Downsampled] | None:
    """Thin all chunks of one node; None where that is not worthwhile."""
    parts = [SeriesBlock(*codec.decode(piece)) for piece in data]
    names = {name for part in parts for name in part.columns}
    rows = sum(len(part.times) for part in parts)
    # Chunks that were too large for one stay apart: memory is bounded, and readers join them.
    whole = [join(parts)] if rows * len(names) <= MAX_VALUES else parts
    made = [_thin_one(part, resolution) for part in whole if len(part.times)]
    if sum(len(part.data) for part in made) > (1 - WORTHWHILE) * sum(map(len, data)):
        return None
    return made


def _thin_one(curves: SeriesBlock, resolution: int) -> Downsampled:
    # Of a chunk that has just arrived the times may be in any order.
    curves = join([curves])
    width = stretch(int(curves.times[-1]) - int(curves.times[0]), resolution)
    made = downsample(curves, width)
    return Downsampled(
        first=int(made.times[0]),
        last=int(made.times[-1]),
        rows=len(made.times),
        data=codec.encode(made.times, made.columns),
        summary=codec.compress(_encode(summarise(curves))),
        resolution=width,
    )


def stretch(length: int, resolution: int) -> int:
    """Nanoseconds that become one row, of curves that are so long."""
    return max(min(resolution, length // POINTS), 1)


def downsample(curves: SeriesBlock, width: int) -> SeriesBlock:
    """Keep one row of each stretch; the times must be in order.

    A row is the last of its stretch, with the counters as they stood then. A gauge is its mean over
    the time since the row before, each reading weighted with the time for which it stands, so that
    the integral stays. The first row stays, and so do the rows around each place where a counter
    began: what a counter has grown in all can still be read off.
    """
    rows = _kept(curves, width)
    return SeriesBlock(
        curves.times[rows],
        {
            name: _counter(values, rows) if _counts(name) else _gauge(curves.times, values, rows)
            for name, values in curves.columns.items()
        },
    )


def _counts(name: str) -> bool:
    metric = find_metric(name)
    return metric is not None and metric.kind == "counter"


def _kept(curves: SeriesBlock, width: int) -> Places:
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
