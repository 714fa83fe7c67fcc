"""Time series for plots: counters as rates, downsampled to the wanted number of points.

:func:`reply` builds the reply of the route from the stored columns. All work is done with numpy on
complete columns; NaN becomes null in the JSON. Downsampling keeps minimum and maximum, so peaks
stay visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from jobsight.metrics import Metric, find_metric
from jobsight.model import MISSING, SECOND
from jobsight.util.outer import Time, from_seconds

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.intp]

#: A step that exceeds the usual one by this factor is a gap.
GAP_FACTOR = 2.5
#: Steps on each side that determine the usual one.
NEIGHBOURS = 5
#: The agents' default sampling interval by the age of a job.
SCHEDULE = ((60 * SECOND, SECOND), (3600 * SECOND, 10 * SECOND), (None, 30 * SECOND))

#: Maximum number of values in a reply; the points per series are reduced to stay below.
MAX_VALUES = 600_000
MIN_POINTS = 50


class NodeSeries(Protocol):
    """The stored columns of one node."""

    @property
    def node(self) -> str: ...
    @property
    def times(self) -> Integers: ...
    @property
    def columns(self) -> Mapping[str, NDArray[Any]]: ...


class MetricSeries(msgspec.Struct):
    """One time series; each point represents the samples of an interval.

    A point without values marks a gap: no sample was taken for much longer than usual.
    """

    unit: str
    mean: list[float | None]
    minimum: list[float | None]
    maximum: list[float | None]


class NodeSeriesReply(msgspec.Struct):
    """The time series of one node."""

    node: str
    #: Seconds since 1970: plots need numbers, and one string per point would double the reply.
    times_seconds: list[float]
    metrics: dict[str, MetricSeries]


class SeriesReply(msgspec.Struct):
    """The time series of a run by node."""

    run: str
    #: Requested metrics that no node has.
    absent: list[str]
    nodes: list[NodeSeriesReply]


class SampleRow(msgspec.Struct):
    """One point of one time series."""

    time: Time
    node: str
    metric: str
    unit: str
    mean: float | None
    minimum: float | None
    maximum: float | None


class SamplesReply(msgspec.Struct):
    """The time series of a run as rows, by node, metric and time."""

    run: str
    #: Requested metrics that no node has.
    absent: list[str]
    rows: list[SampleRow]


def as_rows(series: SeriesReply) -> SamplesReply:
    """The same points as rows, as programs for tables need them."""
    rows = [
        SampleRow(from_seconds(second), part.node, name, metric.unit, *values)
        for part in series.nodes
        for name, metric in part.metrics.items()
        for second, *values in zip(
            part.times_seconds, metric.mean, metric.minimum, metric.maximum, strict=True
        )
    ]
    return SamplesReply(series.run, series.absent, rows)


class Grid(msgspec.Struct, frozen=True):
    """Intervals of equal length, common to all nodes, so that their points coincide."""

    start: int
    width: int
    count: int


def make_grid(series: Sequence[NodeSeries], points: int) -> Grid:
    """Divide the time that the series cover into intervals."""
    filled = [part.times for part in series if len(part.times)]
    if not filled:
        return Grid(0, 1, points)
    start = min(int(times.min()) for times in filled)
    end = max(int(times.max()) for times in filled)
    return Grid(start, max(-(-(end - start + 1) // points), 1), points)


def points_allowed(points: int, count: int) -> int:
    """Points of each of ``count`` series that keep the reply within :data:`MAX_VALUES`."""
    return max(min(points, MAX_VALUES // (3 * max(count, 1))), min(points, MIN_POINTS))


def reply(
    run: str, series: Iterable[NodeSeries], metrics: Sequence[str], points: int
) -> SeriesReply:
    """Convert the stored columns of all nodes."""
    parts = list(series)
    count = sum(len(part.columns) for part in parts)
    grid = make_grid(parts, points_allowed(points, count))
    present = {name for part in parts for name in part.columns}
    return SeriesReply(
        run=run,
        absent=[name for name in metrics if name not in present],
        nodes=[node_series(part, grid) for part in parts],
    )


def node_series(series: NodeSeries, grid: Grid) -> NodeSeriesReply:
    """Convert the stored columns of one node."""
    times, columns = _sorted(series)
    names = list(columns)
    values = np.full((len(names), len(times)), np.nan)
    spans = np.zeros((len(names), len(times)))
    for row, name in enumerate(names):
        metric = find_metric(name)
        if metric is not None and metric.kind == "counter":
            values[row], spans[row] = rates(times, columns[name], metric)
        else:
            values[row] = as_floats(columns[name])
            spans[row] = 1.0
    gaps = find_gaps(times)
    if len(times) + len(gaps) <= grid.count:
        shown = times / SECOND
        mean = low = high = values
    else:
        shown, mean, low, high = downsample(times, values, spans, grid)
        gaps = _empty_intervals(times, gaps, grid)
    if len(gaps):
        shown = np.insert(shown, gaps, (shown[gaps - 1] + shown[gaps]) / 2)
        mean, low, high = (np.insert(part, gaps, np.nan, axis=1) for part in (mean, low, high))
    # Digits beyond a millionth are noise of the division and would triple the size of the JSON.
    mean, low, high = (_rounded(part) for part in (mean, low, high))
    return NodeSeriesReply(
        node=series.node,
        times_seconds=shown.tolist(),
        metrics={
            name: MetricSeries(
                _unit(name), mean[row].tolist(), low[row].tolist(), high[row].tolist()
            )
            for row, name in enumerate(names)
        },
    )


def rates(times: Integers, column: NDArray[Any], metric: Metric) -> tuple[Floats, Floats]:
    """The rate of a counter at each sample, and the seconds that it covers.

    A rate covers the time since the previous sample, so the first sample has none. After a missing
    sample it covers the complete gap, so that the integral equals the counter. A counter that
    decreases was reset at an unknown time: that step has no rate.
    """
    rate = np.full(len(times), np.nan)
    span = np.zeros(len(times))
    known = np.flatnonzero(_known(column))
    if len(known) < 2:
        return rate, span
    counted = column if len(known) == len(column) else column[known]
    moments = times if len(known) == len(times) else times[known]
    growth = np.diff(counted).astype(np.float64)
    seconds = np.diff(moments) / SECOND
    sound = (seconds > 0) & (growth >= 0)
    scale = SECOND if metric.unit == "nanoseconds" else 1
    at = known[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate[at] = np.where(sound, growth / seconds / scale, np.nan)
    span[at] = np.where(sound, seconds, 0.0)
    return rate, span


def as_floats(column: NDArray[Any]) -> Floats:
    """A column as floating-point numbers; a missing value becomes NaN."""
    values = column.astype(np.float64)
    if column.dtype.kind == "i":
        values[column == MISSING] = np.nan
    values[np.isinf(values)] = np.nan
    return values


def downsample(
    times: Integers, values: Floats, weights: Floats, grid: Grid
) -> tuple[Floats, Floats, Floats, Floats]:
    """The middle of each interval, and mean, minimum and maximum of each row in it.

    The mean of a rate is weighted by the time that each rate covers. An interval without a sample
    has no point.
    """
    interval = (times - grid.start) // grid.width
    first = np.flatnonzero(np.diff(interval, prepend=interval[0] - 1))
    shown = (grid.start + interval[first] * grid.width + grid.width / 2) / SECOND
    absent = np.isnan(values)
    if absent.any():
        filled = np.where(absent, 0.0, values)
        weights = np.where(absent, 0.0, weights)
    else:
        filled = values
    total = np.add.reduceat(filled * weights, first, axis=1)
    weight = np.add.reduceat(weights, first, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(weight > 0, total / weight, np.nan)
    # fmin and fmax ignore NaN unless all values are NaN.
    low = np.fmin.reduceat(values, first, axis=1)
    high = np.fmax.reduceat(values, first, axis=1)
    return shown, mean, low, high


def find_gaps(times: Integers) -> Indices:
    """Indices of the samples that are preceded by a gap.

    The sampling interval grows with the age of a job, so the usual step is the median of the
    nearest steps, on the side where they are longer; beyond both ends it is the default schedule.
    """
    steps = np.diff(times)
    if len(steps) < 3:
        return np.zeros(0, np.intp)
    ends = [np.full(NEIGHBOURS, _scheduled(age)) for age in (0, int(times[-1] - times[0]))]
    known = np.concatenate([ends[0], steps, ends[1]])
    usual = np.median(sliding_window_view(known, NEIGHBOURS), axis=1)
    before, after = usual[: len(steps)], usual[NEIGHBOURS + 1 :]
    return np.flatnonzero(steps > GAP_FACTOR * np.maximum(before, after)) + 1


def _scheduled(age: int) -> int:
    return next(step for until, step in SCHEDULE if until is None or age < until)


def _empty_intervals(times: Integers, gaps: Indices, grid: Grid) -> Indices:
    """Indices of the gaps among the points; gaps shorter than an interval are not visible."""
    interval = (times - grid.start) // grid.width
    visible = gaps[interval[gaps] - interval[gaps - 1] > 1]
    return np.searchsorted(np.unique(interval), interval[visible])


def _known(column: NDArray[Any]) -> NDArray[np.bool_]:
    known = column != MISSING if column.dtype.kind == "i" else np.isfinite(column)
    return cast("NDArray[np.bool_]", known)


def _sorted(series: NodeSeries) -> tuple[Integers, dict[str, NDArray[Any]]]:
    times = series.times
    if len(times) < 2 or bool(np.all(times[1:] >= times[:-1])):
        return times, dict(series.columns)
    # A clock that was set back: the samples are valid; sort them by time.
    order = np.argsort(times, kind="stable")
    return times[order], {name: column[order] for name, column in series.columns.items()}


def _rounded(values: Floats) -> Floats:
    return np.round(values, 6)


def _unit(name: str) -> str:
    metric = find_metric(name)
    return metric.rate_unit if metric else "unknown"
