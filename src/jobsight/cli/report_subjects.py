"""``jobsight report`` of several runs: an array, a script, or a user, account or cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobsight.cli.arguments import UsageError
from jobsight.cli.output import write_json
from jobsight.cli.report_files import write_file
from jobsight.cli.software.report import first_day
from jobsight.errors import StoreError
from jobsight.model import RunReference
from jobsight.reports.subject import (
    SubjectReport,
    array_report,
    find_works,
    period_report,
    script_report,
)
from jobsight.reports.subject_document import print_document, subject_document
from jobsight.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobsight.config.settings import PriceSettings
    from jobsight.reports.subject import Period


def report_subject(
    location: str,
    kind: str,
    name: str,
    since: str,
    *,
    json: bool,
    pdf: str | None,
    html: str | None,
    prices: Mapping[str, PriceSettings],
) -> None:
    """Print the report of an array, script, user, account or cluster, or write it to files."""
    with Store.open(location) as store:
        built = _build(store, kind, name, since, prices)
    if json:
        write_json(built)
        return
    document = subject_document(built, now=time.time_ns())
    if html:
        from jobsight.reports.html import render_html

        write_file(html, render_html(document).encode())
    if pdf:
        from jobsight.reports.pdf import render_pdf
        from jobsight.reports.subject_plots import draw_subject

        write_file(pdf, render_pdf(document, draw_subject(built)))
    if not (html or pdf):
        print_document(document)


def _build(
    store: Store, kind: str, name: str, since: str, prices: Mapping[str, PriceSettings]
) -> SubjectReport:
    if kind == "array":
        try:
            reference = RunReference.parse(name)
        except ValueError:
            raise UsageError(f"--array {name[:80]!r}: expected the id of an array, as 62") from None
        return array_report(store, reference.job_id, cluster=reference.cluster, prices=prices)
    first = first_day(since)
    if kind == "script":
        try:
            works = find_works(store, name)
        except ValueError:
            raise UsageError(
                f"--script {name[:80]!r}: expected a run, as 12, or the key of a script, as "
                "`jobsight report --user` lists it"
            ) from None
        return script_report(store, works, since=first, prices=prices)
    period: Period = "user" if kind == "user" else "account" if kind == "account" else "cluster"
    report = period_report(store, period, name, since=first, prices=prices)
    if not report.runs:
        raise StoreError(f"the store has no run of {kind} {name[:80]!r} since {since}")
    return report
