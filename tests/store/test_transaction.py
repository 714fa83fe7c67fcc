"""Many keys by few statements, ids beforehand, and no statement that grows with the store."""

import threading
from pathlib import Path

import pytest

from jobsight.store.store import Store
from tests.store.plans import scans, traced
from tests.store.sample import (
    START,
    batch,
    find,
    info,
    part,
    series,
    sighting,
    step,
    totals,
    use,
)

_RUNS = """
    WITH wanted(cluster, job_id) AS (VALUES :keys)
    SELECT runs.job_id FROM wanted CROSS JOIN runs
    WHERE runs.cluster = wanted.cluster AND runs.job_id = wanted.job_id
"""


@pytest.mark.parametrize("count", [0, 1, 5, 341, 700])
def test_every_key_is_looked_up_once(store: Store, count: int) -> None:
    store.record_jobs([info(job_id) for job_id in range(0, 700, 2)])
    with store.database.write() as transaction:
        found = list(transaction.look_up(_RUNS, [("c1", job_id) for job_id in range(count)]))
    assert sorted(job_id for (job_id,) in found) == list(range(0, count, 2))


_NAMES = ("empty", "zero", "no", "yes", "mixed", "number", "word")
_INSERT = f"INSERT INTO t ({', '.join(_NAMES)}) VALUES ({', '.join(f':{n}' for n in _NAMES)})"


@pytest.mark.parametrize("count", [1, 199, 200, 1000])
def test_values_that_all_rows_share_are_stored_as_they_are(store: Store, count: int) -> None:
    """Many rows take another way into SQLite, on which such values stand in the statement."""
    rows = [
        (None, 0, False, True, None if number % 7 == 6 else number, number - 50, "a:b")
        for number in range(count)
    ]
    with store.database.write() as transaction:
        transaction.execute(
            "CREATE TEMPORARY TABLE t (empty BIGINT, zero BIGINT, no BOOLEAN, yes BOOLEAN, "
            "mixed BIGINT, number BIGINT, word TEXT)"
        )
        transaction.execute_rows(_INSERT, rows)
        transaction.execute_rows(_INSERT, [])
        found = transaction.execute("SELECT * FROM t ORDER BY number").fetchall()
        assert [tuple(row) for row in found] == rows
        transaction.execute("DROP TABLE t")


@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_that_say_nothing(store: Store, width: int) -> None:
    names = _NAMES[:width]
    with store.database.write() as transaction:
        transaction.execute(f"CREATE TEMPORARY TABLE t ({', '.join(f'{n} BIGINT' for n in names)})")
        places = ", ".join(f":{name}" for name in names)
        transaction.execute_rows(f"INSERT INTO t VALUES ({places})", [(None,) * width] * 300)
        found = transaction.execute("SELECT count(*), count(empty) FROM t").fetchone()
        assert tuple(found) == (300, 0)
        transaction.execute("DROP TABLE t")


def test_ids_of_writers_at_once_do_not_meet(store: Store) -> None:
    def write(first: int) -> None:
        for number in range(10):
            jobs = range(first + number * 10, first + number * 10 + 10)
            store.write(batch(*(part(sighting(job_id)) for job_id in jobs), spool=f"spool {first}"))

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = store.runs(limit=1000)
    assert len({run.id for run in runs}) == 300
    assert {node.sighting.job_id for run in runs for node in store.nodes(run.id)} == {
        first + number for first in (0, 1000, 2000) for number in range(100)
    }


def test_two_sightings_of_a_node_in_one_batch(store: Store) -> None:
    """A cgroup that was made again: times add up, peaks do not, within a batch as over several."""
    again = sighting(birth=START + 5)
    store.write(
        batch(
            part(totals=totals(1, 30, memory_peak=700)),
            part(again, totals=totals(2, 12, memory_peak=900)),
            jobs=[info()],
        )
    )
    (run,) = store.runs()
    assert (run.cpu_time, run.memory_peak) == (42, 900)
    assert len(store.nodes(run.id)) == 2


def test_no_statement_of_writing_and_scraping_reads_a_whole_table(tmp_path: Path) -> None:
    file = str(tmp_path / "store.db")
    with Store.open(file) as store, traced(store) as seen:
        for second in range(3):
            parts = [
                part(
                    sighting(job_id),
                    series=series([second]),
                    totals=totals(second, second),
                    executables=[use(b"/bin/a", second)],
                    steps=[step("batch")],
                    final=second == 2,
                )
                for job_id in range(1, 8)
            ]
            store.write(batch(*parts, jobs=[info(job_id) for job_id in range(1, 9)]))
        store.record_jobs([info(3, end=START + 9), info(9, start=None, state="PENDING")])
        assert len(store.open_runs("c1")) == 8
        find(store, "3")
        ended = [info(job_id, end=START + 9) for job_id in range(1, 9)]
        store.record_finished("c1", ended, [], "key")
    assert len(seen) > 30
    assert scans(file, seen) == []


# Fault 21: `jobsight jobs -n 65536` failed on PostgreSQL, which permits 65,535 parameters.
def test_any_number_of_keys_can_be_looked_up(store: Store) -> None:
    with store.database.query() as transaction:
        keys = [(number,) for number in range(65_537)]
        assert list(transaction.look_up("SELECT id FROM runs WHERE id IN (:keys)", keys)) == []
