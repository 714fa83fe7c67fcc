"""The queries of docs/archive.md, asked of DuckDB and compared with the store."""

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from jobsight.archive.part import month_of
from jobsight.archive.schema import views
from jobsight.archive.storage import Storage, open_storage
from jobsight.archive.writer import write_archive
from jobsight.config.settings import ArchiveSettings, S3Settings
from jobsight.model import MISSING, RunReference
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.text import readable_path
from tests.archive import months, s3
from tests.archive.months import LATER, OCTOBER

DOCUMENT = Path(__file__).parents[2] / "docs" / "archive.md"
QUERIES = dict(
    re.findall(r"^### (.*?)\n\n```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
)
HOUR = 3.6e12


def finished(store: Store) -> list[StoredRun]:
    return [run for run in store.runs() if run.info.end is not None]


def cpu_hours(store: Store) -> list[tuple[Any, ...]]:
    sums: dict[Any, list[int]] = defaultdict(list)
    for run in finished(store):
        sums[month_of(run.start), run.info.user].append(run.cpu_time or 0)
    return [
        (*key, len(times), sum(times) / HOUR if sum(times) else None) for key, times in sums.items()
    ]


def top_paths(store: Store) -> list[tuple[Any, ...]]:
    found: dict[bytes, list[Any]] = defaultdict(lambda: [0, 0, set()])
    for run in finished(store):
        for row in store.executables(run.id):
            figures = found[row.use.path]
            figures[0] += row.use.cpu_time
            figures[1] += row.use.executions
            figures[2].add(run.id)
    return [
        (readable_path(path), time / HOUR, executions, len(runs))
        for path, (time, executions, runs) in found.items()
    ]


def efficiency(store: Store) -> list[tuple[Any, ...]]:
    return [
        (
            run.info.cluster,
            run.info.job_id,
            run.info.user,
            run.info.cpus,
            run.cpu_time / (run.info.cpus * (run.info.end - run.start)),
        )
        for run in finished(store)
        if run.info.cpus and run.cpu_time is not None and run.info.end is not None
    ]


def curve(store: Store) -> list[tuple[Any, ...]]:
    run = store.find(RunReference(2))
    found = []
    for series in store.series(run.id, ["cpu.time"]):
        # The sightings of a node lie an hour apart.
        breaks = np.flatnonzero(np.diff(series.times) > 10**12) + 1
        pieces = zip(
            np.split(series.times, breaks),
            np.split(series.columns["cpu.time"], breaks),
            strict=True,
        )
        for times, values in pieces:
            for place, (time, value) in enumerate(
                zip(times.tolist(), values.tolist(), strict=True)
            ):
                known = None if value == MISSING else value
                before = values[place - 1].item() if place else MISSING
                cores = None
                if known is not None and before != MISSING:
                    cores = (known - before) / (time - times[place - 1].item())
                found.append((series.node, time, known, cores))
    return found


def memory(store: Store) -> list[tuple[Any, ...]]:
    sums: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for run in finished(store):
        used = run.memory_used_peak if run.memory_used_peak is not None else run.memory_peak
        if run.info.memory and used is not None:
            sums[run.info.user, run.info.account].append((run.info.memory, used))
    return [
        (*key, len(rows), sum(row[0] for row in rows) / 2**30, sum(row[1] for row in rows) / 2**30)
        for key, rows in sums.items()
    ]


ANSWERS: dict[str, Callable[[Store], list[tuple[Any, ...]]]] = {
    "CPU hours by user and month": cpu_hours,
    "Top software paths": top_paths,
    "Efficiency of jobs": efficiency,
    "A time series of one job": curve,
    "Memory requested and used": memory,
}


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    """The rows, times as numbers: Python has none of nanoseconds."""
    table = connection.sql(query).to_arrow_table()
    for place, field in enumerate(table.schema):
        if str(field.type).startswith("timestamp"):
            table = table.set_column(place, field.name, table.column(place).cast("int64"))
    return [tuple(row.values()) for row in table.to_pylist()]


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    rounded = [
        tuple(round(cell, 9) if isinstance(cell, float) else cell for cell in row) for row in rows
    ]
    return sorted(rounded, key=repr)


def test_every_query_of_the_document_is_tried() -> None:
    assert QUERIES.keys() == ANSWERS.keys()


def test_the_queries(filled: Store, place: Storage, settings: ArchiveSettings) -> None:
    write_archive(filled, place, LATER)
    # Versions that no longer count must not be counted.
    months.late(filled, 1, OCTOBER, name="changed")
    months.late(filled, 2, OCTOBER + months.HOUR, name="changed")
    assert write_archive(filled, place, LATER).again == 2
    with duckdb.connect() as connection:
        connection.execute(views(settings))
        for name, query in QUERIES.items():
            found = ask(connection, query)
            assert len(found) > 1 or name == "Memory requested and used"
            assert in_order(found) == in_order(ANSWERS[name](filled)), name


def test_files_of_an_attempt_that_never_ended_count_for_nothing(
    filled: Store, place: Storage, settings: ArchiveSettings
) -> None:
    write_archive(filled, place, LATER)
    (file,) = Path(place.location).glob("executables/*/month=2026-10/*.parquet")
    file.with_name("20200101T000000Z-00000000.parquet").write_bytes(file.read_bytes())
    (runs,) = Path(place.location).glob("runs/*/month=2026-11/*.parquet")
    runs.unlink()
    with duckdb.connect() as connection:
        connection.execute(views(settings))
        assert ask(connection, "SELECT count(*) FROM runs") == [(2,)]
        found = ask(connection, "SELECT count(DISTINCT job_id) FROM executables")
        assert found == [(2,)]


def test_clusters_with_numbers_for_names(
    store: Store, place: Storage, settings: ArchiveSettings
) -> None:
    for name in ("7", "a b/c=d'"):
        months.other_cluster(store, name)
    write_archive(store, place, LATER)
    with duckdb.connect() as connection:
        connection.execute(views(settings))
        found = ask(connection, "SELECT cluster, month FROM runs ORDER BY cluster")
    assert found == [("7", "2026-10"), ("a b/c=d'", "2026-10")]


@pytest.mark.parametrize("location", ["sqlite"], indirect=True)
def test_views_of_a_service(
    filled: Store, service: s3.Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = service.settings(tmp_path, "for-duckdb")
    write_archive(filled, open_storage(settings), LATER)
    made = views(settings)
    assert made.startswith("CREATE OR REPLACE SECRET jobsight (TYPE s3, PROVIDER credential_chain")
    assert f"ENDPOINT '{service.url.removeprefix('http://')}'" in made
    assert s3.SECRET not in made


def test_endpoint_and_region_are_quoted() -> None:
    service = S3Settings(endpoint="https://a'); DROP TABLE x; --", region="b'c")
    made = views(ArchiveSettings(location="s3://bucket/o'clock", s3=service))
    assert "ENDPOINT 'a''); DROP TABLE x; --'," in made
    assert "REGION 'b''c')" in made
    assert "'s3://bucket/o''clock/runs/" in made
