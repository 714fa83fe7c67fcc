"""The statistics of SQLite's query planner follow the size of the store."""

from __future__ import annotations

import pytest

from jobsight.store.maintenance import statistics
from jobsight.store.maintenance.statistics import statistics_worker, update_statistics
from jobsight.store.store import Store
from tests.store.sample import batch, info
from tests.waiting import wait_until


def _write(store: Store, first: int, last: int) -> None:
    assert store.write(batch(*(info(job, user="anna") for job in range(first, last + 1))))


def _known(store: Store) -> int | None:
    """The runs that the planner counts on; None without statistics."""
    with store.database.query() as transaction:
        sql = "SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_stat1'"
        if transaction.execute(sql).fetchone() == (0,):
            return None
        sql = "SELECT stat FROM sqlite_stat1 WHERE idx = 'ix_runs_start_id'"
        return int(transaction.execute(sql).fetchone()[0].split()[0])


def test_a_store_that_grows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FEW_RUNS", 10)
    if store.database.postgresql:
        assert not update_statistics(store.database)
        return
    assert not update_statistics(store.database)
    _write(store, 1, 9)
    assert not update_statistics(store.database)
    assert _known(store) is None
    _write(store, 10, 10)
    assert update_statistics(store.database)
    assert _known(store) == 10
    _write(store, 11, 19)
    assert not update_statistics(store.database)
    _write(store, 20, 20)
    assert update_statistics(store.database)
    assert _known(store) == 20
    assert not update_statistics(store.database)
    assert len(store.runs(user="anna")) == 20


def test_readers_get_the_new_statistics(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection keeps those that it has read; idle ones are opened again."""
    monkeypatch.setattr(statistics, "FEW_RUNS", 1)
    if store.database.postgresql:
        return
    _write(store, 1, 3)
    store.runs()
    before = store.database._readers[0]
    with store.database.read():
        pass
    assert update_statistics(store.database)
    store.runs()
    assert store.database._readers[0] is not before
    with store.database.alone() as connection:
        assert connection.execute("PRAGMA analysis_limit").fetchone() == (0,)


def test_it_runs_beside_the_server(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FEW_RUNS", 1)
    if store.database.postgresql:
        return
    _write(store, 1, 3)
    with statistics_worker(store, first_delay=0):
        wait_until(lambda: _known(store) == 3)
