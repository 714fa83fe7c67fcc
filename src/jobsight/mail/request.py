"""A request to send a mail, as slurmctld makes it: arguments and environment of MailProg."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from jobsight.model import MAX_JOB_ID
from jobsight.text import readable_path, readable_text

#: Characters of an address (RFC 5321) and of a subject, and addresses of one call.
MAX_ADDRESS: Final = 254
MAX_SUBJECT: Final = 400
MAX_RECIPIENTS: Final = 20
#: Variables that slurmctld sets beyond the job's id, kept for the message.
KEPT_VARIABLES: Final = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_MAIL_TYPE",
    "SLURM_JOB_STATE",
    "SLURM_JOB_RUN_TIME",
    "SLURM_JOB_QUEUED_TIME",
    "SLURM_JOB_EXIT_CODE_MAX",
    "SLURM_JOB_EXIT_CODE_MIN",
    "SLURM_JOB_TERM_SIGNAL_MAX",
    "SLURM_JOB_RESTART_COUNT",
)
_MAX_VALUE: Final = 200
#: The beginning of Slurm's subjects. What follows is the job's name, which a user has chosen.
_SUBJECT: Final = re.compile(
    r"Slurm (?:Array (?:Task|Summary) )?Job_id=(?P<job>\d{1,18})(?:_(?P<task>\d{1,9}|\*))?"
    r"(?: \((?P<raw>\d{1,18})\))?",
    re.ASCII,
)
#: What a recipient may unsubscribe from.
MailKind: TypeAlias = Literal["jobs", "digest", "account-digest"]
Event: TypeAlias = Literal["begin", "end", "requeue", "time limit", "other"]
#: The beginnings of SLURM_JOB_MAIL_TYPE. Slurm writes its own words there and in the subject, not
#: the names of --mail-type.
_EVENTS: Final[dict[str, Event]] = {
    "Began": "begin",
    "Ended": "end",
    "Failed": "end",
    "Requeued": "requeue",
    "Reached": "time limit",
}
_WORDS: Final = re.compile(rf" ({'|'.join(_EVENTS)})(?=[ ,]|$)", re.ASCII)
_ADDRESS: Final = re.compile(r"[^\s\x00-\x1f\x7f<>,;:\"()\[\]\\@]+(?:@[A-Za-z0-9.\-\[\]:]+)?")


class MailRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One mail that Slurm wants to be sent, or a digest."""

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
    #: The number of tasks of the array.
    array_task_count: int | None = None
    #: What slurmctld set of its documented variables.
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    #: A digest and not a mail of Slurm: the user, the first day and the one after the last.
    digest: tuple[str, int, int] | None = None
    #: The same of an account, for one of its coordinators.
    account_digest: tuple[str, int, int] | None = None

    @property
    def kind(self) -> MailKind:
        """What a recipient may unsubscribe from."""
        if self.digest is not None:
            return "digest"
        return "jobs" if self.account_digest is None else "account-digest"

    @property
    def word(self) -> str:
        """What happened, in Slurm's words: Began, Ended, Failed, Reached 80% of time limit."""
        given = self.variables.get("SLURM_JOB_MAIL_TYPE")
        if given:
            return given
        # The last one: those before it may be of the job's name.
        found = _WORDS.findall(self.subject)
        return str(found[-1]) if found else ""

    @property
    def event(self) -> Event:
        """What happened, as far as it decides when a mail is sent."""
        return _EVENTS.get(self.word.partition(" ")[0], "other")


class Bounce(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A mail that came back; without a recipient, a message that says no such thing."""

    #: To whom the mail was sent, and the signature in its headers.
    recipient: str = ""
    signature: str = ""
    #: The enhanced status code (RFC 3463), and what the mail server said.
    status: str = ""
    text: str = ""


def is_address(text: str) -> bool:
    """Whether a text can be a recipient: a user name, or an address without a display name.

    Only ASCII: not every mail server accepts other characters (RFC 6531).
    """
    return len(text) <= MAX_ADDRESS and text.isascii() and _ADDRESS.fullmatch(text) is not None


def split_recipients(text: str) -> tuple[list[str], list[str]]:
    """The recipients of a call, and what cannot be one: Slurm passes the list of --mail-user as it
    was given, with commas."""
    parts = dict.fromkeys(part.strip() for part in text.split(","))
    accepted = [part for part in parts if is_address(part)]
    refused = [part for part in parts if part and not is_address(part)]
    return accepted[:MAX_RECIPIENTS], refused + accepted[MAX_RECIPIENTS:]


def slurm_request(
    to: str, subject: str, environment: Mapping[str, str], created: int
) -> MailRequest:
    """The request of a call of MailProg, for one of its recipients.

    The job is taken from the variables of slurmctld, else from the beginning of the subject, which
    Slurm writes; never from the job's name behind it.
    """
    request = MailRequest(
        to=to,
        subject=" ".join(_readable(subject[: 4 * MAX_SUBJECT]).split())[:MAX_SUBJECT],
        created=created,
        cluster=_value(environment.get("SLURM_CLUSTER_NAME", "")),
        variables={
            name: _value(environment[name]) for name in KEPT_VARIABLES if environment.get(name)
        },
    )
    request.job_id = _number(environment.get("SLURM_JOB_ID"))
    request.array_job_id = _number(environment.get("SLURM_ARRAY_JOB_ID"))
    request.array_task_id = _number(environment.get("SLURM_ARRAY_TASK_ID"))
    request.array_task_count = _number(environment.get("SLURM_ARRAY_TASK_COUNT"))
    match = _SUBJECT.match(subject)
    if match is not None:
        if match["task"] is not None:
            request.array_job_id = request.array_job_id or _number(match["job"])
            request.array_summary = match["task"] == "*"
            # With a summary slurmctld sets the variables of the task that ended last.
            request.array_task_id = None if request.array_summary else _number(match["task"])
        request.job_id = request.job_id or _number(match["raw"] or match["job"])
    return request


def _value(text: str) -> str:
    return _readable(text[:_MAX_VALUE])[:_MAX_VALUE]


def _readable(text: str) -> str:
    """An argument or variable of this process: a byte that is no character is shown as it is."""
    try:
        return readable_path(os.fsencode(text))
    except UnicodeEncodeError:
        # No process is passed such a text.
        return readable_text(text)


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 18:
        return None
    return min(int(text), MAX_JOB_ID)
