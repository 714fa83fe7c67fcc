"""What is archived: every finished run once, whole, and again when it changed."""

import json
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import event

from jobsight.archive import writer
from jobsight.archive.reader import Reader, attach
from jobsight.archive.storage import Storage
from jobsight.archive.verify import check_archive, list_months
from jobsight.archive.writer import write_archive
from jobsight.config.settings import ArchiveSettings
from jobsight.model import SECOND
from jobsight.store.store import Store
from jobsight.store.write.archiving import archive_lock
from jobsight.util.locks import AlreadyRunning
from tests.archive import months
from tests.archive.months import FINISHED, HOUR, LATER, NOVEMBER, OCTOBER
from tests.store.many import count
from tests.store.sample import batch, info, part, sighting


def test_every_finished_run_once(filled: Store, place: Storage) -> None:
    done = write_archive(filled, place, LATER)
    assert (done.runs, done.again, done.parts) == (6, 0, 2)
    assert done.months == {"c1 2026-10": 2, "c1 2026-11": 4}
    assert [job for job, _ in months.archived_rows(Path(place.location))] == list(FINISHED)
    assert write_archive(filled, place, LATER).runs == 0
    assert check_archive(place, filled).problems == []
    assert [row.runs for row in list_months(place)] == [2, 4]
    assert not list(Path(place.location).rglob("*.new"))


def test_only_what_ended_before(filled: Store, place: Storage) -> None:
    dry = write_archive(filled, place, NOVEMBER, dry_run=True)
    assert (dry.runs, dry.months) == (2, {"c1 2026-10": 2})
    assert not Path(place.location).exists()
    assert write_archive(filled, place, NOVEMBER).runs == 2
    assert write_archive(filled, place, LATER).runs == 4


def test_the_columns_have_types_and_meanings(filled: Store, place: Storage) -> None:
    write_archive(filled, place, LATER)
    (file,) = Path(place.location).glob("runs/cluster=c1/month=2026-10/*.parquet")
    assert pq.read_schema(file).field("end").type == pa.timestamp("ns", "UTC")
    first, second = months.rows(file)
    assert (first["user"], first["memory"], first["time_limit"]) == ("anna", 2**34, 2 * HOUR)
    columns = pq.ParquetFile(file).read(["memory_bytes", "time_limit_seconds"]).to_pylist()[0]
    assert columns == {"memory_bytes": 2**34, "time_limit_seconds": 7200}
    assert (first["start"], first["end"]) == (OCTOBER, OCTOBER + HOUR)
    assert second["nodes"] == ["n1", "n2"]
    assert second["tres"] == [("cpu", 16), ("gres/gpu:a100", 2)]
    assert (second["node_count"], second["executable_count"], second["step_count"]) == (3, 9, 6)
    (file,) = Path(place.location).glob("executables/cluster=c1/month=2026-10/*.parquet")
    paths = {row["path"]: row["path_text"] for row in months.rows(file)}
    assert paths[months.PATHS[1]] == r"/home/anna/a \xff\x0a'path'"
    (file,) = Path(place.location).glob("nodes/cluster=c1/month=2026-10/*.parquet")
    row = months.rows(file)[0]
    assert (row["cpu_time"], row["cpu_source"], row["swap_peak"]) == (2 * 10**12, "cgroup v2", None)
    assert json.loads(row["coverage"])["io"]["reason"] == "no"
    assert dict(row["metrics"]) == {"cpu.time": "int64", "load": "double"}


def test_a_run_that_changed_comes_again(
    filled: Store, place: Storage, settings: ArchiveSettings
) -> None:
    write_archive(filled, place, LATER)
    months.late(filled, 1, OCTOBER, name="astronomy")
    before = months.everything(filled)
    done = write_archive(filled, place, LATER)
    assert (done.runs, done.again) == (1, 1)
    assert len(months.archived_rows(Path(place.location))) == 7
    (newest,) = [run for run in Reader(place).versions("c1", "2026-10") if run.job_id == 1]
    assert Reader(place).run(newest)["name"] == "astronomy"
    months.prune(filled)
    attach(filled, settings)
    assert months.everything(filled) == before


def test_a_pruned_run_that_changed_is_archived_whole(filled: Store, place: Storage) -> None:
    before = months.everything(filled)
    write_archive(filled, place, LATER)
    months.prune(filled)
    months.late(filled, 1, OCTOBER, name="astronomy")
    assert write_archive(filled, place, LATER).again == 1
    (run,) = [run for run in filled.runs() if run.info.job_id == 1]
    # It is back, until it is pruned the next time.
    found = months.content(filled, run)
    (key,) = [key for key in before if key.startswith("c1:1:")]
    assert found == before[key][3:]
    (newest,) = [run for run in Reader(place).versions("c1", "2026-10") if run.job_id == 1]
    assert Reader(place).run(newest)["sample_count"] == 41


def test_a_run_with_another_start_leaves_nothing_behind(filled: Store, place: Storage) -> None:
    write_archive(filled, place, LATER)
    # The scheduler records it in the next month, under the same restart.
    with filled.database.write() as transaction:
        transaction.execute(
            "UPDATE runs SET start = :start, updated = updated + 1, archived_updated = NULL "
            "WHERE job_id = 1",
            {"start": NOVEMBER + 5},
        )
    assert write_archive(filled, place, LATER).again == 1
    found = [(run.job_id, run.start) for run in Reader(place).versions("c1")]
    assert (1, NOVEMBER + 5) in found
    assert (1, OCTOBER) not in found
    assert len(found) == len(FINISHED)
    assert write_archive(filled, place, LATER).runs == 0
    assert check_archive(place, filled).problems == []


