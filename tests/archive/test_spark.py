"""The archive on Spark: the shipped queries give the same answers as DuckDB."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.archive import spark
from jobsight.archive.storage import open_storage
from jobsight.archive.writer import write_archive
from jobsight.cli.main import main
from jobsight.config.settings import ArchiveSettings
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.simulation.fill import fill
from jobsight.simulation.year import Year
from jobsight.store.store import Store
from tests.archive import answers, s3, spark_cluster
from tests.archive.test_queries import QUERIES

RUNS = 400
#: Names the jars of Hadoop's package for S3, which the project does not install.
JARS = "JOBSIGHT_TEST_S3A"


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


def test_every_shipped_query_is_compared() -> None:
    assert sorted(QUERIES) == [
        "A time series of one job",
        "CPU hours by user and month",
        "Efficiency of jobs",
        "Memory requested and used",
        "Top software paths",
    ]


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", sorted(QUERIES))
def test_the_answers_are_those_of_duckdb(
    archive: ArchiveSettings, cluster: tuple[str, str], title: str
) -> None:
    address, python = cluster
    query = answers.adapted(archive, QUERIES[title])
    expected = answers.of_duckdb(archive, query)
    answer = spark.query(
        archive, address, query, python=python, options=spark_cluster.OPTIONS, timeout=300
    )
    assert expected
    assert answers.difference(expected, answer.rows) is None


@pytest.mark.long
@pytest.mark.server
@pytest.mark.timeout(1800)
def test_the_answers_from_s3_are_those_of_duckdb(
    archive: ArchiveSettings, cluster: tuple[str, str], service: s3.Service, tmp_path: Path
) -> None:
    jars = os.environ.get(JARS, "")
    if not jars:
        pytest.skip(f"needs {JARS}=HADOOP-AWS.jar:AWS-SDK.jar, Hadoop's package for S3")
    address, python = cluster
    settings = service.settings(tmp_path, "spark")
    # A space in a prefix is for the tests of the archive itself.
    settings.location = "s3://spark/archive"
    copied, location = open_storage(settings), Path(str(archive.location))
    for file in sorted(location.rglob("*.parquet")):
        temporary = copied.temporary(file.name)
        temporary.write_bytes(file.read_bytes())
        copied.put(temporary, str(file.relative_to(location)))
    options = spark_cluster.OPTIONS | {
        "spark.jars": jars.replace(":", ","),
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.hadoop.fs.s3a.endpoint": service.url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": s3.ACCESS,
        "spark.hadoop.fs.s3a.secret.key": s3.SECRET,
        "spark.hadoop.fs.s3a.aws.credentials.provider": (
            "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
        ),
        # Without a unit: a package that is older than the cluster knows none.
        "spark.hadoop.fs.s3a.threads.keepalivetime": "60",
        "spark.hadoop.fs.s3a.connection.establish.timeout": "30000",
        "spark.hadoop.fs.s3a.connection.timeout": "200000",
        "spark.hadoop.fs.s3a.connection.acquisition.timeout": "60000",
        "spark.hadoop.fs.s3a.multipart.purge.age": "86400",
    }
    for title, shipped in sorted(QUERIES.items()):
        query = answers.adapted(archive, shipped)
        answer = spark.query(settings, address, query, python=python, options=options, timeout=300)
        assert answer.rows
        assert answers.difference(answers.of_duckdb(archive, query), answer.rows) is None, title


def test_a_difference_is_seen() -> None:
    rows = [["a", 1.0, 0.25], ["b", 2.0, None]]
    assert answers.difference(rows, [["b", 2, None], ["a", 1, 0.25 + 1e-12]]) is None
    for other in (rows[:1], [rows[0], ["b", 2, 0.0]], [rows[0], ["b", 3, None]],
                  [["a", 1, 0.26], rows[1]]):  # fmt: skip
        assert answers.difference(rows, other) is not None


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
    expected = answers.of_duckdb(archive, "SELECT count(*) FROM runs")
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
