"""The memory for decoded time series, which all readers of a process share.

A reader reserves what it decodes. One that meets the limit because of others gives back what it
has, waits until they are done, and begins again. No reader waits while it holds memory, so that
they cannot block each other. What a query returns stays reserved until the result is deleted.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from jobsight.errors import StoreError

_Result = TypeVar("_Result")

#: Seconds for which a reader waits for others.
TIMEOUT: Final = 10.0


class Crowded(StoreError):
    """Other readers use the memory."""

    def __init__(self, needed: int) -> None:
        super().__init__(
            "other queries use the memory for time series at present; try again in some seconds"
        )
        self.needed = needed


class Reservation:
    """The values that one reader has in memory."""

    def __init__(self, budget: ReadBudget, limit: int) -> None:
        self._budget = budget
        self._limit = limit
        self.values = 0

    def add(self, values: int) -> bool:
        """Reserve more; False if one reader alone would exceed the limit."""
        if self.values + values > self._limit:
            return False
        self._budget.take(values, self.values + values, self._limit)
        self.values += values
        return True

    def keep(self, result: object, values: int) -> None:
        """Keep some of the values reserved until the result is deleted."""
        values = min(values, self.values)
        self.values -= values
        weakref.finalize(result, self._budget.give_back, values).atexit = False


class ReadBudget:
    """Shares a number of values among the readers of a process; thread-safe."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._used = 0
        # A result may be deleted while this thread holds the lock.
        self._changed = threading.Condition(threading.RLock())

    def read(self, query: Callable[[Reservation], _Result], limit: int) -> _Result:
        """Run a query that reserves what it decodes; twice if other readers are in its way."""
        try:
            with self._reserving(limit) as reservation:
                return query(reservation)
        except Crowded as crowded:
            needed = crowded.needed
        with self._changed:
            self._changed.wait_for(lambda: self._used + needed <= limit, self._timeout)
        with self._reserving(limit) as reservation:
            return query(reservation)

    @contextmanager
    def _reserving(self, limit: int) -> Iterator[Reservation]:
        reservation = Reservation(self, limit)
        try:
            yield reservation
        finally:
            self.give_back(reservation.values)

    def take(self, values: int, needed: int, limit: int) -> None:
        with self._changed:
            if self._used + values > limit:
                raise Crowded(needed)
            self._used += values

    def give_back(self, values: int) -> None:
        with self._changed:
            self._used -= values
            self._changed.notify_all()

    @property
    def used(self) -> int:
        """The values that all readers have in memory."""
        return self._used
