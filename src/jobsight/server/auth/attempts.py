"""Limits on failed sign-ins: of an account from one address, of an address, and of an account.

A single limit for an account would let anybody lock its owner out, so that of an account from all
addresses is high. An attempt counts as failed from its beginning and is taken back when it
succeeds. The failures are counted in the store, so that several servers of one store have one limit
together.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final

from jobsight.model import SECOND
from jobsight.store.accounts.failures import (
    MAX_FAILURES,
    Limit,
    count_attempt,
    limits_end,
    take_back,
)
from jobsight.store.database import Database

#: Seconds over which failures are counted.
WINDOW: Final = 900
#: In place of an account: the server's token. No name of an account has a NUL.
SERVER_TOKEN: Final = "\0token"
#: How many times the limit of an account from one address an address may fail for all accounts,
#: and an account from all addresses.
_ADDRESS_FACTOR: Final = 6
_ACCOUNT_FACTOR: Final = 20


class Attempts:
    """Counts failed sign-ins. ``key`` is the secret of the digests in the store."""

    def __init__(
        self,
        database: Database,
        max_failures: int,
        *,
        key: bytes,
        clock: Callable[[], int] = time.time_ns,
        most: int = MAX_FAILURES,
    ) -> None:
        self._database = database
        self._max = max_failures
        self._key = hashlib.blake2b(key).digest()
        self._clock = clock
        self._most = most

    def begin(self, account: str, address: str) -> int:
        """Count an attempt as failed; if there were too many, the seconds until another is
        accepted, otherwise 0."""
        now, limits = self._clock(), self._limits(account, address)
        # Whoever is locked out does not keep the store busy with writing.
        ends = limits_end(self._database, limits, now) or count_attempt(
            self._database, limits, now, WINDOW * SECOND, self._most
        )
        return (ends - now) // SECOND + 1 if ends else 0

    def withdraw(self, account: str, address: str) -> None:
        """Take back an attempt that could not be verified."""
        take_back(self._database, [limit.key for limit in self._limits(account, address)])

    def succeed(self, account: str, address: str) -> None:
        """Take back an attempt, and forget the failures of this account from this address."""
        own, *others = (limit.key for limit in self._limits(account, address))
        take_back(self._database, others, forgotten=[own])

    def _limits(self, account: str, address: str) -> list[Limit]:
        limits = [
            Limit(self._digest(account, address), self._max),
            Limit(self._digest("", address), self._max * _ADDRESS_FACTOR),
        ]
        if account != SERVER_TOKEN:
            # Nobody finds the token by trying, and nobody may lock the administrator out.
            limits.append(Limit(self._digest(account, ""), self._max * _ACCOUNT_FACTOR))
        return limits

    def _digest(self, account: str, address: str) -> bytes:
        # With its length, so that no two pairs are the same bytes.
        data = account.encode("utf-8", "surrogatepass")
        text = b"%d:%s%s" % (len(data), data, address.encode("utf-8", "surrogatepass"))
        return hashlib.blake2b(text, key=self._key, digest_size=16).digest()
