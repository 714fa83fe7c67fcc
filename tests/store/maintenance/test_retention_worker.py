"""The daily round in the background of a server."""

import logging
import threading
import time
from pathlib import Path

import pytest

from jobsight.config.settings import RetentionSettings, Settings
from jobsight.server.serve import BackgroundServer
from jobsight.store.maintenance import retention
from jobsight.store.maintenance.retention import DAY, claim, retention_worker
from jobsight.store.store import Store
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
