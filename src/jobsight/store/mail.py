"""Who gets none of which mails, and what was and would have been sent."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("mail")
_DAY: Final = 86400 * 10**9
#: Rows of a list, and days for which the log is kept.
MAX_PAUSES: Final = 10_000
MAX_LOG: Final = 20_000
LOG_DAYS: Final = 400
#: Mails to a recipient that a mail server refused one after the other, before no more is sent.
MAX_REFUSED: Final = 3

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
        transaction.execute(_SQL["remove_ended_pauses"], {"now": pause.created})
        transaction.execute(_SQL["set_pause"], pause._asdict())


def resume_mail(database: Database, recipient: str, cause: str) -> bool:
    """Remove a pause, and forget what the mail server refused; whether there was a pause."""
    with database.write() as transaction:
        transaction.execute(_SQL["forget_refusals"], {"recipient": recipient})
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


def is_refused(database: Database, kind: str, recipient: str) -> bool:
    """Whether the mail server refused the last three mails of a kind to a recipient."""
    values = {"recipient": recipient, "kind": kind, "limit": MAX_REFUSED}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["last_outcomes"], values).fetchall()
    return len(rows) == MAX_REFUSED and all(outcome == "refused" for (outcome,) in rows)
