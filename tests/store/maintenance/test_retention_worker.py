"""The daily round in the background of a server."""

import logging
import threading
import time
from pathlib import Path

import pytest

from jobsight.config.settings import RetentionSettings, Settings
from jobsight.errors import StoreError
from jobsight.server.api.health import read_health
from jobsight.server.serve import BackgroundServer
from jobsight.store.maintenance import retention
from jobsight.store.maintenance.retention import (
    _SQL,
    DAY,
    Pruned,
    claim,
    last_failure,
    retention_worker,
)
from jobsight.store.store import Store
from jobsight.util.workers import INTERNAL_ERROR
from tests.store.many import count, fill, summed
from tests.waiting import wait_until


def test_one_of_several_servers_once_a_day(location: str) -> None:
    with Store.open(location) as one, Store.open(location) as other:
        now = time.time_ns()
        assert claim(one.database, now)
        assert not claim(other.database, now)
        assert not claim(one.database, now + DAY - 1)
        assert claim(other.database, now + DAY)
        assert not claim(one.database, now + DAY)


def test_it_prunes_beside_the_server(store: Store) -> None:
    fill(store, range(3), age=50, now=time.time_ns())
    fill(store, range(3, 5), age=5, now=time.time_ns())
    summed(store)
    with retention_worker(store, RetentionSettings(runs=10), first_delay=0):
        wait_until(lambda: store.count_runs() == 2)
    assert store.count_runs() == 2
    assert count(store, "checkpoints", "name = 'retention' AND value > 0") == 1


def test_a_store_that_fails_does_not_end_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Semaphore(0)

    def fail(database: object, now: int) -> bool:
        tried.release()
        raise RuntimeError("a fault")

    monkeypatch.setattr(retention, "claim", fail)
    monkeypatch.setattr(retention, "CHECK_INTERVAL", 0.01)
    with (
        caplog.at_level(logging.CRITICAL, "jobsight.store"),
        retention_worker(store, RetentionSettings(), first_delay=0),
    ):
        assert all(tried.acquire(timeout=60) for _ in range(3))
    wait_until(lambda: "jobsight-prune" not in {thread.name for thread in threading.enumerate()})


# Fault 10: the next check, an hour later, found nothing due and cleared the reason.
def test_a_failure_stays_in_the_health_until_the_next_try(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [StoreError("no space left"), ValueError("a bug")]

    def fail(*_: object, **__: object) -> dict[str, Pruned]:
        if faults:
            raise faults.pop(0)
        return {}

    def health() -> str:
        return {each.worker: each.reason for each in read_health(store).workers}["prune"]

    def due() -> None:
        with store.database.write() as transaction:
            transaction.execute(_SQL["claim_retention"], {"now": 0, "before": time.time_ns()})

    monkeypatch.setattr(retention, "prune", fail)
    worker = retention_worker(store, RetentionSettings(), first_delay=3600)
    with worker:
        for expected in ("no space left", INTERNAL_ERROR):
            assert not worker.run_once()
            assert health() == expected
            # Not due again; another server says so, too.
            assert not worker.run_once()
            assert health() == expected
            assert last_failure(store.database) == expected
            due()
        assert worker.run_once()
        assert worker.run_once()
        assert health() == ""


@pytest.mark.parametrize("daily", [True, False])
def test_a_server_does_it_where_it_is_told_to(tmp_path: Path, daily: bool) -> None:
    settings = Settings()
    settings.store.location = str(tmp_path / "store.db")
    settings.store.retention.daily = daily
    settings.server.port = 0

    def running() -> bool:
        return "jobsight-prune" in {thread.name for thread in threading.enumerate()}

    with BackgroundServer(settings):
        assert running() == daily
    assert not running()
