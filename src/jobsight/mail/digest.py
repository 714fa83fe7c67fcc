"""Digests: what the runs of a user held and used in the last week or month, as a mail.

:func:`queue_digests` adds one request for each user to the queue. A request has a name that depends
only on user and period, so that a repeated call does not add it twice.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from jobsight.config.settings import MailSettings
from jobsight.mail.queue import MailQueue
from jobsight.mail.request import MailRequest, is_address
from jobsight.store.checkpoints import read_checkpoint, set_checkpoint
from jobsight.store.rollups.shares import DAY
from jobsight.store.rollups.usage import Question, UsageRow, date_of, day_of, number_of, usage
from jobsight.store.store import Store

logger = logging.getLogger(__name__)

Frequency: TypeAlias = Literal["weekly", "monthly"]

#: Users who get a digest, those with the most core hours first.
MAX_DIGESTS: Final = 5_000
_CHECKPOINT: Final = "mail.digest"


class DigestPeriod(NamedTuple):
    """The days of a digest, as numbers since 1970 in UTC: the first and the one after the last."""

    since: int
    until: int

    def __str__(self) -> str:
        return f"{date_of(self.since)} to {date_of(self.until - 1)}"


def last_period(frequency: Frequency, now: int) -> DigestPeriod:
    """The last complete week, from Monday to Sunday, or month."""
    today = date_of(day_of(now))
    if frequency == "weekly":
        end = today - timedelta(days=today.weekday())
        return DigestPeriod(number_of(end - timedelta(days=7)), number_of(end))
    end = today.replace(day=1)
    return DigestPeriod(number_of((end - timedelta(days=1)).replace(day=1)), number_of(end))


def digest_users(store: Store, period: DigestPeriod) -> list[UsageRow]:
    """The users who get a digest, with their usage."""
    with store.database.read() as connection:
        rows = usage(connection, Question(by=("user",), since=period.since, until=period.until))
    return [row for row in rows if row.user and is_address(row.user)][:MAX_DIGESTS]


def digest_request(user: str, period: DigestPeriod) -> MailRequest:
    """The request of one digest."""
    return MailRequest(
        to=user,
        subject=f"Your jobs, {period}",
        created=period.until * DAY,
        digest=(user, period.since, period.until),
    )


def queue_digests(store: Store, queue: MailQueue, period: DigestPeriod) -> int:
    """Queue the digests of a period; returns how many."""
    users = [row.user for row in digest_users(store, period) if row.user]
    # All or none: of a part that was sent already, nothing would be known.
    queue.check_capacity(len(users))
    for user in users:
        token = hashlib.sha256(f"{period} {user}".encode()).hexdigest()[:12]
        queue.put(digest_request(user, period), token)
    return len(users)


class DigestSchedule:
    """Queues the digests of a period once, after its end. The first one is that of the period in
    which digests were turned on."""

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
        frequency = self._settings.digest
        if frequency == "off":
            return 0
        period = last_period(frequency, self._clock())
        name = f"{_CHECKPOINT}.{frequency}"
        with self._store.database.query() as transaction:
            done = read_checkpoint(transaction, name)
        if done is not None and done.value >= period.until:
            return 0
        queued = 0
        if done is not None and self._settings.digest_dry_run:
            count = len(digest_users(self._store, period))
            logger.info("mail.digest_dry_run: %d digests of %s are not sent", count, period)
        elif done is not None:
            queued = queue_digests(self._store, self._queue, period)
            logger.info("mail: %d digests of %s are queued", queued, period)
        with self._store.database.write() as transaction:
            set_checkpoint(transaction, name, period.until)
        return queued
