from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from jobsight.errors import JobsightError
from jobsight.server.api.health import read_health
from jobsight.store.store import Store
from jobsight.util.backoff import Backoff
from jobsight.util.workers import INTERNAL_ERROR, PeriodicWorker, in_background, worker_states
from tests.waiting import wait_until

logger = logging.getLogger("jobsight.tests")


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_errors_and_bugs_do_not_end_the_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rounds: list[threading.Event] = []
    done = threading.Event()

    def work(stopped: threading.Event) -> None:
        rounds.append(stopped)
        if len(rounds) in (1, 2):
            raise JobsightError("no space")
        if len(rounds) == 3:
            raise KeyError("a bug")
        done.set()
        stopped.wait()

    worker = PeriodicWorker("test", work, 0.001, logger=logger, failure="the work failed")
    with worker:
        assert done.wait(60)
        assert "jobsight-test" in names()
    assert "jobsight-test" not in names()
    assert len(rounds) == 4
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "the work failed: no space"),
        ("ERROR", "the work failed: internal error"),
        ("INFO", "test: recovered"),
    ]


def test_the_reason_is_that_of_the_last_call() -> None:
    errors: list[Exception] = [JobsightError("no space"), KeyError("x")]

    def work(stopped: threading.Event) -> None:
        if errors:
            raise errors.pop(0)

    worker = PeriodicWorker("test", work, 1, logger=logger, failure="the work failed")
    assert not worker.run_once()
    assert worker.reason == "no space"
    assert not worker.run_once()
    assert worker.reason == INTERNAL_ERROR
    assert worker.run_once()
    assert worker.reason == ""


def test_a_wake_up_shortens_the_interval() -> None:
    rounds = threading.Semaphore(0)
    worker = PeriodicWorker(
        "test", lambda stopped: rounds.release(), 3600, logger=logger, failure="failed"
    )
    with worker:
        assert rounds.acquire(timeout=60)
        worker.wake()
        assert rounds.acquire(timeout=60)


def test_a_backoff_delays_the_next_attempt() -> None:
    attempts = threading.Semaphore(0)

    def work(stopped: threading.Event) -> None:
        attempts.release()
        raise JobsightError("unreachable")

    backoff = Backoff(0.001, 0.002)
    worker = PeriodicWorker("test", work, 3600, logger=logger, failure="failed", backoff=backoff)
    with worker:
        for _ in range(3):
            assert attempts.acquire(timeout=60)
    assert backoff.failures >= 2


def test_a_worker_that_was_not_started_can_be_stopped() -> None:
    PeriodicWorker("test", lambda stopped: None, 1, logger=logger, failure="failed").stop()


def test_a_stop_during_the_first_delay_ends_the_thread() -> None:
    calls: list[int] = []
    worker = PeriodicWorker(
        "test",
        lambda stopped: calls.append(1),
        1,
        logger=logger,
        failure="failed",
        first_delay=3600,
    )
    with worker:
        pass
    assert "jobsight-test" not in names()
    assert calls == []


def test_background_work_ends_with_the_block() -> None:
    ended = threading.Event()

    def work(stopped: threading.Event) -> None:
        stopped.wait()
        ended.set()

    with in_background("test", work):
        assert not ended.is_set()
    assert ended.is_set()


# Fault 10: a failure of any background worker is a reason in the health of the server.
def test_the_reason_of_a_failing_worker_is_in_the_health(tmp_path: Path) -> None:
    failed = threading.Event()

    def work(stopped: threading.Event) -> None:
        failed.set()
        raise ZeroDivisionError("a bug")

    worker = PeriodicWorker("w", work, 3600, logger=logger, failure="the work failed")
    with Store.open(tmp_path / "store.db") as store:
        assert read_health(store).healthy
        with worker:
            assert failed.wait(30)
            wait_until(lambda: bool(worker.reason))
            health = read_health(store)
            assert not health.healthy
            assert [(each.worker, each.reason) for each in health.workers] == [
                ("w", INTERNAL_ERROR)
            ]
        assert read_health(store).workers == []


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_worker_that_hangs_is_overdue() -> None:
    clock = Clock()
    entered, leave = threading.Event(), threading.Event()

    def work(stopped: threading.Event) -> None:
        entered.set()
        leave.wait(60)

    worker = PeriodicWorker(
        "w", work, 3600, logger=logger, failure="failed", time_limit=600, clock=clock
    )
    with worker:
        assert entered.wait(60)
        assert worker.status().state == "working"
        clock.now += 601
        (state,) = [each for each in worker_states() if each.name == "w"]
        assert (state.state, state.healthy) == ("overdue", False)
        assert state.reason == "one call has taken 00:10:01 so far; expected at most 00:10:00"
        leave.set()
        wait_until(lambda: worker.status().state == "waiting")
        assert worker.status().next_run is not None
        # A thread that does not begin: here, because the clock has passed without it.
        clock.now += 3600 + 59
        assert worker.status().state == "waiting"
        clock.now += 2
        assert worker.status().state == "overdue"
        assert "a call was due 00:01:01 ago" in worker.status().reason


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_that_ends_the_thread_is_named() -> None:
    def work(stopped: threading.Event) -> None:
        raise SystemExit("a library gave up")

    worker = PeriodicWorker("w", work, 3600, logger=logger, failure="failed")
    with worker:
        worker._thread.join(60)
        state = worker.status()
    assert state.state == "ended"
    assert state.reason.endswith("its last error: SystemExit: a library gave up")
    assert worker_states() == []


def test_the_clock_of_the_wall_does_not_make_a_worker_overdue() -> None:
    clock = Clock()
    worker = PeriodicWorker(
        "w", lambda stopped: None, 3600, logger=logger, failure="failed", clock=clock
    )
    assert worker.run_once()
    state = worker.status()
    assert state.succeeded is not None
    clock.now += 5
    later = worker.status()
    assert later.succeeded is not None
    # Five seconds older by the monotonic clock, whatever the wall clock did.
    assert later.succeeded < state.succeeded
