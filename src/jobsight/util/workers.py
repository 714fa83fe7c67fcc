"""Background threads that start and stop with a block of code."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

import msgspec

from jobsight.errors import JobsightError
from jobsight.util.backoff import Backoff
from jobsight.util.log_once import LogOnce
from jobsight.util.signals import signals_blocked
from jobsight.util.units import format_duration

#: Seconds that stop() waits for the work in progress.
STOP_TIMEOUT = 5.0
#: The reason after an exception that is not a JobsightError.
INTERNAL_ERROR = "internal error, see the log"


#: Seconds that one call of a worker may take before the worker is overdue, unless it says more.
TIME_LIMIT = 3600.0
#: Seconds that a worker may begin later than planned: a loaded machine is no fault of it.
_LATE = 60.0

#: ``waiting`` and ``working`` are healthy. ``failing``: the last call failed. ``overdue``: the call
#: in progress takes longer than expected, or the next one has not begun. ``ended``: the thread is
#: gone, and nothing will be done until the server is started again.
State = Literal["waiting", "working", "failing", "overdue", "ended"]


class WorkerState(msgspec.Struct, frozen=True):
    """The state of one background worker. Times are nanoseconds since 1970."""

    name: str
    state: State
    #: Why it is not healthy; empty if it is.
    reason: str
    started: int | None = None
    #: When a call last succeeded, and when one last failed and why, also after later successes.
    succeeded: int | None = None
    failed: int | None = None
    error: str = ""
    #: When the next call begins; None while one is in progress, or if nothing is planned.
    next_run: int | None = None
    #: Calls since the start, and how many of them failed.
    calls: int = 0
    failures: int = 0

    @property
    def healthy(self) -> bool:
        return not self.reason


class Reporting(Protocol):
    """Background work with a health."""

    name: str

    def status(self) -> WorkerState: ...


_lock = threading.Lock()
# Strong references: a worker whose thread has ended must not disappear from the health.
_running: dict[int, Reporting] = {}


def worker_states() -> list[WorkerState]:
    """The workers of this process that were started and not stopped, by name."""
    with _lock:
        workers = list(_running.values())
    return sorted((worker.status() for worker in workers), key=lambda each: each.name)


def add_to_health(worker: Reporting) -> None:
    """Report a worker that is not a :class:`PeriodicWorker` until it is removed."""
    with _lock:
        _running[id(worker)] = worker


def remove_from_health(worker: Reporting) -> None:
    with _lock:
        _running.pop(id(worker), None)


class Progress:
    """What a worker did so far: when calls began, succeeded and failed.

    Times are measured by the monotonic clock, so that a step of the wall clock neither makes a
    worker overdue nor hides that it is.
    """

    def __init__(
        self, name: str, time_limit: float = TIME_LIMIT, *, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._time_limit = time_limit
        self._clock = clock
        self._lock = threading.Lock()
        #: Why the last call failed; empty after a success.
        self.reason = ""
        self._error = ""
        self._started: float | None = None
        self._began: float | None = None
        self._succeeded: float | None = None
        self._failed: float | None = None
        self._next: float | None = None
        self._calls = self._failures = 0

    def start(self, delay: float) -> None:
        with self._lock:
            self._started = self._clock()
            self._next = self._started + delay

    def begin(self) -> None:
        with self._lock:
            self._began, self._next = self._clock(), None
            self._calls += 1

    def succeed(self) -> None:
        with self._lock:
            self._began, self._succeeded, self.reason = None, self._clock(), ""

    def fail(self, reason: str) -> None:
        with self._lock:
            self._began, self._failed = None, self._clock()
            self.reason = self._error = reason
            self._failures += 1

    def plan(self, delay: float | None) -> None:
        """The next call begins after this many seconds; None if it is not known when."""
        with self._lock:
            self._next = None if delay is None else self._clock() + delay

    def status(self, *, alive: bool) -> WorkerState:
        with self._lock:
            now, wall = self._clock(), time.time_ns()

            def time_of(then: float | None) -> int | None:
                return None if then is None else wall - round((now - then) * 1e9)

            state, reason = self._judge(now, alive)
            return WorkerState(
                name=self._name,
                state=state,
                reason=reason,
                started=time_of(self._started),
                succeeded=time_of(self._succeeded),
                failed=time_of(self._failed),
                error=self._error,
                next_run=time_of(self._next),
                calls=self._calls,
                failures=self._failures,
            )

    def _judge(self, now: float, alive: bool) -> tuple[State, str]:
        if not alive:
            last = f"; its last error: {self._error}" if self._error else ""
            return "ended", f"its thread has ended; restart the server{last}"
        if self._began is not None and now - self._began > self._time_limit:
            taken = _duration(now - self._began)
            limit = _duration(self._time_limit)
            return "overdue", f"one call has taken {taken} so far; expected at most {limit}"
        if self._next is not None and now - self._next > _LATE:
            return "overdue", f"a call was due {_duration(now - self._next)} ago"
        if self.reason:
            return "failing", self.reason
        return ("waiting" if self._began is None else "working"), ""


def _duration(seconds: float) -> str:
    return format_duration(round(seconds * 1e9))


class PeriodicWorker:
    """Calls ``work`` in a thread, ``interval`` seconds after its last return, until stopped.

    A failure ends neither the thread nor the program. A :class:`JobsightError` is logged once
    until its text changes, with ``failure`` ("the archive is not written") before it; any other
    exception is a bug and logged with its traceback each time. With a :class:`Backoff` the delay
    grows while the work fails. ``work`` gets an event that is set when it should return early.
    """

    def __init__(  # noqa: PLR0913 -- what differs between the workers of a server
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
        time_limit: float = TIME_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A call that takes longer than ``time_limit`` seconds makes the worker overdue."""
        self.name = name
        self._progress = Progress(name, time_limit, clock=clock)
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

    @property
    def reason(self) -> str:
        """Why the last call failed; empty after a success."""
        return self._progress.reason

    def status(self) -> WorkerState:
        return self._progress.status(alive=self._thread.is_alive())

    def start(self) -> None:
        self._progress.start(self._first_delay)
        with signals_blocked():
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
        self._progress.begin()
        try:
            self._work(self.stopped)
        except JobsightError as error:
            self._progress.fail(str(error))
            self._log.report(self.name, f"{self._failure}: {error}")
            return False
        except Exception:
            self._progress.fail(INTERNAL_ERROR)
            self._logger.exception("%s: internal error", self._failure)
            return False
        except BaseException as error:
            # SystemExit and the like end the thread: the health has to say by what.
            self._progress.fail(f"{type(error).__name__}: {error}")
            raise
        self._progress.succeed()
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
                self._progress.plan(self._interval)
                self._woken.wait(self._interval)
            else:
                delay = self._backoff.fail()
                self._logger.debug("%s: next try in %.1f s by the backoff", self.name, delay)
                self._progress.plan(delay)
                self.stopped.wait(delay)


@contextmanager
def in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread during the block. At the end of the block its event is set."""
    stopped = threading.Event()
    thread = threading.Thread(target=work, args=(stopped,), name=f"jobsight-{name}", daemon=True)
    with signals_blocked():
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(STOP_TIMEOUT)
