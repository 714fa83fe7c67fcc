"""Failed sign-ins, which all servers of a store count together.

A row is a window of time with the failures in it. An attempt is counted before it is verified, in
the transaction that compares the limits: otherwise many attempts at the same time would all be
verified before one of them counts. Its key is a digest with a secret key of the
server, so that the table names neither users nor addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from jobsight.store.accounts.accounts import SQL
from jobsight.store.database import Database
from jobsight.store.transaction import Transaction

#: Rows that are kept; of more, those whose window ends first are removed.
MAX_FAILURES: Final = 20_000


class Limit(NamedTuple):
    """How many failures there may be under a key."""

    key: bytes
    failures: int


def limits_end(database: Database, limits: Iterable[Limit], now: int) -> int:
    """When the last window ends whose limit is reached; 0 if none is."""
    with database.query() as transaction:
        return _limits_end(transaction, limits, now)


def count_attempt(
    database: Database, limits: Sequence[Limit], now: int, window: int, most: int = MAX_FAILURES
) -> int:
    """Count a failure under each key, in the window that has begun or in a new one. If a limit is
    reached, nothing is counted; returns when the last window of these ends, otherwise 0."""
    with database.write() as transaction:
        # Deleting and adding in another order than a second server would wait for each other.
        transaction.lock("sign-in", {"failures"})
        ends = _limits_end(transaction, limits, now)
        if ends:
            return ends
        transaction.execute(SQL["delete_ended_failures"], {"now": now})
        for key, _ in limits:
            values = {"key": key, "ends": now + window}
            transaction.execute(SQL["count_failure"], values)
        [surplus] = transaction.execute(SQL["surplus_failures"], {"most": most}).fetchone()
        if surplus > 0:
            transaction.execute(SQL["delete_first_failures"], {"surplus": surplus})
    return 0


def take_back(database: Database, keys: Iterable[bytes], forgotten: Iterable[bytes] = ()) -> None:
    """Take back one failure under each key, and all under those that are forgotten."""
    with database.write() as transaction:
        transaction.lock("sign-in", {"failures"})
        for key in keys:
            transaction.execute(SQL["take_back_failure"], {"key": key})
        for key in forgotten:
            transaction.execute(SQL["forget_failures"], {"key": key})
        transaction.execute(SQL["delete_no_failures"])


def _limits_end(transaction: Transaction, limits: Iterable[Limit], now: int) -> int:
    reached = 0
    for key, limit in limits:
        row = transaction.execute(SQL["failures_of"], {"key": key}).fetchone()
        if row is not None and row[0] > now and row[1] >= limit:
            reached = max(reached, row[0])
    return reached
