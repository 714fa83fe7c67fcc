"""Plots of several runs: what was held and used over time, and each run against its request."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from numpy.typing import NDArray

from jobsight.reports.plots import (
    ACCENT,
    BAD,
    HALF,
    INK,
    MUTED,
    WIDTH,
    Format,
    Plot,
    dates,
    finish,
    new_figure,
    render,
)
from jobsight.reports.subject import PeriodUse, RunPoints, SubjectReport
from jobsight.util.units import format_duration, format_hours

#: Light: what was held; what was used is drawn before it.
_HELD: Final = "#c9dde3"
#: Runs without which points say nothing.
_FEWEST: Final = 3
_MAX_DURATION: Final = 10.0 * 365 * 86400
_DURATION_STEPS: Final = (
    1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
    14400.0, 21600.0, 43200.0,
)  # fmt: skip


def draw_subject(report: SubjectReport, format: Format = "svg") -> list[Plot]:
    """The plots of a report of several runs."""
    plots = []
    if len(report.usage) > 1:
        plots.append(Plot("usage", "Core hours", _draw_usage(report.usage, format)))
    points = report.points
    if points is not None and len(points.start_seconds) >= _FEWEST:
        runs = _Runs.of(points, by_task=report.kind == "array" and None not in points.task)
        crosses = " (x: did not complete)" if any(points.failed) else ""
        elapsed = runs.in_order(points.elapsed_seconds)
        drawn = _scatter(runs, elapsed, f"Elapsed{crosses}", "", None, format)
        plots.append(Plot("elapsed", "Elapsed", drawn, HALF))
        if any(points.memory_used_bytes):
            memory = runs.in_order(points.memory_used_bytes)
            limit = runs.in_order(points.memory_requested_bytes)
            title = "Memory used (dashed: requested)"
            drawn = _scatter(runs, memory, title, "memory", limit, format)
            plots.append(Plot("memory-points", "Memory", drawn, HALF))
    return plots


class _Runs(NamedTuple):
    """Where runs are drawn: by the task of an array, or by their start."""

    at: NDArray[np.float64]
    failed: NDArray[np.bool_]
    by_task: bool
    order: NDArray[np.intp]

    @classmethod
    def of(cls, points: RunPoints, by_task: bool) -> _Runs:
        at = np.array(points.task if by_task else points.start_seconds, dtype=float)
        order = np.argsort(at)
        placed = at[order] if by_task else dates(at[order])
        return cls(placed, np.array(points.failed)[order], by_task, order)

    def in_order(self, values: Sequence[float | None]) -> NDArray[np.float64]:
        known = [np.nan if value is None else value for value in values]
        return np.array(known, dtype=float)[self.order]


def _draw_usage(periods: list[PeriodUse], format: Format) -> bytes:
    """Bars of the core hours held, with those used before them."""
    figure, axes = new_figure(WIDTH, 2.2)
    starts = dates(np.array([each.since / 1e9 for each in periods]))
    width = 0.82 * (float(np.median(np.diff(starts))) if len(starts) > 1 else 1.0)
    held = [each.core_hours_held or 0.0 for each in periods]
    used = [each.core_hours_used for each in periods]
    axes.bar(starts, held, width, align="edge", color=_HELD, label="held")
    axes.bar(starts, used, width, align="edge", color=ACCENT, label="used")
    axes.legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.98), fontsize=7, labelcolor=INK,
        ncols=2, borderaxespad=0.0,
    )  # fmt: skip
    finish(axes, "", "Core hours")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_hours(value)))
    return render(figure, format)


def _scatter(
    runs: _Runs,
    values: NDArray[np.float64],
    title: str,
    chart: str,
    limit: NDArray[np.float64] | None,
    format: Format,
) -> bytes:
    figure, axes = new_figure(HALF, 2.1)
    at, failed = runs.at, runs.failed
    if limit is not None:
        axes.plot(
            at, limit, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)), drawstyle="steps-mid"
        )
    axes.scatter(at[~failed], values[~failed], s=9, color=ACCENT, alpha=0.7, linewidths=0)
    # By its shape as well as its colour.
    axes.scatter(at[failed], values[failed], s=16, color=BAD, marker="x", linewidths=1.0)
    # Above the highest point, which has a size.
    axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
    finish(axes, chart, title)
    axes.margins(x=0.03)
    if runs.by_task:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.set_xlabel("task")
    if chart == "":
        axes.yaxis.set_major_locator(MultipleLocator(duration_step(float(axes.get_ylim()[1]))))
        axes.yaxis.set_major_formatter(FuncFormatter(_duration))
    return render(figure, format)


def duration_step(highest: float) -> float:
    """Seconds between ticks: at most five intervals of whole minutes, hours or days."""
    days = (float(2**power * 86400) for power in range(16))
    steps = itertools.chain(_DURATION_STEPS, days)
    return next((step for step in steps if highest <= 5 * step), _MAX_DURATION)


def _duration(seconds: float, _: object) -> str:
    return format_duration(round(min(max(seconds, 0.0), _MAX_DURATION) * 1e9))
