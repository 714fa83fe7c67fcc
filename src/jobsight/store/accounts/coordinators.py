"""Who coordinated which account of the scheduler, and when, by what each scrape found."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec

from jobsight.store.accounts.accounts import SQL
from jobsight.store.checkpoints import read_checkpoint, set_checkpoint
from jobsight.store.database import Database


class Coordination(msgspec.Struct, kw_only=True, frozen=True):
    """A user coordinated an account for an interval."""

    cluster: str
    account: str
    user: str
    since: int
    #: None until now.
    until: int | None


def record_coordinators(
    database: Database, cluster: str, found: Iterable[tuple[str, str]], now: int | None = None
) -> int:
    """Begin and end intervals by the pairs of account and user that a scrape found; returns how
    many changed.

    The first scrape of a cluster reads runs of the past as well, and nothing says who coordinated
    their accounts then. Its coordinators count from the beginning.
    """
    wanted = set(found)
    with database.write() as transaction:
        key = {"cluster": cluster}
        known = {
            tuple(row) for row in transaction.execute(SQL["open_coordinators"], key).fetchall()
        }
        moment = time.time_ns() if now is None else now
        checkpoint = f"coordinators {cluster}"
        first = read_checkpoint(transaction, checkpoint) is None
        set_checkpoint(transaction, checkpoint, moment)
        for account, user in sorted(wanted - known):
            values = key | {"account": account, "user": user, "now": 0 if first else moment}
            transaction.execute(SQL["begin_coordinator"], values)
        for account, user in sorted(known - wanted):
            values = key | {"account": account, "user": user, "now": moment}
            transaction.execute(SQL["end_coordinator"], values)
    return len(wanted ^ known)


def coordinated_by(database: Database, user: str) -> list[Coordination]:
    """The accounts that a user coordinates or coordinated."""
    return _read(database, "coordinated_by", {"user": user})


def coordinators_of(database: Database, account: str) -> list[Coordination]:
    """Who coordinates or coordinated an account."""
    return _read(database, "coordinators_of", {"account": account})


def _read(database: Database, query: str, values: dict[str, Any]) -> list[Coordination]:
    with database.query() as transaction:
        rows = transaction.mappings(SQL[query], values)
    return [Coordination(**row) for row in rows]
