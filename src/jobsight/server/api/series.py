"""Curves as pages draw them: counters as rates, no more points than fit, peaks kept.

Everything here is numpy over whole arrays; the JSON is one encoding at the end, where NaN
becomes null.
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

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Places: TypeAlias = NDArray[np.intp]

#: So many times the usual step between samples is a gap.
GAP = 2.5
#: Steps looked at on each side, to tell what is usual.
NEIGHBOURS = 5
#: How agents sample by default: the step up to each age of a job.
SCHEDULE = ((60 * SECOND, SECOND), (3600 * SECOND, 10 * SECOND), (None, 30 * SECOND))

#: A reply never holds more values than this; the points per series give way.
MAX_VALUES = 600_000
MIN_POINTS = 50


class NodeSeries(Protocol):
    """What the store gives for one node."""

    @property
    def node(self) -> str: ...
    @property
    def times(self) -> Integers: ...
    @property
    def columns(self) -> Mapping[str, NDArray[Any]]: ...


class MetricSeries(msgspec.Struct):
    """One curve; each point stands for the samples of a stretch of time.

    A point without values lies where no sample was taken for much longer than before and after.
    """

    unit: str
    mean: list[float | None]
    minimum: list[float | None]
    maximum: list[float | None]


class NodeSeriesReply(msgspec.Struct):
    """The curves of one node over one column of times, in seconds since 1970."""

    node: str
    times: list[float]
    metrics: dict[str, MetricSeries]


class SeriesReply(msgspec.Struct):
    """The curves of a run, node by node."""

    run: str
    #: The metrics that were asked for and that no node has.
    absent: list[str]
    nodes: list[NodeSeriesReply]


class Grid(msgspec.Struct, frozen=True):
    """Stretches of equal length, the same for all nodes, so that their points lie together."""

    start: int
    width: int
    count: int


def make_grid(series: Sequence[NodeSeries], points: int) -> Grid:
    """Divide the time that the series cover into so many stretches."""
    filled = [part.times for part in series if len(part.times)]
    if not filled:
        return Grid(0, 1, points)
    start = min(int(times.min()) for times in filled)
    end = max(int(times.max()) for times in filled)
    return Grid(start, max(-(-(end - start + 1) // points), 1), points)


def points_allowed(points: int, curves: int) -> int:
    """Keep the reply within bounds: a wide job gets fewer points on each curve."""
    return max(min(points, MAX_VALUES // (3 * max(curves, 1))), min(points, MIN_POINTS))


def reply(
    run: str, series: Iterable[NodeSeries], metrics: Sequence[str], points: int
) -> SeriesReply:
    """Turn stored columns into the curves of a reply."""
    parts = list(series)
    curves = sum(len(part.columns) for part in parts)
    grid = make_grid(parts, points_allowed(points, curves))
    present = {name for part in parts for name in part.columns}
    return SeriesReply(
        run=run,
        absent=[name for name in metrics if name not in present],
        nodes=[node_series(part, grid) for part in parts],
    )


def node_series(series: NodeSeries, grid: Grid) -> NodeSeriesReply:
    """The curves of one node on a grid."""
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
        gaps = _empty_stretches(times, gaps, grid)
    if len(gaps):
        shown = np.insert(shown, gaps, (shown[gaps - 1] + shown[gaps]) / 2)
        mean, low, high = (np.insert(part, gaps, np.nan, axis=1) for part in (mean, low, high))
    # Tenths of a millionth are noise of the division and would triple the length of the text.
    mean, low, high = (_rounded(part) for part in (mean, low, high))
    return NodeSeriesReply(
        node=series.node,
        times=shown.tolist(),
        metrics={
            name: MetricSeries(
                _unit(name), mean[row].tolist(), low[row].tolist(), high[row].tolist()
            )
            for row, name in enumerate(names)
        },
    )


def rates(times: Integers, column: NDArray[Any], metric: Metric) -> tuple[Floats, Floats]:
    """The rate of a counter at each sample, and the seconds for which it stands.

    A rate belongs to the time since the sample before, so the first has none. After a missing
    sample the rate covers the whole gap: the sum over time stays that of the counter. A counter
    that falls began anew at a moment nobody saw: that step has no rate, rather than a wrong one.
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
    """A column as floating-point numbers, with NaN for what is missing."""
    values = column.astype(np.float64)
    if column.dtype.kind == "i":
        values[column == MISSING] = np.nan
    values[np.isinf(values)] = np.nan
    return values


def downsample(
    times: Integers, values: Floats, weights: Floats, grid: Grid
) -> tuple[Floats, Floats, Floats, Floats]:
    """Join the samples of each stretch: its middle, and mean, minimum and maximum of each row.

    The mean of a rate is weighted with the time that each rate stands for. A stretch without a
    sample gives no point.
    """
    stretch = (times - grid.start) // grid.width
    first = np.flatnonzero(np.diff(stretch, prepend=stretch[0] - 1))
    shown = (grid.start + stretch[first] * grid.width + grid.width / 2) / SECOND
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
    # fmin and fmax pass over NaN unless there is nothing else.
    low = np.fmin.reduceat(values, first, axis=1)
    high = np.fmax.reduceat(values, first, axis=1)
    return shown, mean, low, high


def find_gaps(times: Integers) -> Places:
    """The places of the samples before which others must have been lost.

    An agent samples ever more seldom as a job grows old, so what is usual is the median of the
    nearest steps, on the side where they are longer; beyond both ends it is the agent's schedule.
    """
    steps = np.diff(times)
    if len(steps) < 3:
        return np.zeros(0, np.intp)
    ends = [np.full(NEIGHBOURS, _scheduled(age)) for age in (0, int(times[-1] - times[0]))]
    known = np.concatenate([ends[0], steps, ends[1]])
    usual = np.median(sliding_window_view(known, NEIGHBOURS), axis=1)
    before, after = usual[: len(steps)], usual[NEIGHBOURS + 1 :]
    return np.flatnonzero(steps > GAP * np.maximum(before, after)) + 1


def _scheduled(age: int) -> int:
    return next(step for until, step in SCHEDULE if until is None or age < until)


def _empty_stretches(times: Integers, gaps: Places, grid: Grid) -> Places:
    """The places of the same gaps among the points of the stretches; short ones are in none."""
    stretch = (times - grid.start) // grid.width
    seen = gaps[stretch[gaps] - stretch[gaps - 1] > 1]
    return np.searchsorted(np.unique(stretch), stretch[seen])


def _known(column: NDArray[Any]) -> NDArray[np.bool_]:
    known = column != MISSING if column.dtype.kind == "i" else np.isfinite(column)
    return cast("NDArray[np.bool_]", known)


def _sorted(series: NodeSeries) -> tuple[Integers, dict[str, NDArray[Any]]]:
    times = series.times
    if len(times) < 2 or bool(np.all(times[1:] >= times[:-1])):
        return times, dict(series.columns)
    # A clock that stepped back: the samples are true, their order is that of the clock.
    order = np.argsort(times, kind="stable")
    return times[order], {name: column[order] for name, column in series.columns.items()}


def _rounded(values: Floats) -> Floats:
    return np.round(values, 6)


def _unit(name: str) -> str:
    metric = find_metric(name)
    return metric.rate_unit if metric else "not known"
