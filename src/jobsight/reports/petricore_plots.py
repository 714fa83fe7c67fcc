"""petricore's plots of a finished job, as PNG: a line per node or core, and pies of CPU time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from jobsight.metrics import find_metric
from jobsight.model import MISSING, SECOND, RunReference
from jobsight.reports.plots import Row, draw_lines, draw_pies
from jobsight.reports.report import JobReport
from jobsight.reports.series import reply

if TYPE_CHECKING:
    from jobsight.store.store import Store

#: Points of each line.
POINTS: Final = 400
_MEBIBYTE: Final = 2**20


class PlottedMetric(NamedTuple):
    """One of petricore's metrics."""

    title: str
    unit: str
    #: The stored metric, with a star for an instance.
    metric: str
    #: Stored units in one of the plot.
    divisor: float
    #: A counter is shown as it is, not as its rate.
    cumulative: bool = False


METRICS: Final = {
    "rss": PlottedMetric("Memory", "MB", "memory.used", _MEBIBYTE),
    "cpu_percent": PlottedMetric("CPU usage", "%", "cpu.time", 0.01),
    "read_mb": PlottedMetric("Read from storage", "MB", "io.read_bytes", _MEBIBYTE, True),
    "write_mb": PlottedMetric("Written to storage", "MB", "io.written_bytes", _MEBIBYTE, True),
    "user_time": PlottedMetric("Time in user mode", "s", "cpu.user", SECOND, True),
    "system_time": PlottedMetric("Time in system mode", "s", "cpu.system", SECOND, True),
    "cpu_time_core": PlottedMetric("CPU time of each core", "s", "cores.*.time", SECOND, True),
    "thread_count": PlottedMetric("Threads", "threads", "tasks.threads", 1),
}


def metric_plot(store: Store, report: JobReport, name: str) -> bytes | None:
    """The plot of one of :data:`METRICS`; None if it was not measured."""
    plotted = METRICS[name]
    rows = _rows(store, report, plotted)
    if not rows:
        return None
    limit = None
    if name == "cpu_percent" and report.cpu.requested_cpus:
        # The least that is expected of each line.
        limit = 80 * report.cpu.requested_cpus / len(rows)
    return draw_lines(f"{plotted.title} of job {report.display_id}", plotted.unit, rows, limit)


def time_pies(store: Store, report: JobReport) -> bytes | None:
    """User against system time of each node; None if no CPU time was measured."""
    stored = store.find(RunReference.parse(report.run))
    pies = []
    for node in store.nodes(stored.id):
        user = node.totals.cpu_user if node.totals is not None else None
        system = node.totals.cpu_system if node.totals is not None else None
        if user is not None and system is not None and user + system > 0:
            pies.append((node.node, {"user": user / SECOND, "system": system / SECOND}))
    if not pies:
        return None
    return draw_pies(f"User and system time of job {report.display_id}", pies)


def _rows(store: Store, report: JobReport, plotted: PlottedMetric) -> list[Row]:
    stored = store.find(RunReference.parse(report.run))
    names = [plotted.metric]
    if "*" in plotted.metric:
        names = sorted(
            {
                row.metric
                for row in store.summaries(stored.id)
                if (metric := find_metric(row.metric)) is not None and metric.name == plotted.metric
            }
        )
    if not names:
        return []
    series = store.series(stored.id, metrics=names)
    if plotted.cumulative:
        rows = []
        for part in series:
            for name, column in part.columns.items():
                known = np.flatnonzero(column != MISSING)
                if len(known) > POINTS:
                    known = known[np.linspace(0, len(known) - 1, POINTS).astype(np.intp)]
                values = column[known].astype(np.float64) / plotted.divisor
                rows.append(Row(_label(part.node, name), part.times[known] / SECOND, values))
        return [row for row in rows if len(row.times)]
    return [
        Row(
            _label(node.node, name),
            np.array(node.times_seconds),
            np.array([np.nan if value is None else value for value in values.mean])
            / plotted.divisor,
        )
        for node in reply(report.run, series, [], POINTS).nodes
        for name, values in node.metrics.items()
        if node.times_seconds
    ]


def _label(node: str, metric: str) -> str:
    return f"core: {metric.split('.')[1]} node: {node}" if metric.startswith("cores.") else node
