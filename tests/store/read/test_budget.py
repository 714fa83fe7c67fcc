"""Readers of time series that share one bound of memory."""

import threading
from array import array
from pathlib import Path

import pytest

from jobsight.model import Series
from jobsight.store.read import queries
from jobsight.store.read.budget import Crowded, ReadBudget, Reservation
from jobsight.store.store import Store
from tests.store.sample import START, batch, find, part, series
from tests.waiting import wait_until


def test_a_reader_alone_is_told_that_it_reads_too_much() -> None:
    budget = ReadBudget()
    assert budget.read(lambda reservation: reservation.add(100), 100)
    assert not budget.read(lambda reservation: reservation.add(101), 100)
    assert budget.used == 0


def test_a_reader_waits_for_others_without_holding_memory() -> None:
    budget = ReadBudget(timeout=60)
    other = Reservation(budget, 100)
    assert other.add(80)
    held_by_waiter = []

    def query(reservation: Reservation) -> int:
        reservation.add(15)
        reservation.add(15)
        return reservation.values

    results: list[int] = []
    waiter = threading.Thread(target=lambda: results.append(budget.read(query, 100)))
    waiter.start()
    # It had taken 15, and gives them back before it waits.
    wait_until(lambda: budget.used == 80)
    held_by_waiter.append(budget.used - 80)
    budget.give_back(80)
    waiter.join(60)
    assert (results, held_by_waiter, budget.used) == ([30], [0], 0)


def test_a_reader_that_waits_in_vain_is_refused() -> None:
    budget = ReadBudget(timeout=0.01)
    Reservation(budget, 100).add(80)
    with pytest.raises(Crowded, match="other queries use the memory for time series"):
        budget.read(lambda reservation: reservation.add(30), 100)
    assert budget.used == 80


def test_a_result_is_reserved_until_it_is_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-07: several readers at once stay within the bound of one."""
    budget = ReadBudget(timeout=0.01)
    monkeypatch.setattr(queries, "read_budget", budget)
    monkeypatch.setattr(queries, "MAX_READ_VALUES", 100)
    store.write(batch(part(series=series(range(20)))))
    run_id = find(store).id
    first = store.series(run_id)
    # A time and two metrics in each row.
    assert budget.used == 60
    with pytest.raises(Crowded):
        store.series(run_id)
    assert len(store.series(run_id, ["load"])[0].times) == 20
    assert budget.used == 60
    del first
    assert budget.used == 0
    assert len(store.series(run_id)) == 1


def test_summaries_of_open_runs_share_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = ReadBudget(timeout=0.01)
    monkeypatch.setattr(queries, "read_budget", budget)
    with Store.open(tmp_path / "store.db") as store:
        wide = Series(array("q", [START]), {"cpu.time": array("q", [1])})
        store.write(batch(part(series=wide)))
        run_id = find(store).id
        assert len(store.summaries(run_id)) == 1
        assert budget.used == 0
        Reservation(budget, queries.MAX_READ_VALUES).add(queries.MAX_READ_VALUES - 10)
        with pytest.raises(Crowded):
            store.summaries(run_id)
