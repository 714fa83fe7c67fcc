"""A report with its plots: the time series that they need, the plots, and the PDF.

matplotlib and typst take longer to import than a whole report, so this module is imported only by
what draws.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from jobsight.model import SECOND, RunReference
from jobsight.reports.document import build_document, shown
from jobsight.reports.plots import (
    CHARTS,
    HALF,
    MAPS,
    WIDTH,
    Format,
    Plot,
    draw_all,
    metrics_to_read,
)
from jobsight.reports.report import JobReport
from jobsight.reports.series import SeriesReply, reply

if TYPE_CHECKING:
    from jobsight.store.store import Store

#: Points of each time series: more than a page has dots for a line.
POINTS: Final = 400


def read_series(store: Store, report: JobReport) -> SeriesReply | None:
    """The time series of a run that its plots need; a job that waits has none."""
    if report.pending:
        return None
    stored = store.find(RunReference.parse(report.run))
    names = {summary.metric for summary in store.summaries(stored.id)}
    wanted = metrics_to_read(sorted(names))
    series = store.series(stored.id, metrics=wanted) if wanted else []
    return reply(report.run, series, [], POINTS)


def draw_report(
    report: JobReport,
    series: SeriesReply,
    format: Format,
    names: Collection[str] | None = None,
    width: float = WIDTH,
) -> list[Plot]:
    """The plots of a run with what it requested and where its findings can be seen."""
    limits: dict[str, float | None] = {
        "cpu": report.cpu.requested_cpus,
        "memory": report.memory.requested_bytes,
        "gpu": None if report.gpu is None else report.gpu.count,
    }
    holding = [each.evidence for each in report.findings if each.holds]
    marks = [
        (each.since / SECOND, each.until / SECOND)
        for each in holding
        if each.since is not None
        and each.until is not None
        # A stretch that is the whole run marks nothing.
        and (each.since, each.until) != (report.start, report.end)
    ]
    return draw_all(
        series,
        limits=limits,
        marks=marks[:5],
        format=format,
        names=names,
        width=width,
        marked={shown(node) for each in holding for node in each.nodes},
    )


#: The chart of a metric that a finding names, by the beginning of its name.
_CHART_OF: Final = {
    "cpu.": "cpu",
    "memory.": "memory",
    "gpu.": "gpu",
    "io.": "storage",
    "pressure.cpu": "cpu",
    "pressure.memory": "memory",
    "pressure.io": "storage",
}


def maps_that_matter(report: JobReport) -> list[str]:
    """The heat maps of the resources that the findings are about, in the order of the findings;
    those of CPUs and GPUs for a run without any."""
    charts: dict[str, None] = {}
    for finding in report.findings:
        if not finding.holds:
            continue
        for name in finding.evidence.series:
            chart = next((each for start, each in _CHART_OF.items() if name.startswith(start)), "")
            if chart == "gpu" and "memory" in name:
                chart = "gpu-memory"
            charts.setdefault(chart)
    by_chart = {chart: name for name, chart in MAPS.items()}
    found = [by_chart[chart] for chart in charts if chart in by_chart]
    return found or ["cpu-map", "gpu-map"]


def pdf_of(report: JobReport, series: SeriesReply | None, now: int) -> bytes:
    """The report as PDF: charts of half the width of a page, and the heat maps that matter."""
    from jobsight.reports.pdf import render_pdf

    if series is None:
        return render_pdf(build_document(report, now=now))
    wide = maps_that_matter(report)
    drawn = draw_report(report, series, "svg", [*CHARTS, *wide], width=HALF)
    drawn.sort(key=lambda plot: wide.index(plot.name) if plot.name in wide else -1)
    document = build_document(report, now=now)
    return render_pdf(document, drawn)
