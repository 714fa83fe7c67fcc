"""The files of ``jobsight report``: PDF, HTML and plots.

matplotlib and typst take longer to import than a whole report, so this module is imported only for
these options.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.reports.document import build_document
from jobsight.reports.html import render_html
from jobsight.reports.plots import Format, Plot, draw_all
from jobsight.reports.report import JobReport
from jobsight.reports.series import SeriesReply
from jobsight.util.durable import write_atomically

#: Points of each time series: more than a page has dots for a line.
POINTS = 400


def write_files(
    report: JobReport,
    read_series: Callable[[], SeriesReply],
    *,
    pdf: str | None,
    html: str | None,
    plots: str | None,
) -> None:
    """Write the requested files and print their paths."""
    # A pending job has no series.
    series = read_series() if (pdf or plots) and not report.pending else None
    samples = None
    if series is not None:
        samples = sum(len(node.times_seconds) for node in series.nodes)
    document = build_document(report, samples=samples, now=time.time_ns())
    if pdf:
        from jobsight.reports.pdf import render_pdf

        drawn = [] if series is None else _draw(report, series, "svg")
        write_file(pdf, render_pdf(document, drawn))
    if html:
        write_file(html, render_html(document).encode())
    if plots:
        directory = Path(plots)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JobsightError(f"{plots} cannot be created: {error.strerror}") from None
        formats: tuple[Format, ...] = ("svg", "png")
        for format in formats:
            for plot in [] if series is None else _draw(report, series, format):
                write_file(str(directory / f"{plot.name}.{format}"), plot.data)


def _draw(report: JobReport, series: SeriesReply, format: Format) -> list[Plot]:
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
    return draw_all(series, limits=limits, marks=marks[:5], format=format)


def write_file(path: str, data: bytes) -> None:
    """Write a file and print its path; ``-`` is the standard output."""
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        write_atomically(Path(path), data, mode=0o666)
    except OSError as error:
        raise JobsightError(f"{path} cannot be written: {error.strerror}") from None
    print(f"{path}: {len(data):,} bytes", file=sys.stderr)
