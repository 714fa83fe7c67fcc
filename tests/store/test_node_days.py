"""The time series of nodes: stored once, by day, joined, read back, downsampled and removed."""

from __future__ import annotations

import sqlite3
from array import array
from typing import Any

import pytest

from jobsight.config.settings import RetentionSettings
from jobsight.model import SECOND, Series
from jobsight.store.dead_letters import list_dead_letters
from jobsight.store.maintenance.compact import compact
from jobsight.store.maintenance.inventory import take_inventory
from jobsight.store.maintenance.node_days import complete_days, node_days_worker
from jobsight.store.maintenance.retention import Pruned, preview, prune
from jobsight.store.read.node_days import NodesDay, series_of_node, use_by_day
from jobsight.store.store import Store
from jobsight.store.write import node_days
from jobsight.store.write.bounds import MAX_NODE_DAYS, MAX_NODE_ROWS
from jobsight.store.write.excess import read_excess
from jobsight.store.write.validation import BatchError
from jobsight.util.workers import worker_states
from tests.store.contents import assert_sound, check
from tests.store.many import count
from tests.store.node_sample import CPUS, DAY, node_batch, node_series, wave, write_day
from tests.store.sample import START, batch, find, info, part, series, totals
from tests.waiting import wait_until

#: The midnight before START.
MIDNIGHT = START // DAY * DAY
EVERYTHING = ("node.cpu.user", "node.load.1m")


def read(store: Store, since: int, until: int, node: str = "n1") -> Any:
    return series_of_node(store.database, "c1", node, EVERYTHING, since, until)


def days(store: Store, *names: str) -> list[Any]:
    with store.database.query() as transaction:
        query = f"SELECT {', '.join(names)} FROM node_days ORDER BY node, day"
        return [tuple(row) for row in transaction.execute(query).fetchall()]


def test_what_a_node_sends_is_read_back_once(store: Store) -> None:
    sent = node_batch(node_series(START, 5), sequence=5)
    assert store.write(sent)
    assert not store.write(sent)
    found = read(store, START, START + DAY)
    assert found.node == "n1"
    assert found.times.tolist() == [START + row * 60 * SECOND for row in range(5)]
    assert found.columns["node.load.1m"].tolist() == [8.5] * 5
    assert found.columns["node.cpu.user"].tolist() == [row * 360 * SECOND for row in range(5)]
    assert read(store, START, START + DAY, node="n2") is None
    assert read(store, START - DAY, START - 1) is None
    assert_sound(store)


def test_a_batch_has_jobs_and_the_node(store: Store) -> None:
    sent = batch(info(), part(series=series([0, 1]), totals=totals(1, 5)))
    sent.node_series = node_series(START, 2)
    assert store.write(sent)
    assert find(store).cpu_time == 5
    assert len(read(store, START, START + DAY).times) == 2
    # The node is in no list, count or sum of jobs.
    assert (store.count_runs(), store.info().nodes, store.info().chunks) == (1, 1, 1)
    assert take_inventory(store.database).classes["nodes"].rows == 2


