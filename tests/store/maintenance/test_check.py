"""Each thing that can be wrong with a store is found and named, and what can be is put right."""

import random
import re
import subprocess
import sys
from array import array
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jobsight.config.settings import RetentionSettings
from jobsight.errors import StoreError
from jobsight.model import SECOND, Series
from jobsight.store.maintenance.compact import compact
from jobsight.store.maintenance.inventory import take_inventory
from jobsight.store.maintenance.retention import prune
from jobsight.store.read import queries
from jobsight.store.schema.search_index import searched_text
from jobsight.store.series import codec
from jobsight.store.store import Store
from tests.store.contents import assert_sound, check, rows
from tests.store.many import DAY, NOW, ROWS, count, fill, summed
from tests.store.sample import START, batch, find, info, part, series, sighting, totals, use
from tests.store.sums import sum_up_everything, sums
from tests.store.test_faults import writer


def _change(store: Store, sql: str, **values: object) -> None:
    with store.database.write() as transaction:
        if store.database.postgresql:
            # As somebody would who knows better than the database.
            transaction.execute("SET LOCAL session_replication_role = replica")
        transaction.execute(sql, values)


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store, range(3), age=5, now=NOW, rows=60)
    news = [part(sighting(9, node), series=series([1, 2]), totals=totals(2, 5)) for node in "ab"]
    assert store.write(batch(info(9), *news))
    assert_sound(store)
    return store


#: What is changed, where it is found, and what is said of it.
REPAIRABLE = [
    ("UPDATE chunks SET first = first - 1 WHERE level = 2", "chunk", "column first is"),
    ("UPDATE chunks SET last = last + 1 WHERE level = 2", "chunk", "column last is"),
    ("UPDATE chunks SET rows = 7", "chunk", "column rows is 7"),
    ("UPDATE chunks SET summary = NULL", "chunk", "summary is missing"),
    ("UPDATE run_nodes SET open_chunks = 5", "on n1", "open_chunks is 5"),
    ("UPDATE run_nodes SET last_sample = 5 WHERE node = 'a'", "on a", "reach beyond"),
    ("UPDATE runs SET cpu_time = cpu_time + 1", "run c1:0:", "cpu_time is 1001, that of"),
    ("UPDATE runs SET memory_peak = 77", "run c1:9:", "memory_peak is 77, that of its nodes"),
    ("UPDATE runs SET last_seen = 5", "run c1:1:", "last_seen is 5"),
    (
        "INSERT INTO contributions (run_id, revision, data) VALUES (999, 1, '')",
        "contributions",
        "1 rows belong to no run",
    ),
]


def test_what_can_be_worked_out_again(filled: Store) -> None:
    before = rows(filled)
    for sql, where, said in REPAIRABLE:
        _change(filled, sql)
        found = check(filled)
        assert not found.sound
        assert any(where in fault.where and said in fault.text for fault in found.faults), sql
        assert check(filled, repair=True).sound
        assert_sound(filled)
        after = rows(filled)
        for table in ("chunks", "run_nodes", "contributions"):
            assert after[table] == before[table]
        assert [run.cpu_time for run in filled.runs()] == [1002, 1001, 1000, 10]


#: Of one of two months, each with a run of two owners.
WRONG_MONTHS = [
    ("UPDATE usage_by_month SET runs = runs + 1 WHERE month = 671", "usage_by_month 2025-12", 2),
    ("UPDATE software_by_month SET days = 1 WHERE month = 672", "software_by_month 2026-01", 2),
    ("DELETE FROM usage_by_month WHERE \"user\" = 'anna'", "usage_by_month 2025-12", 1),
    (
        "UPDATE software_by_month SET account = 'other' WHERE \"user\" = 'anna'",
        "software_by_month 2025-12",
        2,
    ),
    ("UPDATE usage_by_month SET month = 1200 WHERE month = 671", "usage_by_month 2070-01", 2),
]


