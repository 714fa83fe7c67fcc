"""A request to send a mail, as slurmctld makes it: arguments and environment of MailProg."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from jobsight.model import MAX_JOB_ID
from jobsight.text import readable_text

#: Characters of an address (RFC 5321) and of a subject.
MAX_ADDRESS: Final = 254
MAX_SUBJECT: Final = 400
#: Variables that slurmctld sets beyond the job's id, kept for the message.
_KEPT: Final = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_MAIL_TYPE",
    "SLURM_JOB_STATE",
    "SLURM_JOB_RUN_TIME",
    "SLURM_JOB_QUEUED_TIME",
    "SLURM_JOB_EXIT_CODE_MAX",
    "SLURM_JOB_TERM_SIGNAL_MAX",
)
_MAX_VALUE: Final = 200
#: The beginning of Slurm's subjects. What follows is the job's name, which a user has chosen.
_SUBJECT: Final = re.compile(
    r"Slurm (?:Array (?:Task|Summary) )?Job_id=(?P<job>\d{1,18})(?:_(?P<task>\d{1,9}|\*))?"
    r"(?: \((?P<raw>\d{1,18})\))?",
    re.ASCII,
)
_ADDRESS: Final = re.compile(r"[^\s\x00-\x1f\x7f<>,;:\"()\[\]\\@]+(?:@[A-Za-z0-9.\-\[\]:]+)?")


class MailRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One mail that Slurm wants to be sent."""

    #: A user name or an address.
    to: str
    #: Slurm's own text.
    subject: str
    #: Nanoseconds since 1970.
    created: int
    cluster: str = ""
    job_id: int | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    #: The mail is about the whole array.
    array_summary: bool = False
    #: What slurmctld set of its documented variables.
    variables: dict[str, str] = msgspec.field(default_factory=dict)


def is_address(text: str) -> bool:
    """Whether a text can be a recipient: a user name, or an address without a display name."""
    return len(text) <= MAX_ADDRESS and _ADDRESS.fullmatch(text) is not None


def slurm_request(
    to: str, subject: str, environment: Mapping[str, str], created: int
) -> MailRequest:
    """The request of a call of MailProg.

    The job is taken from the variables of slurmctld, else from the beginning of the subject, which
    Slurm writes; never from the job's name behind it. Of several recipients Slurm makes several
    calls.
    """
    request = MailRequest(
        to=to,
        subject=" ".join(readable_text(subject[: 4 * MAX_SUBJECT]).split())[:MAX_SUBJECT],
        created=created,
        cluster=environment.get("SLURM_CLUSTER_NAME", "")[:_MAX_VALUE],
        variables={
            name: readable_text(environment[name][:_MAX_VALUE])
            for name in _KEPT
            if environment.get(name)
        },
    )
    request.job_id = _number(environment.get("SLURM_JOB_ID"))
    request.array_job_id = _number(environment.get("SLURM_ARRAY_JOB_ID"))
    request.array_task_id = _number(environment.get("SLURM_ARRAY_TASK_ID"))
    match = _SUBJECT.match(subject)
    if match is not None:
        if match["task"] is not None:
            request.array_job_id = request.array_job_id or _number(match["job"])
            request.array_summary = match["task"] == "*"
            if not request.array_summary:
                request.array_task_id = _number(match["task"])
        request.job_id = request.job_id or _number(match["raw"] or match["job"])
    return request


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 18:
        return None
    return min(int(text), MAX_JOB_ID)
