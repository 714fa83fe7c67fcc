"""When the kernel's process events are listened to: while there are jobs, and a little around them.

A job's first processes are at work as soon as its folders are there, so a prolog's word opens the
sockets before. A node without jobs would pay for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from jobsight.agent.collector import Collector

#: The next job often follows the last one, and its first moments are told to open sockets only.
LINGER: Final = 5_000_000_000
#: A prolog comes before the job; where others of its nodes take long, long before.
EXPECTED: Final = 60_000_000_000


class EventWindow:
    """Opens the event sockets, and closes them when they are of no use any more."""

    def __init__(self, collector: Collector, has_jobs: Callable[[], bool]) -> None:
        self._collector = collector
        self._has_jobs = has_jobs
        self._until = 0
        self._planned = False

    def open(self) -> None:
        """A job is here, or its first folders are."""
        self._collector.open_events()
        self._stay(LINGER)

    def expect(self) -> None:
        """A job is about to come."""
        self._collector.open_events()
        self._stay(EXPECTED)

    def job_gone(self) -> None:
        """A job has ended; it may have been the last."""
        self._stay(LINGER)

    def _stay(self, time_left: int) -> None:
        self._until = max(self._until, time.monotonic_ns() + time_left)
        self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._collector.at(self._until, self._close)

    def _close(self) -> None:
        self._planned = False
        if self._has_jobs():
            return
        if time.monotonic_ns() < self._until:
            self._plan()
        else:
            self._collector.close_events()
