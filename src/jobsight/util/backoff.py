"""Delays between attempts: doubled after each failure up to a limit, with jitter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def random_fraction() -> float:
    """A random number from 0 to 1. The module ``random`` would cost the agent memory."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


class Backoff:
    """Counts failures and computes the delay after each.

    The n-th delay is ``first * 2**(n - 1)``, at most ``most``, lengthened by a random share of up
    to ``jitter``: the agents of a cluster must not retry at the same moment.
    """

    def __init__(
        self,
        first: float,
        most: float,
        jitter: float = 0.25,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random_fraction,
    ) -> None:
        self.failures = 0
        self._first = first
        self._most = most
        self._jitter = jitter
        self._clock = clock
        self._random = random
        self._until = 0.0

    def fail(self) -> float:
        """Record a failure; returns the seconds to wait before the next attempt."""
        # The exponent is bounded: 2.0**1024 does not fit a float.
        delay = min(self._first * 2.0 ** min(self.failures, 64), self._most)
        delay *= 1 + self._jitter * self._random()
        self.failures += 1
        self._until = self._clock() + delay
        return delay

    def reset(self) -> None:
        """Record a success."""
        self.failures = 0
        self._until = 0.0

    @property
    def ready(self) -> bool:
        """Whether the delay of the last failure has passed."""
        return not self.failures or self._clock() >= self._until
