"""A report with its plots: the time series that they need, the plots, and the PDF.

matplotlib and typst take longer to import than a whole report, so this module is imported only by
what draws.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from jobsight.model import SECOND, RunReference
from jobsight.reports.document import build_document
from jobsight.reports.plots import Format, Plot, draw_all, metrics_to_read
from jobsight.reports.report import JobReport
from jobsight.reports.series import SeriesReply, count_samples, reply

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
    report: JobReport, series: SeriesReply, format: Format, names: Collection[str] | None = None
) -> list[Plot]:
    """The plots of a run with what it requested and where its findings can be seen."""
    limits: dict[str, float | None] = {
        "cpu": report.cpu.requested_cpus,
        "memory": report.memory.requested_bytes,
        "gpu": None if report.gpu is None else report.gpu.count,
    }
    marks = [
        (each.evidence.since / SECOND, each.evidence.until / SECOND)
        for each in report.findings
        if each.holds
        and each.evidence.since is not None
        and each.evidence.until is not None
        # A stretch that is the whole run marks nothing.
        and (each.evidence.since, each.evidence.until) != (report.start, report.end)
    ]
    return draw_all(series, limits=limits, marks=marks[:5], format=format, names=names)


def pdf_of(report: JobReport, series: SeriesReply | None, now: int) -> bytes:
    """The report as PDF, with its plots."""
    from jobsight.reports.pdf import render_pdf

    samples = None if series is None else count_samples(series)
    drawn = [] if series is None else draw_report(report, series, "svg")
    return render_pdf(build_document(report, samples=samples, now=now), drawn)
