"""Background threads that start and stop with a block of code."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from jobsight.errors import JobsightError
from jobsight.util.backoff import Backoff
from jobsight.util.log_once import LogOnce

#: Seconds that stop() waits for the work in progress.
STOP_TIMEOUT = 5.0
#: The reason after an exception that is not a JobsightError.
INTERNAL_ERROR = "internal error, see the log"


class Reporting(Protocol):
    """Background work with a health."""

    name: str

    @property
    def reason(self) -> str:
        """Why it fails; empty if it does not."""
        ...


_running: weakref.WeakSet[Reporting] = weakref.WeakSet()


def worker_reasons() -> dict[str, str]:
    """Why each running worker of this process fails; empty if it does not."""
    return {worker.name: worker.reason for worker in sorted(_running, key=lambda each: each.name)}


def add_to_health(worker: Reporting) -> None:
    """Report a worker that is not a :class:`PeriodicWorker` until it is removed."""
    _running.add(worker)


def remove_from_health(worker: Reporting) -> None:
    _running.discard(worker)


class PeriodicWorker:
    """Calls ``work`` in a thread, ``interval`` seconds after its last return, until stopped.

    A failure ends neither the thread nor the program. A :class:`JobsightError` is logged once
    until its text changes, with ``failure`` ("the archive is not written") before it; any other
    exception is a bug and logged with its traceback each time. With a :class:`Backoff` the delay
    grows while the work fails. ``work`` gets an event that is set when it should return early.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[threading.Event], object],
        interval: float,
        *,
        logger: logging.Logger,
        failure: str,
        first_delay: float = 0.0,
        backoff: Backoff | None = None,
        stop_timeout: float = STOP_TIMEOUT,
    ) -> None:
        self.name = name
        #: Why the last call failed; empty after a success.
        self.reason = ""
        self.stopped = threading.Event()
        self._work = work
        self._interval = interval
        self._logger = logger
        self._failure = failure
        self._first_delay = first_delay
        self._backoff = backoff
        self._stop_timeout = stop_timeout
        self._log = LogOnce(logger)
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"jobsight-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()
        add_to_health(self)

    def wake(self) -> None:
        """Work now instead of at the end of the interval; a backoff is not shortened."""
        self._woken.set()

    def stop(self) -> None:
        """Stop after the call in progress, and wait for it up to the stop timeout."""
        remove_from_health(self)
        self.stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(self._stop_timeout)

    def __enter__(self) -> PeriodicWorker:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def run_once(self) -> bool:
        """One call of the work, with its failure handled; True if it succeeded."""
        try:
            self._work(self.stopped)
        except JobsightError as error:
            self.reason = str(error)
            self._log.report(self.name, f"{self._failure}: {error}")
            return False
        except Exception:
            self.reason = INTERNAL_ERROR
            self._logger.exception("%s: internal error", self._failure)
            return False
        self.reason = ""
        self._log.resolve(self.name, f"{self.name}: recovered")
        return True

    def _run(self) -> None:
        self.stopped.wait(self._first_delay)
        while True:
            # In this order: a stop between the two lines is not missed.
            self._woken.clear()
            if self.stopped.is_set():
                return
            succeeded = self.run_once()
            if self._backoff is None or succeeded:
                if self._backoff is not None:
                    self._backoff.reset()
                self._woken.wait(self._interval)
            else:
                self.stopped.wait(self._backoff.fail())


@contextmanager
def in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread during the block. At the end of the block its event is set."""
    stopped = threading.Event()
    thread = threading.Thread(target=work, args=(stopped,), name=f"jobsight-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(STOP_TIMEOUT)
