"""Databases that the real SAMS aggregator made, in both of its schemas, brought along."""

import hashlib
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobsight.cli.main import main
from jobsight.model import SECOND, RunReference
from jobsight.sams.import_database import SamsDatabase, import_database
from jobsight.sams.settings import DatabaseKeys
from jobsight.store.store import Store
from tests.agent.outputs.conftest import HOSTILE
from tests.ports import free_port
from tests.sams.documents import START, Site, booked, document, encode
from tests.sams.test_aggregator import aggregate
from tests.waiting import wait_until

_PATHS = ["/usr/bin/bash", "/sw/gmx", "/home/a/100%", "/home/b/back\\slash", "/home/c/two\nlines"]


def documents(count: int = 60) -> list[dict[str, Any]]:
    """Jobs of one to three nodes, with times that floats do not hold exactly."""
    numbers = random.Random(4)
    made = []
    for job in range(1, count + 1):
        start = START + job * 100
        for node in range(numbers.randint(1, 3)):
            execs = {
                path: {"user": numbers.expovariate(0.01), "system": numbers.random() / 3}
                for path in numbers.sample(_PATHS, numbers.randint(1, 4))
            }
            one = document(job * 37, f"n{node}", start=start, execs=execs)
            info = one["sams.sampler.SlurmInfo"]
            info["starttime"] = _wall(start)
            info["username"], info["account"] = f"u{job % 7}", f"p{job % 3}"
            made.append(one)
    return made