def test_a_day_is_joined_when_it_is_over(store: Store) -> None:
    write_day(store, MIDNIGHT, hours=24)
    assert days(store, "day", "complete") == [(MIDNIGHT // DAY, False)]
    # 288 batches were joined in groups.
    assert count(store, "node_chunks") == 288 // 64 + 288 % 64
    whole = read(store, MIDNIGHT, MIDNIGHT + DAY)
    assert store.write(node_batch(node_series(MIDNIGHT + DAY, 5)))
    # Not by a batch, and not before an hour has passed.
    assert complete_days(store.database, MIDNIGHT + DAY + 3599 * SECOND).runs == 0
    assert complete_days(store.database, MIDNIGHT + DAY + 3600 * SECOND).runs == 1
    assert count(store, "node_chunks", "level = 2") == 1
    assert days(store, "complete", "open_chunks") == [(True, 0), (False, 1)]
    joined = read(store, MIDNIGHT, MIDNIGHT + DAY - 1)
    assert joined.times.tolist() == whole.times.tolist()
    assert all((joined.columns[name] == whole.columns[name]).all() for name in EVERYTHING)
    # Eight CPUs were busy from the first sample to the last.
    length = 24 * 3600 - 60
    assert use_by_day(store.database, "c1", 0, 10**6) == {
        MIDNIGHT // DAY: NodesDay(8.0 * length, CPUS * float(length))
    }
    assert_sound(store)


def test_a_late_part_of_a_complete_day_is_joined_to_it(store: Store) -> None:
    assert store.write(node_batch(node_series(MIDNIGHT, 5)))
    assert complete_days(store.database, MIDNIGHT + 2 * DAY).runs == 1
    before = use_by_day(store.database, "c1", 0, 10**6)
    late = node_series(MIDNIGHT + 3600 * SECOND, 5, first_of_all=MIDNIGHT)
    assert store.write(node_batch(late, written=MIDNIGHT + DAY))
    assert len(read(store, MIDNIGHT, MIDNIGHT + DAY - 1).times) == 10
    assert use_by_day(store.database, "c1", 0, 10**6) == before
    # Retention and compaction do it, the worker between them does not.
    assert complete_days(store.database, MIDNIGHT + 2 * DAY, late=False).runs == 0
    assert_sound(store)
    assert complete_days(store.database, MIDNIGHT + 2 * DAY).runs == 1
    assert count(store, "node_chunks", "level = 2") == count(store, "node_chunks") == 1
    assert len(read(store, MIDNIGHT, MIDNIGHT + DAY - 1).times) == 10
    (found,) = use_by_day(store.database, "c1", 0, 10**6).values()
    assert found.cpu_time == 8 * (3600 + 4 * 60)
    assert_sound(store)


def test_the_worker_completes_days(store: Store) -> None:
    assert store.write(node_batch(node_series(MIDNIGHT, 5)))
    with node_days_worker(store, first_delay=0):
        wait_until(lambda: days(store, "complete") == [(True,)])
        wait_until(lambda: [each.calls for each in worker_states()] == [1])
        (state,) = worker_states()
    assert (state.name, state.reason) == ("node-days", "")


def test_a_batch_over_midnight_is_of_two_days(store: Store) -> None:
    sent = node_series(MIDNIGHT + DAY - 120 * SECOND, 5)
    assert store.write(node_batch(sent))
    assert [day for (day,) in days(store, "day")] == [MIDNIGHT // DAY, MIDNIGHT // DAY + 1]
    found = read(store, MIDNIGHT, MIDNIGHT + 2 * DAY)
    assert found.times.tolist() == list(sent.times)
    assert found.columns["node.cpu.user"].tolist() == list(sent.columns["node.cpu.user"])
    assert_sound(store)


def test_a_counter_that_was_reset_takes_nothing_away(store: Store) -> None:
    assert store.write(node_batch(node_series(MIDNIGHT + 3600 * SECOND, 5, first_of_all=MIDNIGHT)))
    # The node booted.
    assert store.write(node_batch(node_series(MIDNIGHT + 7200 * SECOND, 5)))
    complete_days(store.database, MIDNIGHT + 2 * DAY)
    (found,) = use_by_day(store.database, "c1", 0, 10**6).values()
    assert found.cpu_time == 2 * 4 * 60 * 8


def test_series_of_a_node_that_are_not_in_bounds(store: Store) -> None:
    many = MAX_NODE_ROWS + 1
    with pytest.raises(BatchError, match="have 4,097 rows; at most 4,096"):
        store.write(node_batch(node_series(START, many, SECOND)))
    with pytest.raises(BatchError, match="of 9 days; at most 8"):
        store.write(node_batch(node_series(START, MAX_NODE_DAYS + 1, DAY), written=START))
    with pytest.raises(BatchError, match="more than 400 days"):
        store.write(node_batch(node_series(START - 500 * DAY, 2), written=START))
    times = array("q", [START])
    wrong = Series(times, {"node.cpu.user": array("q", [1, 2])})
    with pytest.raises(BatchError, match="has 2 rows, its times have 1"):
        store.write(node_batch(wrong))
    with pytest.raises(BatchError, match="control character"):
        store.write(node_batch(Series(times, {"node\n": array("q", [1])})))
    assert days(store, "day") == []


def test_metrics_that_are_not_known_are_left_out_alone(store: Store) -> None:
    sent = node_series(START, 2)
    sent = Series(sent.times, {**sent.columns, "cpu.time": array("q", [1, 2])})
    (written,) = store.write_all([node_batch(sent)])
    assert not isinstance(written, Exception)
    assert written.left_out == ("metric 'cpu.time' of the node is not known to this version",)
    found = series_of_node(store.database, "c1", "n1", ("cpu.time",), START, START + DAY)
    assert found is not None
    assert found.columns == {}


def test_a_day_of_a_node_has_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = node_series(START, 5)
    values = len(sent) * (1 + len(sent.columns))
    monkeypatch.setattr(node_days, "MAX_NODE_DAY_VALUES", 2 * values)
    for first in range(3):
        outcomes = store.write_all([node_batch(node_series(START + first * 300 * SECOND, 5))])
        assert not isinstance(outcomes[0], Exception)
        assert bool(outcomes[0].left_out) is (first == 2)
    assert len(read(store, START, START + DAY).times) == 10
    assert read_excess(store.database)["c1"].value == values
    # Another node has its own.
    assert store.write(node_batch(sent, "n2"))
    assert len(read(store, START, START + DAY, "n2").times) == 5


def test_a_node_writes_under_its_own_name_only(store: Store) -> None:
    """A series has no name of a node: it is of the one that the batch is from."""
    for node in ("n1", "n2"):
        assert store.write(node_batch(node_series(START, 5), node, spool=f"spool of {node}"))
    assert [node for (node,) in days(store, "node")] == ["n1", "n2"]
    assert len(read(store, START, START + DAY, "n1").times) == 5


def _prune(store: Store, now: int, **keep: float) -> dict[str, Pruned]:
    settings = RetentionSettings(**({"series": 0} | keep))
    expected = preview(store.database, settings, now)
    found = prune(store.database, settings, now, pause=lambda seconds: None)
    for name in ("node days", "node days downsampled"):
        assert (name in expected) is (name in found)
        if name in found:
            assert expected[name].runs == found[name].runs
    return {name: part for name, part in found.items() if name.startswith("node")}


@pytest.mark.long
def test_retention_thins_and_removes_days(store: Store) -> None:
    for day in range(3):
        write_day(store, MIDNIGHT + day * DAY, busy=wave)
    now = MIDNIGHT + 10 * DAY
    assert _prune(store, now) == {}
    # The last day is over, too, although the node has sent nothing since.
    assert days(store, "complete") == [(True,)] * 3
    before = use_by_day(store.database, "c1", 0, 10**6)
    grown = read(store, MIDNIGHT, MIDNIGHT + DAY - 1).columns["node.cpu.user"]
    thinned = _prune(store, now, series=9)["node days downsampled"]
    assert thinned.runs == 1
    assert 0 < thinned.bytes_left < thinned.bytes
    found = read(store, MIDNIGHT, MIDNIGHT + DAY - 1)
    assert len(found.times) < 24 * 60 / 4
    # The counter's growth is the same.
    assert found.columns["node.cpu.user"][[0, -1]].tolist() == grown[[0, -1]].tolist()
    assert use_by_day(store.database, "c1", 0, 10**6) == before
    assert "node days downsampled" not in _prune(store, now, series=9)
    assert_sound(store)
    removed = _prune(store, now, downsampled=8)["node days"]
    assert (removed.runs, removed.rows) == (2, 2)
    assert days(store, "day") == [(MIDNIGHT // DAY + 2,)]
    assert count(store, "node_chunks") == 1
    # With the runs of that time, if those go earlier.
    assert _prune(store, now, runs=1)["node days"].runs == 1
    assert days(store, "day") == []
    assert_sound(store)


def test_what_is_sent_for_a_thinned_day_is_joined_and_thinned_again(store: Store) -> None:
    write_day(store, MIDNIGHT, hours=12, busy=wave)
    now = MIDNIGHT + 10 * DAY
    assert _prune(store, now) == {}
    assert _prune(store, now, series=1)["node days downsampled"].runs == 1
    late = node_series(MIDNIGHT + 13 * 3600 * SECOND, 5, first_of_all=MIDNIGHT)
    assert store.write(node_batch(late, written=now))
    assert days(store, "downsampled", "complete") == [(True, False)]
    done = prune(store.database, RetentionSettings(series=1), now, pause=lambda seconds: None)
    assert done["node days downsampled"].runs == 1
    assert days(store, "downsampled", "complete") == [(True, True)]
    assert_sound(store)


def test_compaction_joins_days_whose_node_is_gone(store: Store) -> None:
    write_day(store, MIDNIGHT, hours=2)
    assert compact(store.database, now=MIDNIGHT + DAY, vacuum=False).node_days == 0
    done = compact(store.database, now=MIDNIGHT + 2 * DAY, vacuum=False)
    assert done.node_days == 1
    assert done.series_after < done.series_before
    assert count(store, "node_chunks", "level = 2") == count(store, "node_chunks") == 1
    assert len(read(store, MIDNIGHT, MIDNIGHT + DAY).times) == 120


def test_a_damaged_chunk_stops_nothing_and_is_removed_by_the_check(store: Store) -> None:
    write_day(store, MIDNIGHT, hours=1)
    with store.database.write() as transaction:
        transaction.execute(
            "UPDATE node_chunks SET data = :data WHERE id = (SELECT min(id) FROM node_chunks)",
            {"data": b"broken"},
        )
    assert store.write(node_batch(node_series(MIDNIGHT + DAY, 5)))
    now = MIDNIGHT + DAY + 7200 * SECOND
    done = complete_days(store.database, now)
    assert (done.runs, done.damaged) == (0, 1)
    assert days(store, "complete") == [(False,), (False,)]
    assert [each.reason for each in list_dead_letters(store.database)] == [
        "day 2026-09-21 of node n1: a chunk has format version 98, expected 1"
    ]
    faults = check(store).faults
    assert [fault.where.partition(" of ")[2] for fault in faults] == [
        "day 2026-09-21 of node n1 of cluster c1"
    ]
    check(store, repair=True, remove_damaged=True)
    check(store, repair=True)
    assert_sound(store)
    # With the damage gone, it is not set aside any more.
    assert complete_days(store.database, now).runs == 1
    assert days(store, "complete") == [(True,), (False,)]
    assert list_dead_letters(store.database) == []


def test_the_check_repairs_the_columns_of_a_day(store: Store) -> None:
    assert store.write(node_batch(node_series(START, 5)))
    with store.database.write() as transaction:
        transaction.execute("UPDATE node_days SET open_chunks = 9, last_sample = first_sample")
    (fault,) = check(store, repair=True).faults
    assert "open_chunks is 9, expected 1; its series reach beyond" in fault.text
    assert_sound(store)


def test_the_queries_by_node_use_an_index(store: Store) -> None:
    if store.database.postgresql:
        pytest.skip("the planner of PostgreSQL reads a small table as a whole")
    write_day(store, MIDNIGHT, hours=1)
    connection = sqlite3.connect(store.database.where)
    for name in (
        *("chunks_of_node", "use_by_day", "due_node_days", "incomplete_node_days"),
        "node_days_by_id",
    ):
        sql = node_days._SQL[name].replace(":keys", "1")
        values = dict.fromkeys(
            (
                *("cluster", "node", "first_day", "last_day", "since", "until", "day", "after"),
                *("all", "limit", "before", "late", "id", "tries", "tried", "interrupted"),
            ),
            1,
        )
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        assert not [step for step in plan if step.startswith("SCAN")], (name, plan)
    connection.close()
