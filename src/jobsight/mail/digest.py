"""Digests: what the runs of a user, or of an account for its coordinators, held and used in the
last week or month, as a mail.

:func:`plan_digests` says who gets one and who does not, and why. :class:`DigestSchedule` queues
those of a period once, on the first working day after its end. A request has a name that depends
only on recipient and period, so that a repeated call does not add it twice.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from jobsight.config.settings import MailSettings
from jobsight.mail.message import recipient
from jobsight.mail.queue import MailQueue
from jobsight.mail.request import MailKind, MailRequest, is_address
from jobsight.mail.subscriptions import is_paused
from jobsight.mail.working_days import is_working_day, next_working_day
from jobsight.reports.subject import SubjectReport
from jobsight.store.accounts.coordinators import coordinators_of
from jobsight.store.checkpoints import read_checkpoint, set_checkpoint
from jobsight.store.findings.shown import was_shown
from jobsight.store.mail import REFUSED, log_mail, paused_causes, prune_mail_log
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import Question, UsageRow, date_of, day_of, number_of, usage
from jobsight.store.store import Store

logger = logging.getLogger(__name__)

Frequency: TypeAlias = Literal["weekly", "monthly"]
DigestKind: TypeAlias = Literal["digest", "account-digest"]

#: Users and accounts that get a digest, those with the most core hours first.
MAX_DIGESTS: Final = 5_000
_CHECKPOINT: Final = "mail.digest"
#: What the digest of an account says in place of a finding that its user has not seen.
UNSEEN: Final = "The user has not been shown it yet."


class DigestPeriod(NamedTuple):
    """The days of a digest, as numbers since 1970 in UTC: the first and the one after the last."""

    since: int
    until: int

    def __str__(self) -> str:
        return f"{date_of(self.since)} to {date_of(self.until - 1)}"


class PlannedDigest(NamedTuple):
    """A digest that is sent, or why it is not."""

    kind: DigestKind
    #: The recipient, and the user or account that it is about.
    to: str
    subject: str
    usage: UsageRow | None = None
    #: Empty if it is sent.
    skipped: str = ""


def last_period(frequency: Frequency, now: int) -> DigestPeriod:
    """The last complete week, from Monday to Sunday, or month."""
    today = date_of(day_of(now))
    if frequency == "weekly":
        end = today - timedelta(days=today.weekday())
        return DigestPeriod(number_of(end - timedelta(days=7)), number_of(end))
    end = today.replace(day=1)
    return DigestPeriod(number_of((end - timedelta(days=1)).replace(day=1)), number_of(end))


def next_period(frequency: Frequency, now: int) -> DigestPeriod:
    """The week or month that is not complete yet."""
    end = last_period(frequency, now).until
    following = date_of(end) + timedelta(days=7)
    if frequency == "monthly":
        following = (date_of(end) + timedelta(days=32)).replace(day=1)
    return DigestPeriod(end, number_of(following))


def plan_digests(
    store: Store, settings: MailSettings, kind: DigestKind, period: DigestPeriod, now: int
) -> list[PlannedDigest]:
    """The digests of a period, with those that are not sent and why."""
    by = "user" if kind == "digest" else "account"
    with store.database.read() as connection:
        rows = usage(connection, Question(by=(by,), since=period.since, until=period.until))
    planned: list[PlannedDigest] = []
    for row in rows[:MAX_DIGESTS]:
        name = (row.user if kind == "digest" else row.account) or ""
        if not name:
            continue
        to = [name] if kind == "digest" else _account_recipients(store, settings, name)
        planned += (PlannedDigest(kind, each, name, row) for each in to)
    return [
        each._replace(skipped=_reason(store, settings, kind, each.to, now))
        for each in planned[:MAX_DIGESTS]
    ]


def _account_recipients(store: Store, settings: MailSettings, account: str) -> list[str]:
    """The coordinators of an account, by the last scrape of Slurm, and those of the settings."""
    coordinators = {
        each.user for each in coordinators_of(store.database, account) if each.until is None
    }
    return sorted({*coordinators, *settings.account_recipients.get(account, [])})


def _reason(store: Store, settings: MailSettings, kind: MailKind, name: str, now: int) -> str:
    """Why a recipient gets no digest; empty if it does."""
    to = recipient(settings, name)
    if not is_address(to):
        return "the name is not an address"
    causes = paused_causes(store.database, to.lower(), now)
    if REFUSED in causes:
        return "the mail server refused the recipient"
    return "paused" if is_paused(causes, kind) else ""


def digest_request(planned: PlannedDigest, period: DigestPeriod) -> MailRequest:
    """The request of one digest."""
    about = (planned.subject, period.since, period.until)
    if planned.kind == "digest":
        return MailRequest(
            to=planned.to,
            subject=f"Your jobs, {period}",
            created=period.until * DAY,
            digest=about,
        )
    return MailRequest(
        to=planned.to,
        subject=f"Jobs of account {planned.subject[:100]}, {period}",
        created=period.until * DAY,
        account_digest=about,
    )


def queue_digests(queue: MailQueue, planned: Iterable[PlannedDigest], period: DigestPeriod) -> int:
    """Queue the digests of a period; returns how many."""
    wanted = [each for each in planned if not each.skipped]
    # All or none: of a part that was sent already, nothing would be known.
    queue.check_capacity(len(wanted))
    for each in wanted:
        key = f"{each.kind} {period} {each.to} {each.subject}"
        queue.put(digest_request(each, period), hashlib.sha256(key.encode()).hexdigest()[:12])
    return len(wanted)


def without_causes(report: SubjectReport, causes: Iterable[str]) -> SubjectReport:
    """The report without findings of kinds that the recipient has paused."""
    left_out = frozenset(causes)
    return msgspec.structs.replace(
        report, findings=[each for each in report.findings if each.kind not in left_out]
    )


def for_coordinators(store: Store, report: SubjectReport) -> SubjectReport:
    """The report of an account in which users are named only with what they have seen first."""
    findings = []
    for group in report.findings:
        if not was_shown(store.database, group.run, group.kind, group.user):
            group = msgspec.structs.replace(
                group, run="", display_id="", user="", text=UNSEEN, change=""
            )
        findings.append(group)
    return msgspec.structs.replace(report, findings=findings)


class DigestSchedule:
    """Queues the digests of a period once, on the first working day after its end. The first one is
    that of the period in which digests were turned on."""

    def __init__(
        self,
        store: Store,
        queue: MailQueue,
        settings: MailSettings,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._queue = queue
        self._settings = settings
        self._clock = clock

    def once(self) -> int:
        """Queue what is due; returns how many."""
        settings = self._settings
        return self._kind("digest", settings.digest) + self._kind(
            "account-digest", settings.account_digest
        )

    def _kind(self, kind: DigestKind, frequency: Literal["off", "weekly", "monthly"]) -> int:
        if frequency == "off":
            return 0
        now = self._clock()
        period = last_period(frequency, now)
        name = f"{_CHECKPOINT}.{frequency}" if kind == "digest" else f"mail.{kind}.{frequency}"
        with self._store.database.query() as transaction:
            done = read_checkpoint(transaction, name)
        if done is not None and done.value >= period.until:
            return 0
        queued = 0
        if done is not None:
            if not is_working_day(self._settings, date_of(day_of(now))):
                return 0
            queued = self._queue_period(kind, period, now)
        with self._store.database.write() as transaction:
            set_checkpoint(transaction, name, period.until)
        return queued

    def _queue_period(self, kind: DigestKind, period: DigestPeriod, now: int) -> int:
        settings, database = self._settings, self._store.database
        planned = plan_digests(self._store, settings, kind, period, now)
        queued = 0
        if not settings.digest_dry_run:
            queued = queue_digests(self._queue, planned, period)
        prune_mail_log(database, now)
        for each in planned:
            to = recipient(settings, each.to).lower()
            if each.skipped:
                log_mail(database, kind, to, "skipped", now=now, reason=each.skipped)
            elif settings.digest_dry_run:
                log_mail(database, kind, to, "would be sent", now=now, reason=str(period))
        what = f"{len(planned):,} of kind {kind}, {period}"
        if settings.digest_dry_run:
            logger.info("mail.digest_dry_run: no digests are sent; planned: %s", what)
        else:
            logger.info("mail: %d digests are queued; planned: %s", queued, what)
        return queued


def due_date(settings: MailSettings, period: DigestPeriod) -> date | None:
    """The first working day after a period."""
    return next_working_day(settings, date_of(period.until))