def _wall(start: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(start, UTC).strftime("%Y-%m-%dT%H:%M:%S")


_SHARDS = """sams.aggregator.SoftwareAccounting:
  db_path: {folder}/db
  file_pattern: 'sa-%(jobid_hash)d.db'
  jobid_hash_size: 1000
  cluster: test
"""
_SECOND = """sams.aggregator.SoftwareAccountingPW:
  database: sqlite
  database_options: {{database: '{folder}/db/pw.db'}}
  create_tables: 'yes'
  cluster: test
"""


def sams_books(sams: Path, folder: Path, section: str, made: list[dict[str, Any]]) -> Path:
    """Let SAMS's own aggregator fill a database; gives its directory."""
    for name in ("in", "archive", "error", "db"):
        (folder / name).mkdir(exist_ok=True, parents=True)
    for one in made:
        core = one["sams.sampler.Core"]
        (folder / "in" / f"{core['jobid']}.{core['node']}.json").write_bytes(encode(one))
    config = folder / "sams.yaml"
    config.write_text(
        "sams.aggregator:\n  loaders: [sams.loader.File]\n"
        f"  aggregators: [{section.partition(':')[0]}]\n"
        "sams.loader.File:\n"
        f"  in_path: {folder}/in\n  archive_path: {folder}/archive\n  error_path: {folder}/error\n"
        + section.format(folder=folder)
    )
    done = subprocess.run(
        [sams / "sams-aggregator.py", "--config", config],
        env=os.environ | {"TZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list((folder / "error").iterdir()) == [], done.stderr
    return folder / "db"


def import_(path: Path, store: Path, *more: str) -> int:
    return main(["import", "sams", str(path), "--store", str(store), "--zone", "UTC", *more])


@pytest.mark.parametrize("section", [_SHARDS, _SECOND], ids=["shards", "second"])
def test_a_database_and_its_records_give_the_same(
    sams: Path, tmp_path: Path, section: str, capsys: Any
) -> None:
    made = documents()
    place = sams_books(sams, tmp_path / "theirs", section, made)
    before = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in place.iterdir()}
    assert len(before) == (3 if section == _SHARDS else 1)

    assert import_(place, tmp_path / "store.db", "--dry-run") == 0
    assert not (tmp_path / "store.db").exists()
    assert "60 jobs" in capsys.readouterr().out
    assert import_(place, tmp_path / "store.db") == 0

    site = Site(tmp_path)
    site.config.write_text(site.config.read_text().replace("/store.db", "/other.db"))
    for one in made:
        site.put(one)
    with Store.open(tmp_path / "store.db") as store, Store.open(tmp_path / "other.db") as other:
        aggregate(site, other)
        found, expected = booked(store), booked(other)
        assert found == expected
        assert len(found) == 60
        _totals_are_equal(store, place, section)
        runs = store.runs(limit=100)
        assert [run.info.end for run in runs] == [run.info.end for run in other.runs(limit=100)]
        # Again, and then the records themselves: nothing changes.
        assert import_(place, tmp_path / "store.db") == 0
        for one in made:
            site.put(one)
        aggregate(site, store)
        assert booked(store) == found
        assert store.runs(limit=100)[0].cpu_time == runs[0].cpu_time
    # And theirs is as it was.
    after = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in place.iterdir()}
    assert after == before


def _totals_are_equal(store: Store, place: Path, section: str) -> None:
    user, project = ("user", "project") if section == _SHARDS else ("name", "name")
    suffix = "" if section == _SHARDS else "_id"
    compared = 0
    for file in place.iterdir():
        connection = sqlite3.connect(file)
        rows = connection.execute(
            f"SELECT j.jobid, j.user_time, j.system_time, j.ncpus, u.{user}, p.{project} "
            f"FROM jobs j JOIN users u ON u.id = j.user{suffix} "
            f"JOIN projects p ON p.id = j.project{suffix}"
        ).fetchall()
        connection.close()
        for job, user_time, system_time, cpus, name, account in rows:
            run = store.find(RunReference(job_id=int(job), cluster="test"))
            assert run.cpu_time is not None
            assert run.cpu_time / SECOND == pytest.approx(user_time + system_time, abs=1e-7)
            assert (run.info.user, run.info.account, run.info.cpus) == (name, account, int(cpus))
            compared += 1
    assert compared == 60


def test_hostile_paths_come_along(sams: Path, tmp_path: Path) -> None:
    execs = {
        f"/home/{text}": {"user": 1.5, "system": 0.5}
        for text in HOSTILE
        # SAMS cannot store halves of characters.
        if text.isprintable() or "\n" in text
    }
    place = sams_books(sams, tmp_path / "theirs", _SHARDS, [document(1, execs=execs)])
    assert import_(place, tmp_path / "store.db") == 0
    with Store.open(tmp_path / "store.db") as store:
        (run,) = store.runs()
        found = {one.use.path.decode() for one in store.executables(run.id)}
    assert found == set(execs)


def test_rows_that_sams_spoiled_are_kept_or_named(sams: Path, tmp_path: Path) -> None:
    place = sams_books(sams, tmp_path / "theirs", _SHARDS, documents(4))
    (file,) = place.iterdir()
    connection = sqlite3.connect(file)
    whole = connection.execute("SELECT sum(user + sys) FROM command").fetchone()[0]
    # Ids that point nowhere: what one bad record leaves behind in SAMS.
    connection.execute("DELETE FROM software WHERE id = 1")
    connection.execute("DELETE FROM node WHERE id = 1")
    connection.execute("DELETE FROM users")
    connection.execute("INSERT INTO jobs (jobid) VALUES ('12_3')")
    connection.execute(
        "INSERT INTO command (jobid, node, software, start_time, user, sys) "
        "SELECT max(id), 2, 2, 1704103200, 1, 1 FROM jobs"
    )
    connection.commit()
    connection.close()
    with Store.open(tmp_path / "store.db") as store:
        result = import_database(file, store, cluster=None, default_cluster="x")
        runs = store.runs()
    assert len(runs) == 4
    assert sum(run.cpu_time or 0 for run in runs) / SECOND == pytest.approx(whole, abs=1e-6)
    assert result.problems == {"the job id '12_3' is not a number": 1}


def test_what_is_no_database_is_said(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text").write_text("hello")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (y)").connection.close()
    (tmp_path / "empty").mkdir()
    for name, sentence in [
        ("text", "is not an SQLite database"),
        ("other.db", "is not a SAMS database"),
        ("empty", "contains no SQLite database"),
        ("gone", "does not exist"),
    ]:
        assert import_(tmp_path / name, tmp_path / "store.db") == 1
        assert sentence in capsys.readouterr().err


def test_one_cluster_name_for_all(sams: Path, tmp_path: Path) -> None:
    place = sams_books(sams, tmp_path / "theirs", _SHARDS, documents(3))
    (file,) = place.iterdir()
    with Store.open(tmp_path / "a.db") as store:
        import_database(file, store, cluster="renamed", default_cluster="x")
        assert {run.info.cluster for run in store.runs()} == {"renamed"}
    counted = import_database(file, None, cluster=None, default_cluster="x")
    assert (counted.jobs, counted.records, counted.rows) == (3, 3, 9)


_POSTGRESQL_TYPES = {
    "DATETIME": "TIMESTAMP",
    "REAL": "DOUBLE PRECISION",
    "INTEGER": "BIGINT",
    "SMALLINT": "BOOLEAN",
}


_MYSQL_TYPES = _POSTGRESQL_TYPES | {"DATETIME": "DATETIME(6)", "REAL": "DOUBLE"}


@pytest.fixture
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty database on a MariaDB server of its own."""
    if shutil.which("mariadb-install-db") is None or os.geteuid() != 0:
        pytest.skip("needs MariaDB and root")
    with tempfile.TemporaryDirectory(prefix="sight") as name:
        shutil.chown(name, "mysql")
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={name}/data",
             "--skip-test-db", f"--tmpdir={name}"],
            check=True, capture_output=True,
        )  # fmt: skip
        init = Path(name, "init.sql")
        init.write_text("create database sams character set utf8mb4;\n"
                        "create user sams@'127.0.0.1' identified by 'a:b';\n"
                        "grant all on sams.* to sams@'127.0.0.1';\n")  # fmt: skip
        shutil.chown(init, "mysql")
        port = free_port()
        server = subprocess.Popen(
            ["mariadbd", "--no-defaults", "--user=mysql", f"--datadir={name}/data",
             f"--socket={name}/socket", f"--pid-file={name}/pid", f"--init-file={init}",
             f"--tmpdir={name}", "--bind-address=127.0.0.1", f"--port={port}",
             "--skip-name-resolve", "--skip-log-bin", f"--log-error={name}/log"],
        )  # fmt: skip
        try:
            wait_until(lambda: _answers(port))
            yield f"mysql://sams:a%3Ab@127.0.0.1:{port}/sams"
        finally:
            server.terminate()
            server.wait(60)


def _answers(port: int) -> bool:
    import pymysql

    try:
        pymysql.connect(
            host="127.0.0.1", port=port, user="sams", password="a:b", database="sams"
        ).close()
    except pymysql.MySQLError:
        return False
    return True


def _copy_to_mysql(file: Path, url: str) -> None:
    import pymysql

    source = sqlite3.connect(file)
    port = int(url.rpartition(":")[2].partition("/")[0])
    target = pymysql.connect(
        host="127.0.0.1", port=port, user="sams", password="a:b", database="sams", charset="utf8mb4"
    )
    names = [name for (name,) in source.execute("SELECT name FROM sqlite_master "
             "WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]  # fmt: skip
    with target.cursor() as cursor:
        for name in names:
            columns = [
                (column[1], _MYSQL_TYPES.get(column[2].upper(), "TEXT"))
                for column in source.execute(f"PRAGMA table_info({name})")
            ]
            listed = ", ".join(f"`{column}` {kind}" for column, kind in columns)
            cursor.execute(f"CREATE TABLE {name} ({listed})")
            for row in source.execute(f"SELECT * FROM {name}"):
                cursor.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", row)
    target.commit()
    target.close()
    source.close()


# Fault 14: nor those in MySQL.
def test_a_database_in_mysql_gives_the_same(
    sams: Path, tmp_path: Path, mariadb_url: str, capsys: Any
) -> None:
    folder = sams_books(sams, tmp_path / "sams", _SECOND, documents(20))
    _copy_to_mysql(folder / "pw.db", mariadb_url)
    found = []
    for number, location in enumerate((str(folder / "pw.db"), mariadb_url)):
        store = str(tmp_path / f"{number}.db")
        assert main(["import", "sams", location, "--store", store, "--zone", "UTC"]) == 0
        with Store.open(store) as opened:
            found.append(booked(opened))
    assert len(found[0]) == 20
    assert found[1] == found[0]
    with closing(SamsDatabase(mariadb_url)) as database:
        # Nothing was sent yet.
        assert len(list(database.unreported())) == 20
    wrong = mariadb_url.replace("a%3Ab", "secret")
    assert main(["import", "sams", wrong]) == 1
    assert "secret" not in capsys.readouterr().err


def _copy_to_postgresql(file: Path, url: str) -> None:
    """The tables of the second schema with the column types that peewee uses on PostgreSQL."""
    import psycopg

    source = sqlite3.connect(file)
    with psycopg.connect(url) as target:
        names = [name for (name,) in source.execute("SELECT name FROM sqlite_master "
                 "WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]  # fmt: skip
        for name in names:
            columns = [
                (column[1], _POSTGRESQL_TYPES.get(column[2].upper(), "TEXT"))
                for column in source.execute(f"PRAGMA table_info({name})")
            ]
            listed = ", ".join(f'"{column}" {kind}' for column, kind in columns)
            target.execute(f"CREATE TABLE {name} ({listed})")  # type: ignore[arg-type]
            for row in source.execute(f"SELECT * FROM {name}"):
                values = [
                    bool(value) if kind == "BOOLEAN" and value is not None else value
                    for value, (_, kind) in zip(row, columns, strict=True)
                ]
                marks = ", ".join(["%s"] * len(row))
                target.execute(f"INSERT INTO {name} VALUES ({marks})", values)  # type: ignore[arg-type]
    source.close()


# Fault 14: the log advised a command that could not work.
@pytest.mark.parametrize(
    ("database", "options", "location"),
    [
        ("sqlite", {"database": "/var/pw.db"}, "/var/pw.db"),
        ("postgresql", {"database": "sams"}, "postgresql:///sams"),
        (
            "postgresql",
            {"database": "sams", "user": "u@x", "password": "a:b", "host": "db", "port": 5432},
            "postgresql://u%40x{}@db:5432/sams",
        ),
    ],
)
def test_the_location_of_a_database_in_the_settings(
    database: str, options: dict[str, object], location: str
) -> None:
    keys = DatabaseKeys(database=database, database_options=options)
    assert keys.location(password=False) == location.format("")
    assert keys.location(password=True) == location.format(":a%3Ab")


# Fault 14: SAMS's databases in PostgreSQL could not be imported.
def test_a_database_in_postgresql_gives_the_same(
    sams: Path, tmp_path: Path, postgresql_server: Any, capsys: Any
) -> None:
    folder = sams_books(sams, tmp_path / "sams", _SECOND, documents(20))
    url = postgresql_server.new_database()
    _copy_to_postgresql(folder / "pw.db", url)
    found = []
    for number, location in enumerate((str(folder / "pw.db"), url)):
        store = str(tmp_path / f"{number}.db")
        assert main(["import", "sams", location, "--store", store, "--zone", "UTC"]) == 0
        with Store.open(store) as opened:
            found.append(booked(opened))
    assert len(found[0]) == 20
    assert found[1] == found[0]
    assert main(["import", "sams", "postgresql://u:secret@127.0.0.1:1/none"]) == 1
    assert "secret" not in capsys.readouterr().err
