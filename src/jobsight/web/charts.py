"""Charts that the server draws as SVG: columns over time, lines, and a time line of jobs.

A chart is data for the macros of ``templates/charts.html``. Positions are per cent of its width and
height, so that text keeps its size on every screen. Each chart stands next to a table of the same
figures, for readers who cannot see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from jobsight.model import SECOND
from jobsight.reports.node import NodeView
from jobsight.reports.over_time import UseOverTime, UsePoint

#: Labels on the axis of time.
_LABELS: Final = 6
_HOUR: Final = 3600 * SECOND


class Label(NamedTuple):
    """A text on an axis, at a position in per cent."""

    at: str
    text: str


class Column(NamedTuple):
    """One period of a column chart."""

    x: str
    width: str
    #: The top and the height of the whole, and of the part of it that is drawn solid.
    y: str
    height: str
    part_y: str
    part_height: str
    period: str
    whole_text: str
    part_text: str


class ColumnChart(NamedTuple):
    """Columns over time, each with a part that is drawn solid: held, and used of it."""

    columns: list[Column]
    labels: list[Label]
    #: The value at the top, and the height of a line that is drawn across; None without one.
    top: str
    limit: str | None
    limit_text: str
    whole: str
    part: str


class Line(NamedTuple):
    """One line of a chart, in pieces between which nothing is known: the points of SVG polylines in
    a box of 1000 by 100."""

    name: str
    pieces: list[str]
    style: str


class LineChart(NamedTuple):
    """Lines over time."""

    lines: list[Line]
    labels: list[Label]
    top: str
    description: str


class Bar(NamedTuple):
    """One job of a time line."""

    x: str
    width: str
    y: int
    text: str
    run: str
    tone: str
    title: str


class TimeLine(NamedTuple):
    """Jobs in lanes over time."""

    bars: list[Bar]
    labels: list[Label]
    height: int


def percent(share: float) -> str:
    """A share of 1 as the position in a chart."""
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def round_up(value: float) -> float:
    """The next value that is one of some round numbers times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = float(10 ** math.floor(math.log10(value)))
    return next(
        step * power
        for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
        if value <= step * power * 1.000001
    )


def use_chart(
    use: UseOverTime,
    whole: Callable[[UsePoint], float],
    part: Callable[[UsePoint], float],
    show: Callable[[float], str],
    *,
    names: tuple[str, str],
    limit: float | None = None,
    limit_text: str = "",
) -> ColumnChart:
    """Columns of what was held, with the part that was used."""
    points = use.points
    highest = max((max(whole(point), part(point)) for point in points), default=0.0)
    # A limit far above the columns would leave nothing of them.
    shown_limit = limit if limit and highest * 5 > limit else None
    top = round_up(max(highest, shown_limit or 0.0))
    slot = 1 / max(len(points), 1)
    columns = [
        Column(
            x=percent((index + 0.1) * slot),
            width=percent(slot * 0.8),
            y=percent(1 - whole(point) / top),
            height=percent(whole(point) / top),
            part_y=percent(1 - part(point) / top),
            part_height=percent(part(point) / top),
            period=point.period,
            whole_text=show(whole(point)),
            part_text=show(part(point)),
        )
        for index, point in enumerate(points)
    ]
    every = max(1, math.ceil(len(points) / _LABELS))
    labels = [
        Label(percent(index * slot), points[index].period)
        for index in range(0, len(points), every)
        # The last one needs room for its text.
        if index + every * 0.6 <= len(points)
    ]
    return ColumnChart(
        columns=columns,
        labels=labels,
        top=show(top),
        limit=None if shown_limit is None else percent(1 - shown_limit / top),
        limit_text=limit_text,
        whole=names[0],
        part=names[1],
    )


def line_chart(
    lines: Sequence[tuple[str, Sequence[float], str]],
    show: Callable[[float], str],
    *,
    since: int,
    until: int,
    limit: float | None = None,
) -> LineChart:
    """Lines over one interval; each is a name, its values and a style. A line has a gap where its
    value is not finite."""
    known = {name: [value for value in values if math.isfinite(value)] for name, values, _ in lines}
    highest = max((max(values, default=0.0) for values in known.values()), default=0.0)
    top = limit if limit and highest <= limit else round_up(highest)
    drawn = [Line(name, _pieces(values, top), style) for name, values, style in lines]
    texts = [
        f"{name}: at most {show(max(values, default=0.0))}, "
        f"mean {show(sum(values) / max(len(values), 1))}"
        for name, values in known.items()
    ]
    return LineChart(drawn, time_labels(since, until), show(top), "; ".join(texts))


def _pieces(values: Sequence[float], top: float) -> list[str]:
    step = 1000 / max(len(values), 1)
    pieces = []
    points: list[str] = []
    for index, value in enumerate(values):
        if math.isfinite(value):
            points.append(f"{(index + 0.5) * step:.1f},{100 - 100 * min(value / top, 1.0):.2f}")
            continue
        if points:
            pieces.append(" ".join(points))
        points = []
    return [*pieces, " ".join(points)] if points else pieces


def time_labels(since: int, until: int) -> list[Label]:
    """Labels at full hours or days of UTC."""
    hours = (until - since) / _HOUR
    step = next((each for each in (1, 2, 4, 6, 12, 24, 48) if hours / each <= 8), 168) * _HOUR
    first = -(-since // step) * step
    form = "%H:%M" if step < 24 * _HOUR else "%m-%d"
    return [
        Label(
            percent((moment - since) / (until - since)),
            datetime.fromtimestamp(moment // SECOND, UTC).strftime(form),
        )
        for moment in range(first, until, step)
        if (moment - since) / (until - since) < 0.95
    ]


#: Pixels of a lane.
LANE: Final = 20


def time_line(view: NodeView, since: int, until: int, tone: Callable[[str], str]) -> TimeLine:
    """The jobs of a node as bars."""
    length = until - since
    bars = []
    for job in view.jobs:
        row = job.row
        share = (job.until - job.since) / length
        x = (job.since - since) / length
        bars.append(
            Bar(
                x=percent(x),
                width=percent(max(share, 0.002)),
                y=job.lane * LANE + 2,
                text=f"{row.display_id} {row.name or ''}".strip(),
                run=row.run,
                tone=tone(row.state),
                title=f"{row.display_id} {row.name or ''}, {row.user or 'unknown user'}, "
                f"{row.state_text}",
            )
        )
    return TimeLine(bars, time_labels(since, until), max(view.lanes, 1) * LANE + 4)