def test_what_waits_is_found_without_a_look_at_the_rest(filled: Store, place: Storage) -> None:
    with filled.database.write() as transaction:
        transaction.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) "
            "INSERT INTO runs (cluster, job_id, start, source, provisional, updated, "
            '"end", archived_updated, archived_start) '
            f"SELECT 'c', i, i, 's', false, 0, {OCTOBER} + i, 0, i FROM n"
        )
        if filled.database.postgresql:
            transaction.execute("ANALYZE runs")
    asked: list[tuple[str, Any]] = []

    def listen(connection: Any, cursor: Any, statement: str, values: Any, *_: object) -> None:
        if "archived_updated IS NULL" in statement and statement.startswith("SELECT"):
            asked.append((statement, values))

    event.listen(filled.database.engine, "before_cursor_execute", listen)
    assert write_archive(filled, place, LATER).runs == 6
    event.remove(filled.database.engine, "before_cursor_execute", listen)
    assert len(asked) == 2
    explain = "EXPLAIN " if filled.database.postgresql else "EXPLAIN QUERY PLAN "
    with filled.database.read() as connection:
        for statement, values in asked:
            plan = connection.exec_driver_sql(explain + statement, values)
            assert "ix_runs_unarchived" in " ".join(str(row) for row in plan)


def test_a_run_that_changes_meanwhile_waits_for_the_next_round(
    filled: Store, place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Storage.put

    def change_and_put(self: Storage, temporary: Path, name: str) -> None:
        if name.startswith("runs/cluster=c1/month=2026-10"):
            months.late(filled, 2, OCTOBER + HOUR, name="meanwhile")
        put(self, temporary, name)

    monkeypatch.setattr(Storage, "put", change_and_put)
    assert write_archive(filled, place, LATER).runs == 6
    monkeypatch.undo()
    assert write_archive(filled, place, LATER).again == 1
    (newest,) = [run for run in Reader(place).versions("c1") if run.job_id == 2]
    assert Reader(place).run(newest)["name"] == "meanwhile"


def test_long_months_become_several_parts(
    filled: Store, place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_PART_RUNS", 3)
    monkeypatch.setattr(writer, "_BATCH_SIZE", 2)
    # Job 2 has three sightings, and is read alone.
    monkeypatch.setattr(writer, "_MAX_NODES", 2)
    seen: list[tuple[int, int]] = []
    done = write_archive(filled, place, LATER, progress=lambda *numbers: seen.append(numbers))
    assert (done.runs, done.parts) == (6, 3)
    assert seen[-1] == (6, 6)
    assert [job for job, _ in months.archived_rows(Path(place.location))] == list(FINISHED)
    assert check_archive(place, filled).problems == []


def test_large_parts_are_closed_early(
    filled: Store, place: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_BATCH_SIZE", 1)
    monkeypatch.setattr(writer, "PART_SIZE", 1)
    assert write_archive(filled, place, LATER).parts == 6
    assert [job for job, _ in months.archived_rows(Path(place.location))] == list(FINISHED)
    assert check_archive(place, filled).problems == []


def test_two_archivers_do_not_meet(filled: Store, place: Storage) -> None:
    with archive_lock(filled.database), pytest.raises(AlreadyRunning, match="is already running"):
        write_archive(filled, place, LATER)
    assert write_archive(filled, place, LATER).runs == 6


def test_names_of_clusters_are_no_paths(filled: Store, place: Storage) -> None:
    for name in ("../up=x y", "123"):
        months.other_cluster(filled, name)
    assert write_archive(filled, place, LATER).runs == 8
    assert {row.cluster for row in list_months(place)} == {"c1", "../up=x y", "123"}
    beside = {file.name for file in Path(place.location).parent.iterdir()}
    assert beside <= {"archive", "store.db", "store.db-wal", "store.db-shm"}
    assert check_archive(place, filled).problems == []


def test_curves_of_two_shapes(store: Store, place: Storage, settings: ArchiveSettings) -> None:
    names = ["x", "X", "time", "month", "x (double)"]
    for job in range(1, 7):
        kind = "d" if job % 2 else "q"
        more = {name: array(kind, [job, job + 1, 3]) for name in names[: job % 6]}
        series = months.curves(OCTOBER, 3, **more)
        record = info(job, OCTOBER, end=NOVEMBER)
        store.write(batch(record, part(sighting(job, birth=OCTOBER), series=series, final=True)))
    before = months.everything(store)
    write_archive(store, place, LATER)
    months.prune(store)
    attach(store, settings)
    assert months.everything(store) == before
    assert count(store, "chunks") == 0
    (run,) = [run for run in store.runs() if run.info.job_id == 5]
    (series_of_run,) = store.series(run.id, ["X", "nobody's"], OCTOBER + 5 * SECOND)
    assert series_of_run.columns["X"].tolist() == [6.0, 3.0]
    assert list(series_of_run.columns) == ["X"]
