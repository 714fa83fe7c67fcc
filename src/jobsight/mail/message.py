"""The message of a mail: Slurm's own words, then the report, as plain text and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import EmailMessage
from email.policy import SMTP
from urllib.parse import quote

from jobsight.config.settings import MailSettings
from jobsight.mail.request import MailRequest
from jobsight.reports.document import Document, DocumentTable, build_document, shown
from jobsight.reports.html import render_html
from jobsight.reports.report import JobReport
from jobsight.reports.terminal import report_text
from jobsight.util.units import format_bytes, format_duration, format_share
from jobsight.util.urls import without_credentials

#: Characters of a line in the plain part.
WIDTH = 78


def build_message(
    settings: MailSettings,
    name: str,
    requests: Sequence[MailRequest],
    reports: Sequence[JobReport],
) -> EmailMessage:
    """A message about one job, or about tasks of one array.

    ``name`` makes the message's id: a mail that is sent twice, because the process was killed
    before the request was removed, has the same id.
    """
    first = requests[0]
    message = EmailMessage(policy=SMTP)
    message["Subject"] = first.subject if len(requests) == 1 else _array_subject(requests)
    message["From"] = settings.sender
    message["To"] = recipient(settings, first.to)
    message["Message-ID"] = f"<{name}@jobsight.{settings.domain or 'localhost'}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Jobsight-Job"] = str(first.array_job_id or first.job_id or "")
    said = [request.subject for request in requests]
    if len(reports) == 1 and len(requests) == 1:
        plain, page = _of_run(settings, said[0], reports[0])
    elif reports:
        plain, page = _of_array(settings, said, reports)
    else:
        plain, page = _without_report(said)
    message.set_content(plain)
    if page:
        message.add_alternative(page, subtype="html")
    return message


def recipient(settings: MailSettings, to: str) -> str:
    """The address of a recipient; a user name gets the domain of the settings."""
    return f"{to}@{settings.domain}" if "@" not in to and settings.domain else to


def run_url(settings: MailSettings, run: str) -> str | None:
    """The address of the page of a run."""
    base = pages_url(settings)
    return f"{base}/jobs/{quote(run)}" if base else None


def pages_url(settings: MailSettings) -> str | None:
    """The address of the pages; a password in the setting is not sent to anybody."""
    return without_credentials(settings.url).rstrip("/") if settings.url else None


def _of_run(settings: MailSettings, said: str, report: JobReport) -> tuple[str, str]:
    url = run_url(settings, report.run)
    plain = f"{said}\n\n{report_text(report, WIDTH)}"
    if url:
        plain += f"\n{url}\n"
    footer = [("Open the page of the job", url)] if url else []
    return plain, render_html(build_document(report), lead=said, footer=footer)


def _of_array(
    settings: MailSettings, said: Sequence[str], reports: Sequence[JobReport]
) -> tuple[str, str]:
    document = array_document(reports)
    lines = [*said[:20], *([f"... and {len(said) - 20} more"] if len(said) > 20 else []), ""]
    lines += [f"{document.title} {document.subtitle}: {document.state}", ""]
    for table in document.tables:
        lines.append("  ".join(table.columns))
        lines += ["  ".join(row) for row in table.rows]
        lines += [table.note] if table.note else []
    base = pages_url(settings)
    footer = [("Open the list of jobs", base)] if base else []
    return "\n".join(lines) + "\n", render_html(document, lead=said[0], footer=footer)


def array_document(reports: Sequence[JobReport]) -> Document:
    """The tasks of an array as one document: states counted, then a row for each task."""
    first = reports[0]
    states: dict[str, int] = {}
    for report in reports:
        states[report.state_text or report.state] = (
            states.get(report.state_text or report.state, 0) + 1
        )
    counted = ", ".join(f"{count} {shown(state)}" for state, count in sorted(states.items()))
    worst_first = sorted(reports, key=lambda report: report.state == "COMPLETED")
    rows = [
        [
            report.display_id,
            shown(report.state_text or report.state),
            format_duration(report.time.elapsed),
            format_share(report.cpu.share),
            format_bytes(report.memory.used_peak_bytes),
        ]
        for report in worst_first[:50]
    ]
    table = DocumentTable(
        title="Tasks",
        columns=["Task", "State", "Elapsed", "CPU", "Memory"],
        rows=rows,
        note=f"{len(reports) - 50} more are not shown." if len(reports) > 50 else "",
    )
    array = first.display_id.partition("_")[0]
    return Document(
        title=f"Array {array}",
        subtitle=shown(first.name),
        state=counted,
        tone="good" if {report.state for report in reports} == {"COMPLETED"} else "warn",
        facts=[("User", shown(first.user)), ("Cluster", shown(first.cluster))],
        findings=[],
        no_findings="",
        gauges=[],
        figures=[],
        tables=[table],
        coverage=[],
        notes=[],
    )


def _without_report(said: Sequence[str]) -> tuple[str, str]:
    lines = [*said, "", "jobsight has measured nothing of this job."]
    return "\n".join(lines) + "\n", ""


def _array_subject(requests: Sequence[MailRequest]) -> str:
    first = requests[0]
    return f"Slurm Array Job_id={first.array_job_id}: {len(requests)} tasks"
