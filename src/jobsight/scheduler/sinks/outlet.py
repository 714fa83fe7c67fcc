"""Feeds each sink in a thread of its own, again and again; one that is away is tried again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from jobsight.config.settings import SinksSettings
from jobsight.errors import JobsightError, StoreError
from jobsight.scheduler.sinks.base import Sink
from jobsight.scheduler.sinks.feed import feed, keep_mark, read_mark
from jobsight.store import Store

logger = logging.getLogger("jobsight.sinks")

#: Seconds between two attempts to reach a sink that is away: doubled up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
#: Seconds that a server waits at its end for a sink that is being fed.
_LAST_WAIT = 5.0


class SinkState(msgspec.Struct):
    """How a sink fares."""

    name: str
    #: When it was last fed whole.
    succeeded: float | None = None
    #: Why it could not be fed; empty where it could.
    reason: str = ""
    #: Documents written since the start.
    written: int = 0
    #: Documents that it refused for good.
    refused: int = 0


class Outlet:
    """One sink and its thread."""

    def __init__(
        self, store: Store, sink: Sink, every: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.state = SinkState(sink.name)
        self._store = store
        self._sink = sink
        self._every = every
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"jobsight-{sink.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(_LAST_WAIT)
        self._sink.close()

    def feed_once(self) -> bool:
        """Feed the sink; False, with the reason in the state, where it did not take all."""
        state = self.state
        try:
            state.written += feed(self._store, self._sink)
        except JobsightError as error:
            if state.reason != str(error):
                logger.warning("%s", error)
                self._say(str(error))
            state.reason = str(error)
            return False
        if state.reason or state.succeeded is None:
            self._say("")
        if state.reason:
            logger.warning("%s takes the jobs again", self._sink.name)
        state.reason, state.succeeded = "", self._clock()
        state.refused = len(getattr(self._sink, "refused", ()))
        return True

    def _say(self, reason: str) -> None:
        """Leave word in the store, where the health of all servers is read."""
        name = self._sink.name
        try:
            keep_mark(self._store, name, read_mark(self._store, name), reason)
        except StoreError as error:
            logger.warning("%s", error)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                fed = self.feed_once()
            except Exception:
                # A fault of ours must not end the feeding, nor the server.
                logger.exception("feeding %s ended by a fault", self._sink.name)
                self.state.reason = "a fault of jobsight, which its log shows"
                fed = False
            pause = _FIRST_PAUSE if fed else min(pause * 2, _LONGEST_PAUSE)
            self._stopped.wait(self._every if fed else pause)


def open_sinks(settings: SinksSettings) -> list[Sink]:
    """The sinks that have an address; the libraries of the others are not needed."""
    found: list[Sink] = []
    if settings.mongodb.url:
        from jobsight.scheduler.sinks.mongodb import MongoSink

        found.append(MongoSink(settings.mongodb.url, settings.mongodb.database))
    if settings.opensearch.url:
        from jobsight.scheduler.sinks.opensearch import OpenSearchSink

        opensearch = settings.opensearch
        found.append(
            OpenSearchSink(
                opensearch.url or "",
                prefix=opensearch.prefix,
                user=opensearch.user,
                password_file=opensearch.password_file,
                ca_file=opensearch.ca_file,
            )
        )
    return found


@contextmanager
def feeding(store: Store, settings: SinksSettings) -> Iterator[Sequence[Outlet]]:
    """Feed the sinks beside what the block does."""
    outlets = [Outlet(store, sink, settings.every) for sink in open_sinks(settings)]
    for outlet in outlets:
        outlet.start()
    try:
        yield outlets
    finally:
        for outlet in outlets:
            outlet.stop()
