"""Plots of a run as SVG or PNG: one chart per resource, and a heat map of nodes by time.

Colours are those of the pages. The heat map is of one hue, from light to dark: people with
colour-blindness and a black and white printer see it alike. Names of nodes and GPUs are text that
others chose: mathematical markup is off. matplotlib is imported here only, by the commands that
draw.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from datetime import UTC
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from jobsight.metrics import METRICS, find_metric
from jobsight.reports.document import shown
from jobsight.reports.series import SeriesReply
from jobsight.util.units import format_byte_rate, format_bytes, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["svg", "png"]

#: Those of the style sheet of the pages; lines and grid as on paper.
INK, MUTED, LINE, GRID = "#191d21", "#56606a", "#bbbbbb", "#e6e6e6"
ACCENT, SECOND, BAD = "#0a6a84", "#b0590f", "#b3261e"
#: Colours of lines, far apart for people with colour-blindness as well; then again.
LINE_COLORS: Final = (ACCENT, SECOND, "#0c2949", "#0a96f9", "#b6815c", "#672f9b", "#4b1f0c")
#: From nothing to all of it, and what was not measured.
_SHADES: Final = LinearSegmentedColormap.from_list(
    "jobsight", ("#f4f7f8", "#bcdbe3", "#5fa6b8", "#0a6a84", "#063c4b")
)
_NOT_MEASURED: Final = "#e4ddd2"
#: Inches: the width of a page, and of half of it.
WIDTH, HALF = 7.2, 3.55
#: The least height of the chart of waiting: less is nothing, and looks like it.
_LEAST_WAIT: Final = 0.01
#: Rows of a heat map; more nodes share a row.
MAX_ROWS: Final = 128
#: Seconds: matplotlib counts days.
_DAY: Final = 86400.0
#: Columns of a heat map.
MAX_COLUMNS: Final = 400

_STYLE: Final[Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    # The same picture for the same data.
    "svg.hashsalt": "jobsight",
}
# Once and for the whole process: a style that is set and reset by each drawing is not that of
# another thread that draws at the same time.
rcParams.update(_STYLE)

#: The metrics that a report draws, in this order, each with the metrics of the same chart.
CHARTS: Final[dict[str, tuple[str, ...]]] = {
    "cpu": ("cpu.time",),
    "memory": ("memory.used",),
    "gpu": ("gpu.*.multiprocessor_time", "gpu.*.utilization"),
    "gpu-memory": ("gpu.*.memory_used",),
    "storage": ("io.read_bytes", "io.written_bytes"),
    "waiting": ("pressure.cpu", "pressure.io", "pressure.memory"),
}
#: The heat maps, with the chart of each.
MAPS: Final = {
    "cpu-map": "cpu",
    "memory-map": "memory",
    "gpu-map": "gpu",
    "gpu-memory-map": "gpu-memory",
    "storage-map": "storage",
}
_TITLES: Final = {
    "cpu": "CPUs busy",
    "memory": "Memory used",
    "gpu": "GPUs busy",
    "gpu-memory": "GPU memory",
    "storage": "Storage, bytes per second",
    "waiting": "Time spent waiting",
}


class Row(NamedTuple):
    """One row of values over time: a node, or a GPU of a node."""

    name: str
    times: NDArray[np.float64]
    values: NDArray[np.float64]


class Plot(NamedTuple):
    """A drawn plot."""

    name: str
    title: str
    data: bytes
    #: Inches.
    width: float = WIDTH

    @property
    def is_wide(self) -> bool:
        """Whether it needs the width of a page."""
        return self.width > HALF


def metrics_to_read(names: Sequence[str]) -> list[str]:
    """The stored metrics that the charts need, of those that a run has."""
    wanted = {pattern for patterns in CHARTS.values() for pattern in patterns}
    found = []
    for name in names:
        metric = find_metric(name)
        if metric is not None and metric.name in wanted:
            found.append(name)
    return found


def draw_all(
    series: SeriesReply,
    *,
    limits: dict[str, float | None] | None = None,
    marks: Sequence[tuple[float, float]] = (),
    format: Format = "svg",
    names: Collection[str] | None = None,
    width: float = WIDTH,
    marked: Collection[str] = (),
) -> list[Plot]:
    """A chart of each resource that the run has, then heat maps if there are several rows.

    ``limits`` has what was requested by the name of the chart; ``marks`` are stretches of time, in
    seconds since 1970, in which a finding can be seen. ``names`` are the plots to draw, of
    :data:`CHARTS` and :data:`MAPS`; all by default. ``width`` is that of a chart in inches;
    ``marked`` are nodes that a finding names.
    """
    plots = []
    for name in CHARTS:
        if names is not None and name not in names:
            continue
        rows = rows_of(series, name)
        if not rows:
            continue
        limit = (limits or {}).get(name)
        plots.append(
            Plot(name, _TITLES[name], draw_chart(name, rows, limit, marks, format, width), width)
        )
    for map_name, name in MAPS.items():
        if names is not None and map_name not in names:
            continue
        each = map_rows(series, name)
        if len(each) > 1:
            plots.append(
                Plot(map_name, _map_title(name), draw_heat_map(name, each, format, marked))
            )
    return plots


def _map_title(name: str) -> str:
    return f"{_TITLES[name]} by {'GPU' if name.startswith('gpu') else 'node'}"


def map_rows(series: SeriesReply, chart: str) -> list[Row]:
    """The rows of a heat map: those of its chart, of which the metrics of one node are added."""
    by_name: dict[str, Row] = {}
    for part in rows_of(series, chart).values():
        for row in part:
            known = by_name.get(row.name)
            if known is not None and len(known.values) == len(row.values):
                row = row._replace(values=known.values + row.values)
            by_name[row.name] = row
    return list(by_name.values())


def rows_of(series: SeriesReply, chart: str) -> dict[str, list[Row]]:
    """The rows of a chart by metric. Of GPUs the first metric that any of them has is taken."""
    found: dict[str, list[Row]] = {}
    for node in series.nodes:
        times = np.array(node.times_seconds)
        for name, part in node.metrics.items():
            metric = find_metric(name)
            if metric is None or metric.name not in CHARTS[chart]:
                continue
            values = np.array([np.nan if value is None else value for value in part.mean])
            if metric.unit == "percent":
                values = values / 100
            label = node.node if "*" not in metric.name else f"{node.node}:{_instance(name)}"
            found.setdefault(metric.name, []).append(Row(shown(label), times, values))
    known = [metric for metric in CHARTS[chart] if metric in found]
    return {metric: found[metric] for metric in (known[:1] if chart == "gpu" else known)}


def _instance(name: str) -> str:
    return name.partition(".")[2].rpartition(".")[0]


def draw_chart(
    name: str,
    rows: dict[str, list[Row]],
    limit: float | None,
    marks: Sequence[tuple[float, float]],
    format: Format,
    width: float = WIDTH,
) -> bytes:
    """The sum over nodes or GPUs of each metric, with what was requested as a dashed line."""
    figure, axes = new_figure(width, 1.9)
    for color, (metric, parts) in zip(LINE_COLORS, rows.items(), strict=False):
        times, values = _total(parts)
        # The title has the first word.
        label = METRICS[metric].title.removeprefix("Waiting ")
        axes.plot(dates(times), values, color=color, linewidth=1.1, label=label)
        if len(rows) == 1:
            axes.fill_between(dates(times), 0, values, color=color, alpha=0.15, linewidth=0)
    if limit:
        axes.axhline(limit, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    for since, until in marks:
        axes.axvspan(since / _DAY, until / _DAY, color=BAD, alpha=0.08, linewidth=0)
    if len(rows) > 1:
        # Above the axes, where no line is.
        axes.legend(
            frameon=False, loc="lower left", bbox_to_anchor=(-0.02, 0.96), fontsize=6.5,
            labelcolor=INK, ncols=3, handlelength=1.2, columnspacing=1.0, borderaxespad=0.0,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    if name == "waiting":
        axes.set_ylim(top=max(axes.get_ylim()[1], _LEAST_WAIT))
    finish(axes, name, _TITLES[name], pad=14.0 if len(rows) > 1 else 6.0)
    return render(figure, format)


def draw_heat_map(
    name: str, rows: Sequence[Row], format: Format, marked: Collection[str] = ()
) -> bytes:
    """Time by node or GPU: above it mean, minimum and maximum over time, at its side each mean."""
    grid, edges, names = _cells(rows)
    height = min(0.7 + 0.13 * len(names), 6.0)
    figure = Figure(figsize=(WIDTH, height + 1.1), layout="constrained")
    (top, corner), (map_axes, side) = figure.subplots(
        2, 2, width_ratios=(6, 1), height_ratios=(0.9, height), sharex="col", sharey="row"
    )
    corner.remove()
    middle = dates((edges[:-1] + edges[1:]) / 2)
    with np.errstate(all="ignore"):
        mean, low, high = _over_rows(grid)
    top.fill_between(middle, low, high, color=ACCENT, alpha=0.2, linewidth=0)
    top.plot(middle, mean, color=ACCENT, linewidth=1.0)
    top.set_ylim(bottom=0)
    mesh = map_axes.pcolormesh(
        dates(edges), np.arange(len(names) + 1), grid, cmap=_SHADES, vmin=0, rasterized=True
    )
    map_axes.set_facecolor(_NOT_MEASURED)
    map_axes.invert_yaxis()
    step = max(-(-len(names) // 32), 1)
    ticks = [*range(0, len(names), step)]
    ticks += [index for index, each in enumerate(names) if each in marked and index % step]
    map_axes.set_yticks(np.array(ticks) + 0.5, [names[index] for index in ticks], fontsize=7)
    for label in map_axes.get_yticklabels():
        if label.get_text() in marked:
            label.set_color(BAD)
    means = np.array([_mean(row) for row in grid])
    side.barh(np.arange(len(names)) + 0.5, np.nan_to_num(means), height=0.8, color=ACCENT)
    side.set_xlim(left=0)
    for axes in (top, side):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.5)
        axes.set_axisbelow(True)
    _locate(map_axes)
    formatter = FuncFormatter(lambda value, _: _value(name, value))
    top.yaxis.set_major_formatter(formatter)
    side.xaxis.set_major_formatter(formatter)
    side.xaxis.set_major_locator(_locator(name, 2))
    side.tick_params(axis="x", labelsize=7)
    top.yaxis.set_major_locator(_locator(name, 2))
    bar = figure.colorbar(
        mesh, ax=side, format=formatter, fraction=0.25, pad=0.08, ticks=_locator(name, 4)
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7)
    top.set_title(_map_title(name), loc="left", fontsize=9, color=INK)
    return render(figure, format)


#: Lines of a plot, and how many of them a legend names.
MAX_LINES: Final = 64
_NAMED_LINES: Final = 12
#: Pies of a plot.
MAX_PIES: Final = 12


def draw_lines(title: str, unit: str, rows: Sequence[Row], limit: float | None = None) -> bytes:
    """A PNG with a line for each row, and a dashed one at the limit."""
    figure, axes = new_figure(7.2, 3.6)
    drawn = rows[:MAX_LINES]
    named = len(drawn) <= _NAMED_LINES
    for row, color in zip(drawn, cycle(LINE_COLORS), strict=False):
        axes.plot(dates(row.times), row.values, color=color, linewidth=1.1, label=_label(row.name))
    if limit:
        axes.axhline(limit, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    if named:
        axes.legend(frameon=False, fontsize=7, labelcolor=INK, ncols=2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    left_out = f" ({len(drawn)} of {len(rows)} lines)" if len(rows) > len(drawn) else ""
    finish(axes, "", f"{title}{left_out}")
    return render(figure, "png")


def draw_pies(title: str, pies: Sequence[tuple[str, dict[str, float]]]) -> bytes:
    """A PNG with a pie for each name, and the shares of its parts in the legend."""
    drawn = pies[:MAX_PIES]
    columns = min(len(drawn), 4)
    lines = -(-len(drawn) // columns)
    figure = Figure(figsize=(max(2.4 * columns, 4.0), 2.6 * lines + 0.4), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (name, parts) in zip(grid, drawn, strict=False):
        total = sum(parts.values())
        labels = [f"{part} {format_share(value / total)}" for part, value in parts.items()]
        wedges = axes.pie(list(parts.values()), colors=[ACCENT, SECOND], startangle=90)[0]
        axes.set_title(_label(name), fontsize=8, color=INK)
        axes.legend(wedges, labels, frameon=False, fontsize=7, loc="upper center",
                    bbox_to_anchor=(0.5, 0.0))  # fmt: skip
    for axes in grid[len(drawn) :]:
        axes.remove()
    left_out = f" ({len(drawn)} of {len(pies)} nodes)" if len(pies) > len(drawn) else ""
    figure.suptitle(f"{title}{left_out}", fontsize=9, color=INK)
    return render(figure, "png")


def _label(name: str) -> str:
    """A name in a legend, which leaves out a label that begins with an underscore."""
    return _short(shown(name).lstrip("_") or "?", 40)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _over_rows(
    grid: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    known = ~np.isnan(grid)
    count = known.sum(axis=0)
    filled = np.where(known, grid, 0.0)
    mean = np.where(count > 0, filled.sum(axis=0) / np.maximum(count, 1), np.nan)
    low = np.fmin.reduce(grid, axis=0)
    high = np.fmax.reduce(grid, axis=0)
    return mean, low, high


def _total(rows: Sequence[Row]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sum over the rows at all of their times; a gap of one row is a gap of the sum."""
    if len(rows) == 1:
        return rows[0].times, rows[0].values
    times = np.unique(np.concatenate([row.times for row in rows]))
    total = np.zeros(len(times))
    for row in rows:
        if len(row.times):
            total += np.interp(times, row.times, row.values, left=0.0, right=0.0)
    return times, total


