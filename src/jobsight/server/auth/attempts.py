"""Limits on failed sign-ins: of an account from one address, of an address, and of an account.

A single limit for an account would let anybody lock its owner out, so that of an account from all
addresses is high. The failures are counted in the store, so that several servers of one store have
one limit together.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final

from jobsight.model import SECOND
from jobsight.store.accounts.failures import (
    MAX_FAILURES,
    count_failure,
    failures_of,
    forget_failures,
)
from jobsight.store.database import Database

#: Seconds over which failures are counted.
WINDOW: Final = 900
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

    def wait(self, account: str, address: str) -> int:
        """Seconds until another attempt is accepted; 0 for now."""
        now = self._clock()
        ends = [
            found.ends
            for key, limit in self._limits(account, address)
            if (found := failures_of(self._database, key)).ends > now and found.failures >= limit
        ]
        return (max(ends) - now) // SECOND + 1 if ends else 0

    def fail(self, account: str, address: str) -> None:
        """Count a failed attempt."""
        keys = [key for key, _ in self._limits(account, address)]
        count_failure(self._database, keys, self._clock(), WINDOW * SECOND, self._most)

    def succeed(self, account: str, address: str) -> None:
        """Forget the failures of this account from this address."""
        forget_failures(self._database, self._digest(account, address))

    def _limits(self, account: str, address: str) -> list[tuple[bytes, int]]:
        return [
            (self._digest(account, address), self._max),
            (self._digest("", address), self._max * _ADDRESS_FACTOR),
            (self._digest(account, ""), self._max * _ACCOUNT_FACTOR),
        ]

    def _digest(self, account: str, address: str) -> bytes:
        # With its length, so that no two pairs are the same bytes.
        data = account.encode("utf-8", "surrogatepass")
        text = b"%d:%s%s" % (len(data), data, address.encode("utf-8", "surrogatepass"))
        return hashlib.blake2b(text, key=self._key, digest_size=16).digest()
