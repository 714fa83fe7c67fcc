"""The threads that write what agents have sent: what waits together is written together.

SQLite has one writer, so there one thread takes all batches that wait: they share a transaction,
and threads that would only take turns cost more than some of the work. PostgreSQL has many.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


class Writers(Generic[_Item, _Outcome]):
    """Hands items to threads, from the event loop of whoever asks."""

    def __init__(
        self,
        write: Callable[[Sequence[_Item]], Sequence[_Outcome | Exception]],
        *,
        threads: int,
        together: int,
    ) -> None:
        """``write`` gets up to ``together`` items at once and gives an outcome for each."""
        self._write = write
        self._together = together
        # Threads of their own: while the store is held by another, pages are still served.
        self._threads = ThreadPoolExecutor(threads, "jobsight-batches")
        self._lock = threading.Lock()
        self._idle = threads
        self._waiting: list[tuple[_Item, asyncio.Future[_Outcome]]] = []

    def submit(self, item: _Item) -> asyncio.Future[_Outcome]:
        """What becomes of an item, in the future."""
        future: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append((item, future))
            starts = self._idle > 0
            self._idle -= starts
        if starts:
            self._threads.submit(self._work)
        return future

    def _work(self) -> None:
        while some := self._take():
            futures = [future for _, future in some]
            try:
                outcomes = self._write([item for item, _ in some])
            except Exception as error:
                outcomes = [error] * len(some)
            # What was sent must not be held until the next is here.
            del some
            answers = list(zip(futures, outcomes, strict=True))
            for loop in {future.get_loop() for future in futures}:
                own = [answer for answer in answers if answer[0].get_loop() is loop]
                try:
                    loop.call_soon_threadsafe(_settle, own)
                except RuntimeError:
                    # The loop has ended, and with it all who might have heard the answer.
                    continue

    def _take(self) -> list[tuple[_Item, asyncio.Future[_Outcome]]]:
        with self._lock:
            some = self._waiting[: self._together]
            del self._waiting[: self._together]
            if not some:
                self._idle += 1
            return some


def _settle(
    answers: Sequence[tuple[asyncio.Future[_Outcome], _Outcome | Exception]],
) -> None:
    for future, outcome in answers:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
