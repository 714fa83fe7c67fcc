"""Limits on failed sign-ins: of an account from one address, of an address, and of an account.

A single limit for an account would let anybody lock its owner out, so that of an account from all
addresses is high. Only the memory of this process is used, and little of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Seconds over which failures are counted.
WINDOW: Final = 900.0
#: How many times the limit of an account from one address an address may fail for all accounts,
#: and an account from all addresses.
_ADDRESS_FACTOR: Final = 6
_ACCOUNT_FACTOR: Final = 20
#: Counters in memory; the oldest are dropped.
_MAX_COUNTERS: Final = 20_000


class Attempts:
    """Counts failed sign-ins."""

    def __init__(self, max_failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max = max_failures
        self._clock = clock
        #: Key -> (end of the window, failures), the oldest window first.
        self._counters: dict[tuple[str, str], tuple[float, int]] = {}

    def wait(self, account: str, address: str) -> int:
        """Seconds until another attempt is accepted; 0 for now."""
        now = self._clock()
        ends = [
            self._counters[key][0]
            for key, limit in self._limits(account, address)
            if key in self._counters
            and self._counters[key][0] > now
            and self._counters[key][1] >= limit
        ]
        return int(max(ends) - now) + 1 if ends else 0

    def fail(self, account: str, address: str) -> None:
        """Count a failed attempt."""
        now = self._clock()
        for key, _ in self._limits(account, address):
            end, count = self._counters.pop(key, (0.0, 0))
            if end <= now:
                end, count = now + WINDOW, 0
            self._counters[key] = (end, count + 1)
        while len(self._counters) > _MAX_COUNTERS:
            del self._counters[next(iter(self._counters))]

    def succeed(self, account: str, address: str) -> None:
        """Forget the failures of this account from this address."""
        self._counters.pop((account, address), None)

    def _limits(self, account: str, address: str) -> list[tuple[tuple[str, str], int]]:
        return [
            ((account, address), self._max),
            (("", address), self._max * _ADDRESS_FACTOR),
            ((account, ""), self._max * _ACCOUNT_FACTOR),
        ]
