"""``jobsight report`` of several runs: an array, or a user, account or cluster over a period."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jobsight.cli.arguments import UsageError
from jobsight.cli.output import write_json
from jobsight.cli.report_files import write_file
from jobsight.cli.software.report import first_day
from jobsight.errors import StoreError
from jobsight.model import RunReference
from jobsight.reports.subject import SubjectReport, array_report, period_report
from jobsight.reports.subject_document import print_document, subject_document
from jobsight.store.store import Store

if TYPE_CHECKING:
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
) -> None:
    """Print the report of an array, user, account or cluster, or write it to files."""
    with Store.open(location) as store:
        built = _build(store, kind, name, since)
    if json:
        write_json(built)
        return
    document = subject_document(built, now=time.time_ns())
    if html:
        from jobsight.reports.html import render_html

        write_file(html, render_html(document).encode())
    if pdf:
        from jobsight.reports.pdf import render_pdf

        write_file(pdf, render_pdf(document))
    if not (html or pdf):
        print_document(document)


def _build(store: Store, kind: str, name: str, since: str) -> SubjectReport:
    if kind == "array":
        try:
            reference = RunReference.parse(name)
        except ValueError:
            raise UsageError(f"--array {name[:80]!r}: expected the id of an array, as 62") from None
        return array_report(store, reference.job_id, cluster=reference.cluster)
    period: Period = "user" if kind == "user" else "account" if kind == "account" else "cluster"
    report = period_report(store, period, name, since=first_day(since))
    if not report.runs:
        raise StoreError(f"the store has no run of {kind} {name[:80]!r} since {since}")
    return report
