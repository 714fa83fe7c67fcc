"""Time series of nodes that a hostile node sends: the next honest batch is stored, and the days of
all others are completed, downsampled and removed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any

import pytest

from jobsight.config.settings import RetentionSettings
from jobsight.model import MISSING, SECOND, Column, Series
from jobsight.store import dead_letters
from jobsight.store.dead_letters import INTERRUPTED, NODE_DAY
from jobsight.store.maintenance import node_days as maintenance
from jobsight.store.maintenance.compact import compact
from jobsight.store.maintenance.node_days import complete_days
from jobsight.store.maintenance.retention import prune
from jobsight.store.read.node_days import NodesDay, series_of_node, use_by_day
from jobsight.store.series.codec import encode_series
from jobsight.store.store import Store
from jobsight.store.write.bounds import MAX_CPUS
from jobsight.store.write.parts import MAX_OPEN_CHUNKS
from tests.store.contents import assert_sound, check
from tests.store.many import count
from tests.store.node_sample import DAY, node_batch, node_series
from tests.store.sample import START, batch, find, info, part, series, totals

#: The midnight before START.
MIDNIGHT = START // DAY * DAY
HIGHEST = 2**63 - 1
#: The time of maintenance: the hostile days are over, and so is the honest one after them.
LATER = MIDNIGHT + 3 * DAY

#: A column of a counter that no node has.
COUNTERS: dict[str, Column] = {
    "infinity": array("d", [0.0, math.inf]),
    "minus infinity": array("d", [-math.inf, 1.0]),
    "beyond 64 bits": array("d", [0.0, 1e300]),
    "fractions": array("d", [0.5, 2.5]),
    "negative": array("q", [-HIGHEST, HIGHEST]),
}


def hostile(columns: dict[str, Column], start: int = MIDNIGHT, step: int = SECOND) -> Series:
    rows = len(next(iter(columns.values())))
    return Series(array("q", (start + row * step for row in range(rows))), columns)


def days(store: Store, *names: str, where: str = "true") -> list[Any]:
    with store.database.query() as transaction:
        query = f"SELECT {', '.join(names)} FROM node_days WHERE {where} ORDER BY node, day"
        return [tuple(row) for row in transaction.execute(query).fetchall()]


def times_of(store: Store, day: int = MIDNIGHT) -> list[int]:
    found = series_of_node(store.database, "c1", "n1", ("node.cpu.user",), day, day + DAY - 1)
    return [] if found is None else found.times.tolist()


def maintain(store: Store, now: int = LATER) -> None:
    """Compaction and retention, both to their end."""
    compact(store.database, now=now, vacuum=False)
    prune(store.database, RetentionSettings(), now, pause=lambda seconds: None)


def store_honest(store: Store, day: int = MIDNIGHT + DAY) -> None:
    """The next batch of the node, with a job."""
    sent = batch(info(), part(series=series([0, 1]), totals=totals(1, 5)), node="n1")
    sent.node_series = node_series(day, 5)
    (written,) = store.write_all([sent])
    assert not isinstance(written, Exception), written
    assert written.left_out == ()
    assert find(store).cpu_time == 5


@pytest.mark.parametrize("name", COUNTERS)
def test_a_counter_that_is_none_is_left_out_alone(store: Store, name: str) -> None:
    sent = hostile({"node.cpu.user": COUNTERS[name], "node.memory.used": array("q", [1, 2])})
    (written,) = store.write_all([node_batch(sent, spool="hostile")])
    assert not isinstance(written, Exception)
    (sentence,) = written.left_out
    assert sentence.startswith("metric 'node.cpu.user' of the node ")
    store_honest(store)
    maintain(store)
    assert days(store, "complete", "cpu_time", where=f"day = {MIDNIGHT // DAY}") == [(True, None)]
    assert list(use_by_day(store.database, "c1", 0, 10**6)) == [MIDNIGHT // DAY + 1]
    assert_sound(store)


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, -1.0])
def test_a_gauge_that_is_no_amount_is_left_out_alone(store: Store, value: float) -> None:
    sent = hostile(
        {
            "node.load.1m": array("d", [1.0, value]),
            # A reading that failed.
            "node.load.5m": array("d", [math.nan, 2.0]),
            "node.cpu.user": array("q", [MISSING, HIGHEST]),
        }
    )
    (written,) = store.write_all([node_batch(sent)])
    assert not isinstance(written, Exception)
    (sentence,) = written.left_out
    assert sentence.startswith("metric 'node.load.1m' of the node ")
    names = ("node.load.1m", "node.load.5m", "node.cpu.user")
    found = series_of_node(store.database, "c1", "n1", names, MIDNIGHT, MIDNIGHT + DAY)
    assert found is not None
    assert set(found.columns) == {"node.load.5m", "node.cpu.user"}


def stored_before(store: Store, column: Column) -> None:
    """A day of a store that has taken the column before it was refused."""
    assert store.write(node_batch(hostile({"node.cpu.user": array("q", [0, 1])}), spool="hostile"))
    data = encode_series(hostile({"node.cpu.user": column}))
    with store.database.write() as transaction:
        transaction.execute("UPDATE node_chunks SET data = :data", {"data": data})


@pytest.mark.parametrize("name", COUNTERS)
def test_a_day_with_such_values_from_before_stops_nothing(store: Store, name: str) -> None:
    stored_before(store, COUNTERS[name])
    store_honest(store)
    maintain(store)
    assert days(store, "complete") == [(True,), (True,)]
    assert dead_letters.list_dead_letters(store.database) == []
    # Eight CPUs from the first of five samples to the last.
    assert use_by_day(store.database, "c1", 0, 10**6)[MIDNIGHT // DAY + 1].cpu_time == 8 * 240
    assert_sound(store)


def test_counters_that_jump_by_all_of_64_bits_are_no_use_of_cpus(store: Store) -> None:
    jumps = array("q", [0, HIGHEST] * 500)
    for number, name in enumerate(("n1", "n2")):
        sent = hostile({"node.cpu.user": jumps, "node.cpu.idle": jumps})
        assert store.write(node_batch(sent, name, spool=f"hostile {number}"))
    store_honest(store)
    maintain(store)
    assert days(store, "cpu_time", "core_time", where="cpu_time IS NULL") == [(None, None)] * 2
    assert list(use_by_day(store.database, "c1", 0, 10**6)) == [MIDNIGHT // DAY + 1]
    assert_sound(store)


def test_the_sum_over_all_nodes_of_a_cluster_has_no_bound(store: Store) -> None:
    """As many nodes as a sender invents, each with the most that a node can have."""
    most = MAX_CPUS * (DAY - 3600 * SECOND) // 1000
    assert most * 8 > HIGHEST
    for node in range(8):
        sent = hostile({"node.cpu.user": array("q", [0, SECOND])})
        assert store.write(node_batch(sent, f"h{node}", spool=f"hostile {node}"))
    with store.database.write() as transaction:
        transaction.execute(
            "UPDATE node_days SET complete = true, cpu_time = :most, core_time = :most",
            {"most": most},
        )
    ((_, found),) = use_by_day(store.database, "c1", 0, 10**6).items()
    assert found == NodesDay(pytest.approx(most * 8 / 1e6), pytest.approx(most * 8 / 1e6))


def store_poison(store: Store) -> int:
    """A day whose completion is to fail; its id."""
    assert store.write(node_batch(hostile({"node.cpu.user": array("q", [0, 1])}), spool="hostile"))
    ((id,),) = days(store, "id")
    return int(id)


def fail_on(monkeypatch: pytest.MonkeyPatch, poison: int, error: BaseException) -> list[int]:
    """Have the completion of a day fail; returns the tries."""
    tries: list[int] = []
    real = maintenance.join_day

    def failing(id: int, chunks: Iterable[bytes]) -> maintenance.JoinedDay:
        if id == poison:
            tries.append(id)
            raise error
        return real(id, chunks)

    monkeypatch.setattr(maintenance, "join_day", failing)
    return tries


def test_a_day_that_cannot_be_completed_is_set_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = store_poison(store)
    tries = fail_on(monkeypatch, poison, OverflowError("cannot convert float infinity to integer"))
    store_honest(store)
    maintain(store)
    # Once: compaction has set it aside, retention passes it over.
    assert tries == [poison]
    assert days(store, "complete") == [(False,), (True,)]
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert (letter.kind, letter.cluster, letter.tries) == (NODE_DAY, "c1", 1)
    assert letter.reason.startswith("day 2026-09-21 of node n1: OverflowError: cannot convert")
    assert check(store).notes == [
        "1 dead letters of cluster c1, node-day; see jobsight store dead-letters"
    ]
    store_honest(store, MIDNIGHT + 2 * DAY)
    assert len(times_of(store)) == 2


def test_a_day_that_was_set_aside_is_tried_again_three_times(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = store_poison(store)
    tries = fail_on(monkeypatch, poison, ValueError("no"))
    for _ in range(5):
        complete_days(store.database, LATER)
        complete_days(store.database, LATER)
        with store.database.write() as transaction:
            transaction.execute("UPDATE dead_letters SET last = 0")
    assert len(tries) == dead_letters.MAX_TRIES
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert letter.tries == dead_letters.MAX_TRIES
    monkeypatch.undo()
    dead_letters.retry(store.database, letter.name)
    complete_days(store.database, LATER)
    assert days(store, "complete") == [(True,)]
    assert dead_letters.list_dead_letters(store.database) == []


def test_a_day_that_is_given_up_is_tried_again_after_new_data_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = store_poison(store)
    tries = fail_on(monkeypatch, poison, ValueError("no"))
    complete_days(store.database, LATER)
    (name,) = dead_letters.all_names(store.database)
    dead_letters.drop(store.database, name)
    maintain(store)
    assert len(tries) == 1
    monkeypatch.undo()
    assert store.write(node_batch(hostile({"node.cpu.user": array("q", [2])}, MIDNIGHT + DAY // 2)))
    maintain(store)
    assert days(store, "complete", "cpu_time IS NOT NULL") == [(True, True)]
    assert dead_letters.all_names(store.database) == []


def test_a_day_in_whose_work_the_process_ended_is_a_dead_letter(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = store_poison(store)
    assert store.write(node_batch(node_series(MIDNIGHT + DAY, 5)))
    # A process that is killed removes nothing.
    monkeypatch.setattr(maintenance, "remove_checkpoint", lambda transaction, name: None)
    fail_on(monkeypatch, poison, SystemExit())
    with pytest.raises(SystemExit):
        complete_days(store.database, LATER)
    monkeypatch.undo()
    assert days(store, "complete") == [(False,), (False,)]
    marked: list[list[Any]] = []
    real = maintenance.join_day

    def observed(id: int, chunks: Iterable[bytes]) -> maintenance.JoinedDay:
        with store.database.query() as transaction:
            rows = transaction.execute("SELECT key, reason FROM dead_letters").fetchall()
        marked.append([id, *map(tuple, rows)])
        return real(id, chunks)

    # The next process sets each of them aside before it tries it again.
    monkeypatch.setattr(maintenance, "join_day", observed)
    complete_days(store.database, LATER)
    assert marked == [[id, (str(id), INTERRUPTED)] for (id,) in days(store, "id")]
    assert days(store, "complete") == [(True,), (True,)]
    assert dead_letters.all_names(store.database) == []
    assert count(store, "checkpoints", "name LIKE 'node days%'") == 0


def test_a_day_that_ends_the_process_again_is_left_to_an_operator(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = store_poison(store)
    with store.database.write() as transaction:
        dead_letters.mark(transaction, NODE_DAY, str(poison), "c1", now=0)
    tries = fail_on(monkeypatch, poison, ValueError("no"))
    store_honest(store)
    complete_days(store.database, LATER)
    maintain(store)
    assert tries == []
    assert days(store, "complete") == [(False,), (True,)]


def test_a_dead_letter_goes_with_its_day(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, store_poison(store), ValueError("no"))
    complete_days(store.database, LATER)
    assert count(store, "dead_letters") == 1
    prune(store.database, RetentionSettings(runs=1), LATER + 5 * DAY, pause=lambda seconds: None)
    assert (count(store, "node_days"), count(store, "dead_letters")) == (0, 0)
    with store.database.write() as transaction:
        dead_letters.mark(transaction, NODE_DAY, "999", "c1", "no", START)
    assert [fault.where for fault in check(store, repair=True).faults] == ["dead_letters"]
    assert count(store, "dead_letters") == 0


def test_a_day_that_cannot_be_thinned_is_set_aside(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("n1", "n2"):
        assert store.write(node_batch(node_series(MIDNIGHT, 200), node, spool=node))
    real = maintenance.downsample_chunks
    tries: list[int] = []

    def failing(data: list[bytes], resolution: int) -> Any:
        tries.append(len(data))
        if len(tries) == 1:
            raise OverflowError("too large")
        return real(data, resolution)

    monkeypatch.setattr(maintenance, "downsample_chunks", failing)
    settings = RetentionSettings(series=1)

    def thin() -> None:
        prune(store.database, settings, LATER + 5 * DAY, pause=lambda seconds: None)

    for _ in range(2):
        thin()
    assert len(tries) == 2
    assert sorted(days(store, "downsampled", "complete")) == [(False, True), (True, True)]
    (letter,) = dead_letters.list_dead_letters(store.database)
    assert letter.kind == NODE_DAY
    # An hour later it is tried again.
    with store.database.write() as transaction:
        transaction.execute("UPDATE dead_letters SET last = 0")
    thin()
    assert len(tries) == 3
    assert days(store, "downsampled") == [(True,)] * 2
    assert dead_letters.list_dead_letters(store.database) == []


def test_a_day_that_cannot_be_thinned_is_tried_three_times(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.write(node_batch(node_series(MIDNIGHT, 200)))
    tries: list[int] = []

    def failing(data: list[bytes], resolution: int) -> Any:
        tries.append(len(data))
        raise OverflowError("too large")

    monkeypatch.setattr(maintenance, "downsample_chunks", failing)
    for _ in range(5):
        settings = RetentionSettings(series=1)
        prune(store.database, settings, LATER + 5 * DAY, pause=lambda seconds: None)
        with store.database.write() as transaction:
            transaction.execute("UPDATE dead_letters SET last = 0")
    assert len(tries) == dead_letters.MAX_TRIES


def test_hundreds_of_days_are_not_completed_by_a_batch(store: Store) -> None:
    number = 300
    for first in range(0, number, 8):
        times = array("q", (MIDNIGHT - day * DAY for day in range(first, min(first + 8, number))))
        column = array("q", [5] * len(times))
        sent = Series(times, {"node.cpu.user": column, "node.memory.used": column})
        assert store.write(node_batch(sent, spool=f"hostile {first}", written=MIDNIGHT))
    store_honest(store)
    assert days(store, "id", where="complete") == []
    done = complete_days(store.database, MIDNIGHT + DAY + 7200 * SECOND)
    assert done.runs == number
    assert len(days(store, "id", where="complete")) == number
    assert_sound(store)


def test_late_parts_by_hundreds_rewrite_no_complete_day(store: Store) -> None:
    assert store.write(node_batch(node_series(MIDNIGHT, 500), spool="one"))
    complete_days(store.database, LATER)
    with store.database.query() as transaction:
        (id,) = transaction.execute("SELECT id FROM node_chunks WHERE level = 2").fetchone()
    number = 4 * MAX_OPEN_CHUNKS + 5
    late = MIDNIGHT + DAY // 2
    for row in range(number):
        sent = node_series(late + row * SECOND, 1, first_of_all=MIDNIGHT)
        assert store.write(node_batch(sent, spool="late", sequence=row + 1))
        if row % 50 == 0:
            # Between batches the worker does not join them, either.
            assert complete_days(store.database, LATER, late=False).runs == 0
    with store.database.query() as transaction:
        rows = transaction.execute("SELECT id, level FROM node_chunks ORDER BY id").fetchall()
    assert tuple(rows[0]) == (id, 2)
    assert sorted(level for _, level in rows[1:]) == [0] * 5 + [1] * 4
    # They are read all the same.
    assert len(times_of(store)) == 500 + number
    assert_sound(store)
    maintain(store)
    assert count(store, "node_chunks") == count(store, "node_chunks", "level = 2") == 1
    assert len(times_of(store)) == 500 + number
    assert days(store, "complete") == [(True,)]
    assert_sound(store)


def test_a_batch_joins_one_day_at_most(store: Store) -> None:
    times = [MIDNIGHT - day * DAY for day in range(8)]
    for row in range(MAX_OPEN_CHUNKS):
        rows = array("q", (time + row * SECOND for time in times))
        sent = Series(rows, {"node.cpu.user": array("q", [row] * 8)})
        assert store.write(node_batch(sent, spool="one", sequence=row + 1, written=MIDNIGHT))
    assert count(store, "node_chunks", "level = 1") == 1
    assert sorted(days(store, "open_chunks")) == [(0,)] + [(MAX_OPEN_CHUNKS,)] * 7
    assert len(times_of(store)) == MAX_OPEN_CHUNKS
    assert_sound(store)


def test_large_chunks_are_not_joined_in_the_transaction_of_a_batch(store: Store) -> None:
    for row in range(MAX_OPEN_CHUNKS + 1):
        sent = node_series(MIDNIGHT + row * 1000 * SECOND, 1000, SECOND // 2)
        assert store.write(node_batch(sent, spool="one", sequence=row + 1))
    # Each is packed before the transaction, and does not keep small ones from being joined.
    assert count(store, "node_chunks", "level = 1") == MAX_OPEN_CHUNKS + 1
    assert_sound(store)
    for row in range(2 * MAX_OPEN_CHUNKS):
        sent = node_series(MIDNIGHT + DAY - (row + 1) * SECOND, 1)
        assert store.write(node_batch(sent, spool="two", sequence=row + 1))
    assert count(store, "node_chunks", "level = 1") == MAX_OPEN_CHUNKS + 3
    assert days(store, "open_chunks") == [(0,)]
    complete_days(store.database, LATER)
    assert count(store, "node_chunks", "level = 2") == count(store, "node_chunks")
    assert len(times_of(store)) == (MAX_OPEN_CHUNKS + 1) * 1000 + 2 * MAX_OPEN_CHUNKS
    assert_sound(store)


def test_a_part_that_arrives_while_its_day_is_completed_is_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.write(node_batch(node_series(MIDNIGHT, 5), spool="one"))
    real = maintenance.join_day

    def meanwhile(id: int, chunks: Iterable[bytes]) -> maintenance.JoinedDay:
        monkeypatch.setattr(maintenance, "join_day", real)
        late = node_series(MIDNIGHT + 3600 * SECOND, 5, first_of_all=MIDNIGHT)
        # No transaction is open: the writer does not wait.
        assert store.write(node_batch(late, spool="two"))
        return real(id, chunks)

    monkeypatch.setattr(maintenance, "join_day", meanwhile)
    assert complete_days(store.database, LATER).runs == 0
    assert days(store, "complete", "open_chunks") == [(False, 2)]
    assert complete_days(store.database, LATER).runs == 1
    assert len(times_of(store)) == 10
    assert_sound(store)
