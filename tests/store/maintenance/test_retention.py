"""What goes by its age and what stays, on SQLite and PostgreSQL."""

import threading

import pytest
from sqlalchemy import text

from jobsight.config.settings import RetentionSettings
from jobsight.model import SECOND
from jobsight.reports import series as pages
from jobsight.store.maintenance import retention
from jobsight.store.maintenance.retention import (
    DOWNSAMPLED,
    EXECUTABLES,
    SERIES,
    classes,
    preview,
    prune,
)
from jobsight.store.store import Store
from tests.store.many import DAY, NOW, ROWS, count, cpu_growth, fill, summed
from tests.store.sample import batch, find, info, part, sighting, use
from tests.waiting import wait_until

FOREVER = RetentionSettings(series=0)


def _prune(store: Store, **keep: float) -> dict[str, retention.Pruned]:
    settings = RetentionSettings(**({"series": 0} | keep))
    return prune(store.database, settings, NOW, pause=lambda seconds: None)


def _pruned(store: Store, job: int) -> int:
    with store.database.read() as connection:
        return connection.scalar(text(f"SELECT pruned FROM runs WHERE job_id = {job}")) or 0


def test_nothing_goes_where_everything_is_kept(store: Store) -> None:
    fill(store, range(3), age=3650, now=NOW)
    summed(store)
    before = store.info()
    assert {name: taken.runs for name, taken in _prune(store).items()} == {"paths": 0}
    assert store.info() == before
    # By default, too, no run, executable or time series is lost.
    kept = {one.name for one in classes(RetentionSettings(), NOW)}
    assert kept == {"downsampled"}


def test_series_are_thinned_once_and_their_page_is_drawn(store: Store) -> None:
    fill(store, [1], age=100, now=NOW)
    fill(store, [2], age=10, now=NOW)
    old, new = find(store, "1"), find(store, "2")
    before, summary = cpu_growth(store, old.id), store.summaries(old.id)
    taken = _prune(store, series=30)["downsampled"]
    assert (taken.runs, taken.rows) == (1, 1)
    assert 0 < taken.bytes_left < taken.bytes
    (found,) = store.series(old.id)
    assert len(found.times) < ROWS / 4
    assert cpu_growth(store, old.id) == before
    assert store.summaries(old.id) == summary
    assert len(store.series(new.id)[0].times) == ROWS
    reply = pages.reply("x", store.series(old.id), ["cpu.time"], 600)
    drawn = reply.nodes[0].metrics["cpu.time"].mean
    assert drawn[1:] == pytest.approx([20 / 30] * (len(drawn) - 1), rel=1e-3)
    assert count(store, "chunks", f"resolution <= {300 * SECOND} AND level = 2") == 1
    assert (_pruned(store, 1), _pruned(store, 2)) == (DOWNSAMPLED, 0)
    assert _prune(store, series=30)["downsampled"].runs == 0


def test_each_class_goes_at_its_own_age(store: Store) -> None:
    keep = {"series": 10, "downsampled": 20, "executables": 30, "runs": 40}
    for job, age in enumerate((5, 15, 25, 35, 45)):
        fill(store, [job], age=age, now=NOW)
    summed(store)
    expected = preview(store.database, RetentionSettings(**keep), NOW)
    taken = _prune(store, **keep)
    for name in ("runs", "series", "executables", "downsampled"):
        assert (expected[name].runs, expected[name].rows, expected[name].bytes) == (
            taken[name].runs, taken[name].rows, taken[name].bytes,
        )  # fmt: skip
    states = [_pruned(store, job) for job in range(4)]
    assert states == [0, DOWNSAMPLED, SERIES, SERIES | EXECUTABLES]
    rows = [[len(found.times) for found in store.series(run.id)] for run in store.runs()]
    assert [bool(found) for found in rows] == [True, True, False, False]
    assert [len(store.executables(run.id)) for run in store.runs()] == [2, 2, 2, 0]
    assert [len(store.steps(run.id)) for run in store.runs()] == [1, 1, 1, 0]
    # What a run used in all is known as long as the run is.
    assert [run.cpu_time for run in store.runs()] == [1000, 1001, 1002, 1003]
    assert (store.info().nodes, count(store, "contributions")) == (4, 4)
    assert taken["paths"].rows == 4
    assert count(store, "contributions", "dropped") == 0


def test_a_run_that_is_open_is_never_touched(store: Store) -> None:
    start = NOW - 3000 * DAY
    record = info(9, start, state="RUNNING")
    assert store.write(batch(record, part(sighting(9, birth=start), executables=[use(b"/x", 1)])))
    summed(store)
    before = store.info()
    _prune(store, series=1, downsampled=1, executables=1, runs=1)
    assert store.info() == before


