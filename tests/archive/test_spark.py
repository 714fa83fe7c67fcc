"""The archive on Spark: the shipped queries give the same answers as DuckDB."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from jobsight.archive import spark
from jobsight.archive.schema import views
from jobsight.archive.storage import open_storage
from jobsight.archive.writer import write_archive
from jobsight.cli.main import main
from jobsight.config.settings import ArchiveSettings
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.simulation.fill import fill
from jobsight.simulation.year import Year
from jobsight.store.store import Store
from tests.archive import spark_cluster
from tests.archive.test_queries import QUERIES

RUNS = 400


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> ArchiveSettings:
    folder: Path = tmp_path_factory.mktemp("archive")
    settings = ArchiveSettings(location=str(folder / "archive"))
    year = Year(RUNS, days=60)
    with Store.open(folder / "store.db") as store:
        fill(store, year)
        done = write_archive(store, open_storage(settings), year.end * SECOND)
        assert done.runs
    return settings


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    try:
        with spark_cluster.running(tmp_path_factory.mktemp("spark")) as running:
            yield running
    except spark_cluster.Unavailable as reason:
        pytest.skip(str(reason))


def plain(value: Any) -> Any:
    """Times as nanoseconds, numbers as floats."""
    if hasattr(value, "as_tuple") or (isinstance(value, int) and not isinstance(value, bool)):
        return float(value)
    return value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def of_duckdb(settings: ArchiveSettings, query: str) -> list[list[Any]]:
    connection = duckdb.connect()
    connection.execute(views(settings))
    table = connection.sql(query).to_arrow_table()
    for place, field in enumerate(table.schema):
        if str(field.type).startswith("timestamp"):
            column = table.column(place).cast("timestamp[ns, tz=UTC]").cast("int64")
            table = table.set_column(place, field.name, column)
    return [[plain(value) for value in row.values()] for row in table.to_pylist()]


def in_order(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(
        rows, key=lambda row: [str(value) for value in row if not isinstance(value, float)]
    )


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", sorted(QUERIES))
def test_the_answers_are_those_of_duckdb(
    archive: ArchiveSettings, cluster: tuple[str, str], title: str
) -> None:
    address, python = cluster
    query = QUERIES[title].strip().rstrip(";")
    if title == "A time series of one job":
        found = of_duckdb(archive, "SELECT cluster, month, job_id FROM series ORDER BY ALL LIMIT 1")
        name, month, job_id = found[0]
        query = query.replace("'c1'", f"'{name}'").replace("'2026-10'", f"'{month}'")
        query = query.replace("job_id = 2", f"job_id = {job_id:.0f}")
    expected = in_order(of_duckdb(archive, query))
    answer = spark.query(
        archive, address, query, python=python, options=spark_cluster.OPTIONS, timeout=300
    )
    got = in_order([[plain(value) for value in row] for row in answer.rows])
    assert len(got) == len(expected) > 0
    for one, other in zip(got, expected, strict=True):
        assert all(map(same, one, other)), (one, other)


@pytest.mark.long
@pytest.mark.server
def test_the_command_runs_a_query(
    archive: ArchiveSettings, cluster: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    address, python = cluster
    options = [f"--spark-option={name}={value}" for name, value in spark_cluster.OPTIONS.items()]
    common = ["archive", "sql", "--archive", str(archive.location), "--engine", address,
              "--python", python, *options]  # fmt: skip
    assert main([*common, "--json", "--query", "SELECT count(*) AS runs FROM runs"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    expected = of_duckdb(archive, "SELECT count(*) FROM runs")
    assert row == {"runs": expected[0][0]}
    assert main([*common, "--query", "SELECT nothing FROM runs"]) == 1
    assert "nothing" in capsys.readouterr().err


def test_views_for_spark(archive: ArchiveSettings, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", "sql", "--archive", str(archive.location), "--engine", "spark"]) == 0
    printed = capsys.readouterr().out
    assert "CREATE OR REPLACE TEMPORARY VIEW runs AS" in printed
    assert f"path '{archive.location}/series'" in printed


def test_an_archive_on_s3_has_the_name_of_hadoop() -> None:
    made = spark.statements(ArchiveSettings(location="s3://bucket/it's"))
    assert "path 's3a://bucket/it''s/runs'" in made["runs"][0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--engine", "presto"], "expected duckdb, spark or spark://HOST:PORT"),
        (["--engine", "spark://127.0.0.1:7077"], "needs --query"),
        (["--query", "SELECT 1"], "--query needs a cluster"),
        (["--engine", "spark://127.0.0.1:7077", "--query", "SELECT 1", "--python", "/nowhere"],
         "is not a program"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["archive", "sql", "--archive", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_python_without_pyspark_is_named(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(ConfigError, match="has no pyspark"):
        spark.find_python(str(fake))