def _cells(
    rows: Sequence[Row],
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[str]]:
    """Means by row and interval of time. Rows beyond :data:`MAX_ROWS` share a cell."""
    filled = [row for row in rows if len(row.times)]
    start = min(float(row.times[0]) for row in filled)
    end = max(float(row.times[-1]) for row in filled)
    columns = min(MAX_COLUMNS, max(max(len(row.times) for row in filled) // 2, 2))
    edges = np.linspace(start, max(end, start + 1), columns + 1)
    share = -(-len(filled) // MAX_ROWS)
    groups = [filled[first : first + share] for first in range(0, len(filled), share)]
    grid = np.full((len(groups), columns), np.nan)
    for number, group in enumerate(groups):
        total, count = np.zeros(columns), np.zeros(columns)
        for row in group:
            at = np.clip(np.searchsorted(edges, row.times, side="right") - 1, 0, columns - 1)
            known = ~np.isnan(row.values)
            total += np.bincount(at[known], row.values[known], columns)
            count += np.bincount(at[known], minlength=columns)
        grid[number] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    names = [
        group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"
        for group in groups
    ]
    return grid, edges, [_short(name) for name in names]


def _short(name: str, width: int = 24) -> str:
    return name if len(name) <= width else f"{name[: width - 3]}..."


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


class _ByteLocator(MaxNLocator):
    """Ticks at round numbers of KiB, MiB or GiB."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        unit = 1.0
        while vmax / unit >= 1024.0:
            unit *= 1024.0
        return [value * unit for value in super().tick_values(vmin / unit, vmax / unit)]


def _locator(chart: str, most: int) -> MaxNLocator:
    sizes = chart in ("memory", "gpu-memory", "storage")
    return (_ByteLocator if sizes else MaxNLocator)(most)


def finish(axes: Axes, name: str, title: str, pad: float = 6.0) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.margins(x=0)
    axes.set_title(title, loc="left", fontsize=9, color=INK, pad=pad)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _value(name, value)))
    axes.yaxis.set_major_locator(_locator(name, 4))
    _locate(axes)


def _locate(axes: Axes) -> None:
    narrow = axes.get_figure().get_figwidth() < WIDTH - 1  # type: ignore[union-attr]
    most = 5 if narrow else 8
    # With more at least, no interval might fit: below hours, one of 30 minutes is the longest.
    least = (most - 1) // 2
    locator = AutoDateLocator(tz=UTC, minticks=least, maxticks=most)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)


def _value(chart: str, value: float) -> str:
    if chart in ("memory", "gpu-memory"):
        return format_bytes(value)
    if chart == "storage":
        return format_byte_rate(value)
    if chart == "waiting":
        # Ticks of small shares differ, which those of a text would not.
        return f"{100 * value:.3g} %"
    return f"{value:g}"


def dates(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds since 1970 as matplotlib's days."""
    return seconds / _DAY


def render(figure: Figure, format: Format) -> bytes:
    file = io.BytesIO()
    metadata = (
        {"Date": None, "Creator": "jobsight"} if format == "svg" else {"Software": "jobsight"}
    )
    canvas = FigureCanvasSVG(figure) if format == "svg" else FigureCanvasAgg(figure)
    canvas.print_figure(file, format=format, dpi=150, metadata=metadata)
    return file.getvalue()