def test_sums_by_day_stay_and_what_is_not_summed_waits(store: Store) -> None:
    fill(store, [1], age=50, now=NOW)
    assert find(store, "1").id == 1
    with store.database.write() as transaction:
        transaction.execute(
            "INSERT INTO usage_by_day"
            " VALUES (20000, 'c1', 'anna', '', '', 1, 9, 5, 6, 7, 0, 0, 0, 0, 8)"
        )
        for name, run_id in (("one", 1), ("one", 999), ("other", 1)):
            key = {"name": name, "run_id": run_id}
            transaction.execute("INSERT INTO exported (name, run_id) VALUES (:name, :run_id)", key)
    taken = _prune(store, runs=10, executables=10)
    assert (taken["runs"].runs, taken["runs"].waiting) == (0, 1)
    assert store.info().runs == 1
    summed(store)
    assert _prune(store, runs=10)["runs"].runs == 1
    assert store.info().runs == count(store, "contributions") == store.info().paths == 0
    assert count(store, "usage_by_day", "runs = 1 AND memory_time = 8") == 1
    assert count(store, "exported") == count(store, "exported", "run_id = 999") == 1


def test_only_what_is_archived(store: Store) -> None:
    fill(store, range(4), age=50, now=NOW)
    summed(store)
    with store.database.write() as transaction:
        mark = "UPDATE runs SET archived = 'c1/2020-01', archived_updated = updated"
        transaction.execute(f"{mark} WHERE job_id = 2")
        # Changed since.
        transaction.execute(f"{mark} - 1 WHERE job_id = 3")
    for keep in ({"series": 1}, {"downsampled": 1}, {"executables": 1}, {"runs": 1}):
        taken = _prune(store, **keep, only_archived=True)
        (name,) = set(taken) - {"paths"}
        assert (taken[name].runs, taken[name].waiting) == (1, 3)
    assert sorted(run.info.job_id for run in store.runs()) == [0, 1, 3]


def test_runs_of_many_nodes_go_in_several_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "NODES_BATCH_SIZE", 3)
    start, end = NOW - 50 * DAY, NOW - 49 * DAY
    seen = [sighting(1, f"n{number}", start) for number in range(8)]
    parts = [part(one, executables=[use(b"/bin/a", 1)], final=True) for one in seen]
    assert store.write(batch(info(1, start, end=end), info(2, start, end=end), *parts))
    summed(store)
    rests: list[float] = []
    prune(store.database, RetentionSettings(series=0, runs=1), NOW, pause=rests.append)
    assert len(rests) == 4
    assert store.info().nodes == store.info().runs == store.info().paths == 0


def test_what_comes_while_it_is_pruned_stays(store: Store) -> None:
    """A run that changes between being found and being removed waits for the next round."""
    fill(store, range(3), age=50, now=NOW)
    summed(store)
    first = True

    def rest(seconds: float) -> None:
        nonlocal first
        if first:
            first = False
            news = part(sighting(1, "n2", NOW - 51 * DAY), executables=[use(b"/apps/1/new", 5)])
            assert store.write(batch(news))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "NODES_BATCH_SIZE", 1)
        prune(store.database, RetentionSettings(series=0, runs=1), NOW, pause=rest)
    assert [run.info.job_id for run in store.runs()] == [1]


def test_two_thousand_runs_while_others_write(store: Store) -> None:
    fill(store, range(2000), age=50, now=NOW, rows=0)
    fill(store, range(5000, 5020), age=5, now=NOW)
    summed(store)
    stopped = threading.Event()
    errors: list[BaseException] = []
    written = 0

    def write() -> None:
        nonlocal written
        try:
            while not stopped.is_set():
                # The paths are those of the runs that go.
                uses = [use(b"/bin/of job %d" % (written * 50 + one), 1) for one in range(50)]
                assert store.write(batch(part(sighting(9000 + written), executables=uses)))
                written += 1
                stopped.wait(0.005)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_until(lambda: written or errors)
        taken = _prune(store, runs=10, series=1)
    finally:
        stopped.set()
        thread.join()
    assert not errors
    assert written > 0
    assert taken["runs"].runs == 2000
    assert taken["downsampled"].runs == 20
    assert store.count_runs() == 20 + written
    for run in store.runs(limit=20 + written):
        assert len(store.executables(run.id)) == (2 if run.info.end else 50)
    assert count(store, "paths", "id NOT IN (SELECT path_id FROM executables)") == 0


def test_what_is_due_is_found_by_an_index(store: Store) -> None:
    keep = RetentionSettings(series=10, downsampled=20, executables=30, runs=40, only_archived=True)
    with store.database.write() as transaction:
        transaction.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
            'INSERT INTO runs (cluster, job_id, start, source, provisional, updated, "end", pruned)'
            f" SELECT 'c', i, i, 's', false, 0, {NOW - 30 * DAY} - i, i & 7 FROM n"
        )
        if store.database.postgresql:
            transaction.execute("ANALYZE runs")
    explain = "EXPLAIN " if store.database.postgresql else "EXPLAIN QUERY PLAN "
    with store.database.read() as connection:
        for one in classes(keep, NOW):
            for query in one.queries():
                values = {"end": one.since, "until": one.until, "id": -1}
                plan = connection.execute(text(explain + query), values)
                said = " ".join(str(row) for row in plan)
                assert "ix_runs_" in said
                assert "Seq" not in said
                assert "SCAN" not in said
