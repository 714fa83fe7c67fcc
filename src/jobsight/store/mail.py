"""Who gets none of which mails, and what was and would have been sent."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction

_SQL: Final = load_statements("mail")
_DAY: Final = 86400 * 10**9
#: Rows of a list, and days for which the log is kept.
MAX_PAUSES: Final = 10_000
MAX_LOG: Final = 20_000
LOG_DAYS: Final = 400
#: The cause of the pause of an address that a mail server refused for good, and its duration: the
#: first, the factor of the next within a time in which the last is remembered, and the longest.
REFUSED: Final = "refused"
_FIRST_REFUSAL: Final = 3600 * 10**9
_REFUSAL_FACTOR: Final = 4
_LONGEST_REFUSAL: Final = 32 * _DAY
_REMEMBERED: Final = 32 * _DAY

Outcome: TypeAlias = Literal["sent", "refused", "would be sent", "skipped"]


class Pause(NamedTuple):
    """What a recipient does not get: a kind of mails, or findings of a kind in digests."""

    #: An address; empty is everybody.
    recipient: str
    cause: str
    #: Nanoseconds since 1970; None is for good.
    until: int | None
    reason: str
    created: int


class LoggedMail(NamedTuple):
    """What became of mails of one kind on one day."""

    day: int
    kind: str
    #: Empty for mails about jobs, which are only counted.
    recipient: str
    outcome: Outcome
    reason: str
    mails: int
    last: int


def pause_mail(database: Database, pause: Pause) -> None:
    with database.write() as transaction:
        _remove_ended(transaction, pause.created)
        transaction.execute(_SQL["set_pause"], pause._asdict())


def refuse_recipient(database: Database, recipient: str, reason: str, now: int) -> Pause:
    """Pause an address that a mail server refused for good; returns the pause.

    A pause that has not ended is not extended: mails that were under way come back together.
    """
    with database.write() as transaction:
        _remove_ended(transaction, now)
        values = {"recipient": recipient, "cause": REFUSED}
        row = transaction.execute(_SQL["find_pause"], values).fetchone()
        duration = _FIRST_REFUSAL
        if row is not None:
            last = Pause(*row)
            if last.until is None or last.until > now:
                return last
            duration = min((last.until - last.created) * _REFUSAL_FACTOR, _LONGEST_REFUSAL)
        pause = Pause(recipient, REFUSED, now + duration, reason[:300], now)
        transaction.execute(_SQL["set_pause"], pause._asdict())
    return pause


def _remove_ended(transaction: Transaction, now: int) -> None:
    """The last refusal is remembered for some time: the next pause is longer."""
    values = {"now": now, "refused": REFUSED, "remembered": now - _REMEMBERED}
    transaction.execute(_SQL["remove_ended_pauses"], values)


def resume_mail(database: Database, recipient: str, cause: str) -> bool:
    """Remove a pause; whether there was one."""
    with database.write() as transaction:
        values = {"recipient": recipient, "cause": cause}
        return bool(transaction.execute(_SQL["remove_pause"], values).rowcount)


def list_pauses(database: Database, now: int) -> list[Pause]:
    """The pauses that have not ended."""
    with database.query() as transaction:
        values = {"now": now, "limit": MAX_PAUSES}
        rows = transaction.execute(_SQL["list_pauses"], values).fetchall()
    return [Pause(*row) for row in rows]


def paused_causes(database: Database, recipient: str, now: int) -> frozenset[str]:
    """What a recipient does not get at this time."""
    with database.query() as transaction:
        values = {"recipient": recipient, "now": now}
        rows = transaction.execute(_SQL["pauses_of"], values).fetchall()
    return frozenset(cause for (cause,) in rows)


def log_mail(
    database: Database,
    kind: str,
    recipient: str,
    outcome: Outcome,
    *,
    now: int,
    reason: str = "",
    mails: int = 1,
) -> None:
    """Count mails of a kind on the day of ``now``."""
    values = {
        "day": now // _DAY,
        "kind": kind,
        "recipient": recipient,
        "outcome": outcome,
        "reason": reason[:300],
        "mails": mails,
        "last": now,
    }
    with database.write() as transaction:
        transaction.execute(_SQL["add_to_log"], values)


def prune_mail_log(database: Database, now: int) -> None:
    with database.write() as transaction:
        transaction.execute(_SQL["prune_log"], {"before": now // _DAY - LOG_DAYS})


def read_mail_log(database: Database, since: int) -> list[LoggedMail]:
    """The log since a day, the latest first."""
    with database.query() as transaction:
        values = {"since": since, "limit": MAX_LOG}
        rows = transaction.execute(_SQL["read_log"], values).fetchall()
    return [LoggedMail(*row) for row in rows]
