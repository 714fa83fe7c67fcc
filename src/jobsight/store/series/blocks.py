"""Decoded time series: joined, sliced, summarised, downsampled.

A :class:`SeriesBlock` is what a chunk decodes to. :func:`join_chunks` replaces the chunks of a node
by one: a few while the job runs, all when it has ended there. :func:`downsample_chunks` reduces
the rows of old series; counters keep their totals, gauges their means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from jobsight.metrics import find_metric
from jobsight.model import MISSING
from jobsight.store.database import Transaction
from jobsight.store.schema.statements import RUN_CHUNKS, ChunkStatements
from jobsight.store.series import codec
from jobsight.store.series.codec import absent
from jobsight.store.series.packing import Integers, Values, groups


class SeriesBlock(NamedTuple):
    """Metrics of one run on one node over an interval."""

    times: Integers
    columns: dict[str, Values]


class Summary(msgspec.Struct, array_like=True):
    """One metric over one interval; those of neighbouring intervals can be combined."""

    minimum: int | float
    maximum: int | float
    first: int | float
    last: int | float
    first_time: int
    last_time: int
    #: Sum of value times seconds; a value holds for the time since the previous one.
    integral: float
    duration: float


def join(parts: Sequence[SeriesBlock]) -> SeriesBlock:
    """Join blocks, sorted by time.

    Rows with the same time become one; in each column the value of the later block stays unless
    it is missing.
    """
    if len(parts) == 1 and (np.diff(parts[0].times) > 0).all():
        return parts[0]
    kinds: dict[str, str] = {}
    for part in parts:
        for name, values in part.columns.items():
            # Integers and floats under one name become floats.
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
            # The last row of each group that has a value, else its first.
            best = np.maximum.reduceat(np.where(present(values), rows, -1), starts)
            values = values[np.where(best < 0, starts, best)]
        columns[name] = values
    return SeriesBlock(times[starts], columns)


def between(block: SeriesBlock, since: int | None, until: int | None) -> SeriesBlock:
    """The rows from ``since`` to ``until``, both included."""
    first = 0 if since is None else int(np.searchsorted(block.times, since, "left"))
    last = len(block.times)
    if until is not None:
        last = int(np.searchsorted(block.times, until, "right"))
    if first == 0 and last == len(block.times):
        return block
    columns = {name: values[first:last] for name, values in block.columns.items()}
    return SeriesBlock(block.times[first:last], columns)


def present(values: Values) -> npt.NDArray[np.bool_]:
    """Which values are not missing."""
    mask = values != MISSING if values.dtype.kind == "i" else ~np.isnan(values)
    return np.asarray(mask, np.bool_)


def summarise(block: SeriesBlock) -> dict[str, Summary]:
    """Summarise every metric that has a value; the times must be in order."""
    summaries: dict[str, Summary] = {}
    for kind in ("i", "f"):
        names = [name for name, column in block.columns.items() if column.dtype.kind == kind]
        for group in groups(names, len(block.times)):
            summaries |= _summaries(block, group)
    return {name: summaries[name] for name in block.columns if name in summaries}


def _summaries(block: SeriesBlock, names: Sequence[str]) -> dict[str, Summary]:
    """Summaries of metrics of one type: complete columns together, others one by one."""
    matrix: Values = np.stack([block.columns[name] for name in names])  # type: ignore[assignment]
    mask = present(matrix)
    complete: npt.NDArray[np.bool_] = np.all(mask, axis=1)
    complete_names = [name for name, full in zip(names, complete, strict=True) if full]
    summaries = {}
    if complete_names:
        values = matrix if len(complete_names) == len(names) else matrix[complete]
        computed = _summarise_rows(values, block.times)
        summaries = dict(zip(complete_names, computed, strict=True))
    for name, values, own in zip(names, matrix, mask, strict=True):
        if name not in summaries and own.any():
            summaries[name] = _summarise_rows(values[None, own], block.times[own])[0]
    return summaries


def _summarise_rows(values: Values, times: Integers) -> list[Summary]:
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
    """Minimum, mean, maximum and last value over all intervals of one time series."""
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


#: Values (rows times metrics) of one chunk at most, which bounds the memory to decode one.
MAX_VALUES = 1 << 23

#: The levels of chunks: as it arrived, joined while the job ran, all of the node's series.
ARRIVED, JOINED, COMPLETE = 0, 1, 2

_encode = msgspec.msgpack.Encoder().encode


def join_chunks(
    transaction: Transaction,
    owner: int,
    *,
    complete: bool,
    table: ChunkStatements = RUN_CHUNKS,
) -> None:
    """Replace the open chunks of a node, or all of its chunks, by one.

    The owner is the row that the chunks belong to.
    """
    replaced = {"owner": owner, "level": COMPLETE if complete else ARRIVED}
    rows = transaction.execute(table.up_to, replaced).fetchall()
    level = COMPLETE if complete else JOINED
    # In the order of arrival: of two values at one time the later one stays.
    blocks = join_in_groups(data for (data,) in rows)
    joined = [chunk_row(owner, level, block) for block in blocks]
    transaction.execute(table.delete_up_to, replaced)
    transaction.execute_many(table.insert, joined)


def join_in_groups(chunks: Iterable[bytes], max_values: int = MAX_VALUES) -> Iterator[SeriesBlock]:
    """Decode chunks, and join neighbours up to a number of values."""
    waiting: list[SeriesBlock] = []
    rows = 0
    names: set[str] = set()
    for times, columns in codec.decode_many(chunks):
        part = SeriesBlock(times, columns)
        if waiting and (rows + len(part.times)) * len(names | part.columns.keys()) > max_values:
            yield join(waiting)
            waiting, rows, names = [], 0, set()
        waiting.append(part)
        rows += len(part.times)
        names |= part.columns.keys()
    if waiting:
        yield join(waiting)


def chunk_row(owner: int, level: int, block: SeriesBlock) -> dict[str, object]:
    """The values of a statement that inserts a block as a chunk."""
    # Chunks of a running job are encoded again at its end, with the best methods.
    encode = codec.encode if level == COMPLETE else codec.encode_quickly
    return {
        "owner": owner,
        "first": int(block.times[0]),
        "last": int(block.times[-1]),
        "rows": len(block.times),
        "level": level,
        "data": encode(block.times, block.columns),
        "summary": codec.compress(_encode(summarise(block))),
    }


#: Downsampling keeps at least this many intervals, so that charts of short jobs do not change.
MIN_POINTS = 120
#: Chunks are left as they are if downsampling saves less than this share of their bytes.
MIN_SAVING = 0.25
#: Means up to this are stored with decimals: 1.5 processes must not become 2.
MAX_DECIMAL_MEAN = 1000

_Indices: TypeAlias = npt.NDArray[np.intp]


class Downsampled(NamedTuple):
    """A chunk that replaces chunks of a node."""

    first: int
    last: int
    rows: int
    data: bytes
    #: Of the original rows: only they have the true minimum and maximum.
    summary: bytes
    resolution: int


def downsample_chunks(data: list[bytes], resolution: int) -> list[Downsampled] | None:
    """Downsample all chunks of one node; None if that saves too little."""
    blocks = [SeriesBlock(*codec.decode(chunk)) for chunk in data]
    names = {name for block in blocks for name in block.columns}
    rows = sum(len(block.times) for block in blocks)
    # Chunks that are too large for one stay separate: memory is bounded, and readers join them.
    joined = [join(blocks)] if rows * len(names) <= MAX_VALUES else blocks
    results = [_downsample_block(block, resolution) for block in joined if len(block.times)]
    if sum(len(result.data) for result in results) > (1 - MIN_SAVING) * sum(map(len, data)):
        return None
    return results


def _downsample_block(block: SeriesBlock, resolution: int) -> Downsampled:
    # The times of a chunk that has just arrived may be in any order.
    block = join([block])
    width = interval_width(int(block.times[-1]) - int(block.times[0]), resolution)
    result = downsample(block, width)
    return Downsampled(
        first=int(result.times[0]),
        last=int(result.times[-1]),
        rows=len(result.times),
        data=codec.encode(result.times, result.columns),
        summary=codec.compress(_encode(summarise(block))),
        resolution=width,
    )


def interval_width(length: int, resolution: int) -> int:
    """Nanoseconds that become one row in a series of this length."""
    return max(min(resolution, length // MIN_POINTS), 1)


def downsample(block: SeriesBlock, width: int) -> SeriesBlock:
    """Keep one row of each interval; the times must be in order.

    The row is the last of its interval. A counter keeps its value there. A gauge becomes the mean
    since the previous row, weighted by time, so that its integral is unchanged. The first row is
    kept, and so are the rows around every reset of a counter: its total growth stays readable.
    """
    rows = _kept(block, width)
    return SeriesBlock(
        block.times[rows],
        {
            name: _counter(values, rows) if _counts(name) else _gauge(block.times, values, rows)
            for name, values in block.columns.items()
        },
    )


def _counts(name: str) -> bool:
    metric = find_metric(name)
    return metric is not None and metric.kind == "counter"


def _kept(block: SeriesBlock, width: int) -> _Indices:
    intervals = block.times // width
    kept = np.append(intervals[1:] != intervals[:-1], True)
    kept[0] = True
    for name, values in block.columns.items():
        there = np.flatnonzero(present(values))
        if not _counts(name) or not len(there):
            continue
        kept[there[0]] = True
        known = values[there]
        falls = np.flatnonzero(known[1:] < known[:-1])
        kept[there[falls]] = True
        kept[there[falls + 1]] = True
    return np.flatnonzero(kept)


def _counter(values: Values, rows: _Indices) -> Values:
    """The last value up to each kept row since the previous one."""
    indices = np.where(present(values), np.arange(len(values)), -1)
    last = np.maximum.reduceat(indices, _segment_starts(rows))
    return np.where(last < 0, absent(values.dtype.kind, len(rows)), values[last])


def _gauge(times: Integers, values: Values, rows: _Indices) -> Values:
    there = np.flatnonzero(present(values))
    mean: npt.NDArray[np.float64] = np.full(len(rows), np.nan)
    if len(there):
        known = values[there].astype(np.float64)
        weights = np.diff(times[there], prepend=times[there[0]]).astype(np.float64)
        # The kept row of each value: the first at or after it.
        owner = np.searchsorted(rows, there)
        weight = np.bincount(owner, weights, len(rows))
        count = np.bincount(owner, minlength=len(rows))
        with np.errstate(all="ignore"):
            timed = np.bincount(owner, known * weights, len(rows)) / weight
            plain = np.bincount(owner, known, len(rows)) / count
        # Only the first value covers no time.
        mean = np.where(weight > 0, timed, plain)
    unknown = np.isnan(mean)
    if (
        values.dtype.kind == "i"
        and np.nanmax(np.abs(mean), initial=MAX_DECIMAL_MEAN) > MAX_DECIMAL_MEAN
    ):
        rounded = np.where(unknown, 0.0, np.rint(mean))
        # The nearest float of the largest integer is one above it.
        rounded = np.clip(rounded, -(2.0**63) + 1024, 2.0**63 - 1024)
        return np.where(unknown, absent("i", len(rows)), rounded.astype(np.int64))
    return np.where(unknown, absent("f", len(rows)), mean)


def _segment_starts(rows: _Indices) -> _Indices:
    """The first row of each segment that ends with a kept row."""
    return np.concatenate(([0], rows[:-1] + 1))
