"""Failed sign-ins, which all servers of a store count together.

A row is a window of time with the failures in it. Its key is a digest with a secret key of the
server, so that the table names neither users nor addresses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from jobsight.store.accounts.accounts import SQL
from jobsight.store.database import Database

#: Rows that are kept; of more, those whose window ends first are removed.
MAX_FAILURES: Final = 20_000


class Failures(NamedTuple):
    """The failures of a window, and when it ends."""

    ends: int
    failures: int


NONE: Final = Failures(0, 0)


def failures_of(database: Database, key: bytes) -> Failures:
    """The failures under a key; the window may have ended."""
    with database.query() as transaction:
        row = transaction.execute(SQL["failures_of"], {"key": key}).fetchone()
    return NONE if row is None else Failures(*row)


def count_failure(
    database: Database, keys: Iterable[bytes], now: int, window: int, most: int = MAX_FAILURES
) -> None:
    """Count a failure under each key, in the window that has begun or in a new one."""
    with database.write() as transaction:
        # Deleting and adding in another order than a second server would wait for each other.
        transaction.lock("sign-in", {"failures"})
        transaction.execute(SQL["delete_ended_failures"], {"now": now})
        for key in keys:
            values = {"key": key, "ends": now + window}
            transaction.execute(SQL["count_failure"], values)
        [surplus] = transaction.execute(SQL["surplus_failures"], {"most": most}).fetchone()
        if surplus > 0:
            transaction.execute(SQL["delete_first_failures"], {"surplus": surplus})


def forget_failures(database: Database, key: bytes) -> None:
    """Remove what is counted under a key."""
    if failures_of(database, key) is NONE:
        return
    with database.write() as transaction:
        transaction.execute(SQL["forget_failures"], {"key": key})
