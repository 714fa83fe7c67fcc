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
from jobsight.reports.document import build_document
from jobsight.reports.html import render_html
from jobsight.reports.plots import Format
from jobsight.reports.report import JobReport
from jobsight.reports.series import SeriesReply
from jobsight.reports.with_plots import draw_report, pdf_of
from jobsight.util.durable import write_atomically


def write_files(
    report: JobReport,
    read_series: Callable[[], SeriesReply | None],
    *,
    pdf: str | None,
    html: str | None,
    plots: str | None,
) -> None:
    """Write the requested files and print their paths."""
    # A pending job has no series.
    series = read_series() if (pdf or plots) and not report.pending else None
    now = time.time_ns()
    if pdf:
        write_file(pdf, pdf_of(report, series, now))
    if html:
        write_file(html, render_html(build_document(report, now=now)).encode())
    if plots:
        directory = Path(plots)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JobsightError(f"{plots} cannot be created: {error.strerror}") from None
        formats: tuple[Format, ...] = ("svg", "png")
        for format in formats:
            for plot in [] if series is None else draw_report(report, series, format):
                write_file(str(directory / f"{plot.name}.{format}"), plot.data)


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