def test_months_that_are_not_the_sums_of_their_days(store: Store) -> None:
    new_year = 20454 * 86400 * SECOND
    for job, user in enumerate(("anna", "bert"), 1):
        times = {"start": new_year - 2 * DAY, "end": new_year + 2 * DAY}
        record = info(job, **times, user=user, account="astro", cpus=4, state="COMPLETED")
        assert store.write(batch(record, part(sighting(job), totals=totals(5, 900))))
    sum_up_everything(store)
    before = sums(store)
    assert_sound(store)
    for sql, where, number in WRONG_MONTHS:
        _change(store, sql)
        found = check(store)
        assert (where, f"{number} rows are not the sums of {where.split('_')[0]}_by_day") in [
            (fault.where, fault.text) for fault in found.faults
        ], sql
        assert check(store, repair=True).sound
        assert_sound(store)
        assert sums(store) == before


def test_runs_that_the_search_does_not_find(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # The newest runs are compared with the text first; the others are found by the index.
    monkeypatch.setattr(queries, "_FIRST_WINDOW", 1)
    found = [run.info.job_id for run in filled.runs(search="ann")]
    assert len(found) == 3
    postgresql = filled.database.postgresql
    for sql, number in (
        (
            "DELETE FROM run_search"
            if postgresql
            else "INSERT INTO run_search (run_search) VALUES ('delete-all')",
            4,
        ),
        # As without the trigger.
        (
            "UPDATE run_search SET text = 'other' WHERE run_id = 2"
            if postgresql
            else "INSERT INTO run_search (run_search, rowid, text) VALUES ('delete', 2, "
            "(SELECT " + searched_text("", False) + " FROM runs WHERE id = 2))",
            1,
        ),
    ):
        _change(filled, sql)
        assert [run.info.job_id for run in filled.runs(search="ann")] != found
        assert [(fault.where, fault.text) for fault in check(filled).faults] == [
            ("run_search", f"{number} runs are not found by their text")
        ]
        assert check(filled, repair=True).sound
        assert_sound(filled)
        assert [run.info.job_id for run in filled.runs(search="ann")] == found


def test_what_cannot_be_worked_out_is_named(filled: Store) -> None:
    lowest = "(SELECT min(id) FROM paths)"
    _change(filled, f"UPDATE paths SET digest = :data WHERE id = {lowest}", data=bytes(16))
    _change(filled, "UPDATE run_nodes SET job_id = 4 WHERE node = 'a'")
    _change(
        filled,
        "INSERT INTO batches (spool_id, first, last) SELECT spool_id, last, last + 9 FROM batches",
    )
    said = [f"{fault.where}: {fault.text}" for fault in check(filled, repair=True).faults]
    assert not check(filled).sound
    for expected in (
        r"path \d+: its digest is not that of its bytes",
        r"run c1:9:\S+: its node a is that of another job",
        r"spool \d+: batch \d+ is recorded twice",
    ):
        assert any(re.fullmatch(expected, line) for line in said), said


def test_rows_without_their_parents_are_named(filled: Store) -> None:
    if not filled.database.postgresql:
        with filled.database.alone() as connection:
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute("DELETE FROM run_nodes WHERE node = 'a'")
            connection.execute("PRAGMA foreign_keys = ON")
    else:
        _change(filled, "DELETE FROM run_nodes WHERE node = 'a'")
    found = check(filled)
    assert [fault.text for fault in found.faults if fault.where.startswith("chunks")] == [
        "it refers to a missing row of run_nodes"
    ]


def test_a_chunk_whose_bytes_are_damaged(filled: Store) -> None:
    run = find(filled, "1")
    _change(
        filled,
        "UPDATE chunks SET data = :data WHERE run_node_id IN "
        f"(SELECT id FROM run_nodes WHERE run_id = {run.id})",
        data=b"\x01nothing",
    )
    for more in ({}, {"repair": True}):
        found = check(filled, **more)
        (fault,) = found.faults
        assert fault.where.endswith(f"of run {run.run} on n1")
        assert "damaged" in fault.text
        assert not found.sound
    assert prune(filled.database, RetentionSettings(series=1), NOW)["downsampled"].damaged == 1
    assert check(filled, remove_damaged=True).sound
    assert filled.series(run.id) == []
    assert_sound(filled)


def test_times_that_are_not_in_order(filled: Store) -> None:
    times = np.array([START, START - SECOND])
    data = codec.encode_plain(times, {"cpu.time": np.array([1, 2])})
    _change(filled, "UPDATE chunks SET data = :data WHERE level = 2", data=data)
    found = check(filled, repair=True)
    assert not found.sound
    assert "its times are not in order" in found.faults[0].text


@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_is_damaged(tmp_path: Path, seed: int) -> None:
    place = tmp_path / "store.db"
    with Store.open(place) as store:
        fill(store, range(100), age=5, now=NOW, rows=5)
    data = bytearray(place.read_bytes())
    choose = random.Random(seed)
    for _ in range(40):
        data[choose.randrange(100, len(data))] ^= 0xFF
    place.write_bytes(data)
    try:
        with Store.open(place) as store:
            found = check(store)
    except StoreError:
        # Without its tables there is nothing to check.
        return
    assert not found.sound
    assert any(fault.where == "the database" for fault in found.faults)


def test_a_thinned_store_is_sound_and_its_summary_is_looked_at(store: Store) -> None:
    fill(store, range(3), age=50, now=NOW)
    summed(store)
    assert prune(store.database, RetentionSettings(series=10), NOW)["downsampled"].runs == 3
    assert_sound(store)
    wrong = codec.compress(msgspec.msgpack.encode({}))
    _change(store, "UPDATE chunks SET summary = :data WHERE id = (SELECT min(id) FROM chunks)",
            data=wrong)  # fmt: skip
    assert [fault.text for fault in check(store).faults] == [
        "its summary is not that of a downsampled series"
    ]


def test_compact_joins_what_was_left_apart(store: Store) -> None:
    for second in range(0, 60, 2):
        assert store.write(batch(part(series=series([second, second + 1]))))
    assert store.write(batch(part(sighting(8), series=series([1, 2])), info(8)))
    assert store.write(batch(info(7, end=START + 100 * SECOND, state="NODE_FAIL")))
    run = find(store)
    before = store.series(run.id)[0].columns["cpu.time"].tolist()
    assert store.info().chunks == 31
    done = compact(store.database, now=NOW)
    assert (done.nodes, done.chunks_before, done.chunks_after) == (1, 30, 1)
    assert 0 < done.series_after < done.series_before
    assert store.series(run.id)[0].columns["cpu.time"].tolist() == before
    assert count(store, "chunks", "level = 2") == 1
    assert_sound(store)
    # What is still open is left alone, and so is what is done.
    assert compact(store.database, now=NOW).nodes == 0


def test_compact_gives_the_room_of_what_went_back(store: Store) -> None:
    fill(store, range(200), age=50, now=NOW)
    summed(store)
    prune(store.database, RetentionSettings(runs=10), NOW, pause=lambda seconds: None)
    assert take_inventory(store.database).runs == 0
    done = compact(store.database, vacuum=False)
    assert done.size_after == done.size_before or store.database.postgresql
    if not store.database.postgresql:
        done = compact(store.database)
        assert done.size_after < done.size_before / 2
        assert Path(f"{store.database.where}-wal").stat().st_size == 0


def test_what_nothing_uses_and_what_came_late_is_noted(store: Store) -> None:
    fill(store, [1], age=50, now=NOW)
    summed(store)
    prune(store.database, RetentionSettings(executables=10, downsampled=10), NOW)
    _change(store, "INSERT INTO paths (digest, path) VALUES (:data, :data)", data=b"x" * 16)
    start = find(store, "1").start
    sample = Series(array("q", [start + 1]), {"cpu.time": array("q", [1])})
    late = part(sighting(1, birth=start), executables=[use(b"/late", 1)], series=sample)
    assert store.write(batch(late))
    assert [note.split(" ", 1)[1] for note in check(store).notes] == [
        "paths are used by nothing; compact removes them",
        "runs got data after theirs was removed by age",
    ]
    compact(store.database, vacuum=False)
    assert check(store).notes == []
    summed(store)
    taken = prune(store.database, RetentionSettings(executables=10, downsampled=10), NOW)
    assert (taken["executables"].rows, taken["series"].rows) == (1, 1)
    assert store.info().paths == 0


def test_what_a_store_holds(store: Store) -> None:
    empty = take_inventory(store.database)
    assert (empty.runs, empty.bytes_a_value, empty.oldest, empty.agents) == (0, None, None, [])
    fill(store, range(300), age=50, now=NOW, rows=30)
    fill(store, [999], age=5, now=NOW)
    assert store.write(batch(info(1000)))
    prune(store.database, RetentionSettings(series=1), NOW)
    found = take_inventory(store.database)
    assert (found.runs, found.open_runs, found.nodes, found.chunks) == (302, 1, 301, 301)
    assert found.downsampled_chunks >= 1
    assert {name: held.rows for name, held in found.classes.items()} == {
        "series": 301, "executables": 301 * 3 + 301 + 7, "runs": 904,
        "rollups": 0, "findings": 0, "scheduler": 0, "agents": 3, "exports": 0,
        "dead letters": 0, "accounts": 0, "mail": 0, "nodes": 0,
    }  # fmt: skip
    sizes = [held.bytes for held in found.classes.values()]
    assert all(size is not None and size > 0 for size in sizes)
    assert sum(size or 0 for size in sizes) <= found.size
    assert found.bytes_a_value is not None
    assert 0.1 < found.bytes_a_value < 16
    assert [agent.node for agent in found.agents] == ["n1"]
    assert (found.newest, len(store.series(find(store, "999").id)[0].times) < ROWS) == (
        max(run.start for run in store.runs()), True,
    )  # fmt: skip


def test_a_store_that_is_written_to_is_sound(store: Store, location: str) -> None:
    with writer(location, 0, 10**6) as one, writer(location, 10**6, 2 * 10**6, "other") as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        looked = 0
        while looked < 8 or store.info().rows < 150:
            found = check(store)
            assert (found.faults, found.notes) == ([], [])
            looked += 1
        for process in (one, other):
            process.kill()
    assert_sound(store)


_PRUNE = """
import sys
from jobsight.config.settings import RetentionSettings
from jobsight.store.maintenance import retention
from jobsight.store.store import Store
from tests.store.many import NOW
retention.NODES_BATCH_SIZE = retention.DOWNSAMPLED_BATCH_SIZE = 5
keep = RetentionSettings(series=10, downsampled=30, executables=30, runs=60)
with Store.open(sys.argv[1]) as store:
    retention.prune(store.database, keep, NOW, pause=lambda seconds: print("rest", flush=True))
"""


def test_kills_in_the_middle_of_pruning(store: Store, location: str) -> None:
    for job, age in enumerate((5, 20, 50, 80)):
        fill(store, range(job * 100, job * 100 + 30), age=age, now=NOW, rows=30)
    summed(store)
    choose = random.Random(7)
    command = [sys.executable, "-c", _PRUNE, location]
    for _ in range(2):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        ) as process:
            assert process.stdout is not None
            for _ in range(choose.randrange(1, 7)):
                assert process.stdout.readline() == b"rest\n"
            process.kill()
        assert_sound(store)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[3])
    assert_sound(store)
    assert store.count_runs() == 90
    assert count(store, "chunks") == 60
    assert count(store, "executables") == count(store, "steps") * 2 == 120
