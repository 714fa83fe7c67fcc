"""The message of a mail: Slurm's own words, then the report, as plain text and as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from jobsight.config.settings import MailSettings
from jobsight.errors import ConfigError
from jobsight.findings.reported import add_address
from jobsight.mail.request import Event, MailRequest
from jobsight.reports.document import DocumentTable, build_document
from jobsight.reports.html import render_html
from jobsight.reports.report import JobReport
from jobsight.reports.subject import SubjectReport
from jobsight.reports.subject_document import document_text, subject_document
from jobsight.reports.terminal import report_text
from jobsight.util.units import format_count

#: Characters of a line in the plain part.
WIDTH: Final = 78
#: Lines of Slurm that a message about tasks of an array repeats.
_MAX_SAID: Final = 20


class Links(NamedTuple):
    """The addresses at which a recipient unsubscribes."""

    #: From the kind of the mail, and from everything.
    kind: str
    everything: str


class About(NamedTuple):
    """What a message reports: a run, several runs, or nothing."""

    run: JobReport | None = None
    several: SubjectReport | None = None


def build_message(
    settings: MailSettings,
    name: str,
    requests: Sequence[MailRequest],
    about: About,
    links: Links | None = None,
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
    if links is not None:
        # RFC 8058: a mail program shows a button that sends one request.
        message["List-Unsubscribe"] = f"<{links.kind}>"
        message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    # The failures first: not all fit.
    ordered = sorted(requests, key=lambda each: (each.word != "Failed", each.array_task_id or 0))
    said = [request.subject for request in ordered[:_MAX_SAID]]
    if len(requests) > _MAX_SAID:
        said.append(f"... and {format_count(len(requests) - _MAX_SAID)} more")
    if about.run is not None:
        plain, page = _of_run(settings, said[0], about.run, _footer(links))
    elif about.several is not None:
        plain, page = _of_several(settings, said, about.several, _footer(links))
    else:
        plain, page = _without_report(said, first.event), ""
    if links is not None:
        plain += f"\n-- \nUnsubscribe: {links.kind}\nUnsubscribe from all: {links.everything}\n"
    message.set_content(plain)
    if page:
        message.add_alternative(page, subtype="html")
    return message


def recipient(settings: MailSettings, to: str) -> str:
    """The address of a recipient; a user name gets the domain of the settings."""
    return f"{to}@{settings.domain}" if "@" not in to and settings.domain else to


def pages_url(settings: MailSettings) -> str | None:
    """The address of the pages, which every recipient sees: it has no user and no password."""
    if not settings.url:
        return None
    try:
        url = urlsplit(settings.url)
        accepted = url.scheme in ("http", "https") and url.hostname and "@" not in url.netloc
        _ = url.port
    except ValueError:
        accepted = None
    if not accepted:
        raise ConfigError(
            "mail.url is not an address for links; expected https://jobs.example.org, without a "
            "user or a password"
        )
    return settings.url.rstrip("/")


def run_url(settings: MailSettings, run: str) -> str | None:
    """The address of the page of a run."""
    url = pages_url(settings)
    return f"{url}/jobs/{quote(run)}" if url else None


def _footer(links: Links | None) -> list[tuple[str, str]]:
    if links is None:
        return []
    return [("Unsubscribe", links.kind), ("Unsubscribe from all mails", links.everything)]


def _of_run(
    settings: MailSettings, said: str, report: JobReport, last: list[tuple[str, str]]
) -> tuple[str, str]:
    url = run_url(settings, report.run)
    add_address(report.findings, pages_url(settings))
    plain = f"{said}\n\n{report_text(report, WIDTH)}"
    if url:
        plain += f"\n{url}\n"
    footer = [("Open the page of the job", url)] if url else []
    return plain, render_html(build_document(report), lead=said, footer=[*footer, *last])


def _of_several(
    settings: MailSettings,
    said: Sequence[str],
    report: SubjectReport,
    last: list[tuple[str, str]],
) -> tuple[str, str]:
    add_address(report.findings, pages_url(settings))
    document = subject_document(report)
    plain = "\n".join([*said, "", document_text(document, WIDTH)])
    lead = said[0] if len(said) == 1 else ""
    footer = []
    url = pages_url(settings)
    if url:
        plain += f"\n{url}\n"
        footer = [("Open the list of jobs", url)]
    if len(said) > 1:
        table = DocumentTable("What Slurm said", [""], [[line] for line in said])
        document = msgspec.structs.replace(document, tables=[*document.tables, table])
    return plain, render_html(document, lead=lead, footer=[*footer, *last])


def _without_report(said: Sequence[str], event: Event) -> str:
    if event == "begin":
        return "\n".join([*said, ""])
    return "\n".join([*said, "", "jobsight has measured nothing of this job.", ""])


def _array_subject(requests: Sequence[MailRequest]) -> str:
    words = Counter(request.word for request in requests)
    counted = ", ".join(f"{format_count(count)} {word}" for word, count in words.most_common(5))
    return f"Slurm Array Job_id={requests[0].array_job_id}: {counted}"
