"""Stores that cannot be opened, disks that are full, processes that are killed."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from jobsight.errors import StoreError
from jobsight.store.schema import search_index, statements, tables, versions
from jobsight.store.series.codec import ChunkError
from jobsight.store.store import Store
from jobsight.util import mounts
from tests.store.sample import batch, find, info, part, seconds, series, sighting

#: Writes one sample per batch and says so once it is stored.
WRITER = """
import sys
from jobsight.store.store import Store
from tests.store.sample import batch, part, series, step
first, last, spool = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    for number in range(first, last):
        steps = [step("batch", number, second=number)]
        sent = batch(part(series=series([number]), steps=steps), sequence=number, spool=spool)
        print(number, store.write(sent), flush=True)
"""


def writer(location: str, first: int, last: int, spool: str = "s") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, location, str(first), str(last), spool],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_what_was_acknowledged_survives_a_kill(location: str) -> None:
    choose = random.Random(3)
    acknowledged = -1
    for _ in range(3):
        with writer(location, acknowledged + 1, 10**6) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            first = process.stdout.readline()
            time.sleep(choose.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            for line in (first, *process.stdout):
                # A line cut short was not acknowledged.
                if line.endswith("\n"):
                    number, _ = line.split()
                    acknowledged = max(acknowledged, int(number))
    assert acknowledged > 0
    with Store.open(location) as store:
        stored = seconds(store, find(store).id)
        # The last one may have been stored without the word getting out.
        assert stored in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))
        (found,) = store.steps(find(store).id)
        assert found.use.cpu_time == stored[-1]
        for number in range(acknowledged + 3):
            again = batch(part(series=series([number])), sequence=number, spool="s")
            assert store.write(again) == (number >= len(stored))
        assert seconds(store, find(store).id) == list(range(acknowledged + 3))


def test_two_processes_write_while_a_third_reads(location: str) -> None:
    with Store.open(location) as store:
        # Both send the numbers 40 to 79, as two spools' receivers might.
        with writer(location, 0, 80) as one, writer(location, 40, 120) as other:
            seen = 0
            while one.poll() is None or other.poll() is None:
                for run in store.runs():
                    found = seconds(store, run.id)
                    assert found == sorted(set(found))
                    assert len(found) >= seen
                    seen = len(found)
            lines = [*one.stdout, *other.stdout]  # type: ignore[misc]
        assert (one.returncode, other.returncode) == (0, 0)
        stored = sorted(int(line.split()[0]) for line in lines if line.endswith("True\n"))
        assert stored == list(range(120))
        assert seconds(store, find(store).id) == list(range(120))
        assert len(store.runs()) == 1


def test_many_threads_use_one_store(store: Store) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(10):
                seen = sighting(round_ % 3, node=f"n{number}")
                sent = part(seen, series=series([round_]))
                assert store.write(batch(sent, sequence=round_, spool=f"s{number}"))
                store.runs()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert store.info().rows == 60
    assert sorted(run.node_count for run in store.runs()) == [6, 6, 6]


def test_many_processes_may_open_a_new_store(location: str) -> None:
    processes = [writer(location, number, number + 1) for number in range(3)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    with Store.open(location) as store:
        assert seconds(store, find(store).id) == [0, 1, 2]


def test_a_full_disk_stores_nothing_in_part(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        assert store.write(batch(part(series=series([0])), info()))
        before = store.info()
        with store.database.write() as transaction:
            pages = transaction.execute("PRAGMA page_count").fetchone()[0]
            transaction.execute(f"PRAGMA max_page_count = {pages + 2}")
        many = [
            part(sighting(8 + number), series=series(random.Random(1).sample(range(10**6), 300)))
            for number in range(20)
        ]
        large = batch(info(8, name="new"), *many)
        with pytest.raises(StoreError, match="is full: the batch was not stored"):
            store.write(large)
        assert store.info() == before
        with store.database.write() as transaction:
            transaction.execute("PRAGMA max_page_count = 1000000")
        assert store.write(large)


@pytest.mark.parametrize("version", ["0999", "0000", "3f1b"])
def test_a_store_of_an_unknown_version_is_left_alone(location: str, version: str) -> None:
    with Store.open(location) as store:
        assert store.write(batch(info()))
        with store.database.write() as transaction:
            transaction.execute(
                "UPDATE alembic_version SET version_num = :version", {"version": version}
            )
    with pytest.raises(
        StoreError, match=rf"schema version {version}, expected (\d+ or )*{statements.VERSION};"
    ):
        Store.open(location)
    url = location.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url if "://" in url else f"sqlite:///{url}")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == version
    engine.dispose()


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 1000)
    path.chmod(0o640)
    before = path.stat()
    with pytest.raises(StoreError, match=r"notes\.txt is not a database; it was left unchanged"):
        Store.open(path)
    after = path.stat()
    assert path.read_text() == "my notes\n" * 1000
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="tables of another program"):
        Store.open(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["other.db"]


def test_wrong_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory; expected the path of a file"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="mysql:// is not supported"):
        Store.open("mysql://host/database")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/store\.db cannot be opened for writing: Not a dir"):
        Store.open(tmp_path / "file" / "store.db")
    with pytest.raises(StoreError, match=r"postgresql://.*nowhere.*failed") as caught:
        Store.open(f"postgresql://anna:secret@/nowhere?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_nobody_else_reads_the_store(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "store.db"
    with Store.open(path) as store:
        assert store.write(batch(info()))
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o777 == 0o600, file
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_read_only_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with Store.open(folder / "store.db") as store:
        assert store.write(batch(info()))
    (folder / "store.db").chmod(0o444)
    folder.chmod(0o555)
    # Root may write everywhere, so another user has to try.
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o011)
    attempt = """
import os, sys
from jobsight.errors import StoreError
from jobsight.store.store import Store
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        Store.open(path)
    except StoreError as error:
        print(error)
"""
    paths = [str(folder / "store.db"), str(folder / "new.db")]
    found = subprocess.run(
        [sys.executable, "-c", attempt, *paths], capture_output=True, text=True, check=True
    )
    folder.chmod(0o755)
    assert found.stdout.splitlines() == [
        f"the store {path} cannot be opened for writing: Permission denied" for path in paths
    ]


def test_a_damaged_chunk_is_named(store: Store) -> None:
    assert store.write(batch(part(series=series([0, 1, 2]))))
    run = find(store)
    with store.database.write() as transaction:
        data = bytes(transaction.execute("SELECT data FROM chunks").fetchone()[0])
        broken = data[:-2] + bytes((data[-2] ^ 1, data[-1]))
        transaction.execute("UPDATE chunks SET data = :data", {"data": broken})
    with pytest.raises(ChunkError, match="damaged"):
        store.series(run.id)


def test_the_tables_are_what_the_migrations_make(location: str) -> None:
    with Store.open(location) as store:
        found = inspect(store.database.engine)
        for table in tables.metadata.sorted_tables:
            columns = {column["name"]: column for column in found.get_columns(table.name)}
            # In any order: a revision adds its columns at the end.
            assert set(columns) == {column.name for column in table.columns}
            for column in table.columns:
                assert columns[column.name]["nullable"] == column.nullable, column
            indices = {index["name"] for index in found.get_indexes(table.name)}
            indices |= {unique["name"] for unique in found.get_unique_constraints(table.name)}
            assert {index.name for index in table.indexes} <= indices
        # The index of the search is a table too, with tables of its own in SQLite.
        names = {
            name for name in found.get_table_names() if not name.startswith(search_index.TABLE)
        }
        assert names == {*tables.metadata.tables, "alembic_version"}
    config = Config()
    config.set_main_option("script_location", str(versions.MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == statements.VERSION


def test_network_file_systems_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "mountinfo"
    listing.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:5 / {tmp_path}/my\\040home rw,relatime shared:1 - nfs4 server:/home rw\n"
        f"3 2 0:6 / {tmp_path}/my\\040home/local rw - xfs /dev/sdb rw\n"
        # The kernel escapes # as well.
        f"4 1 0:7 / {tmp_path}/\\043shared rw,relatime shared:2 - nfs4 server:/shared rw\n"
        "broken line\n"
    )
    (tmp_path / "my home/local").mkdir(parents=True)
    (tmp_path / "#shared").mkdir()
    kinds = {
        tmp_path: "ext4",
        tmp_path / "my home/store.db": "nfs4",
        tmp_path / "my home/local/store.db": "xfs",
        tmp_path / "#shared/store.db": "nfs4",
    }
    for path, kind in kinds.items():
        assert mounts.file_system(path, listing) == kind
    assert mounts.file_system(tmp_path, tmp_path / "missing") is None
    assert [mounts.is_network(kind) for kind in ("nfs", "fuse.sshfs", "lustre", "ext4", None)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    monkeypatch.setattr(mounts, "MOUNTINFO", listing)
    modes = {"my home/store.db": "delete", "#shared/store.db": "delete", "store.db": "wal"}
    for path, mode in ((tmp_path / name, mode) for name, mode in modes.items()):
        with Store.open(path) as store, store.database.write() as transaction:
            assert transaction.execute("PRAGMA journal_mode").fetchone()[0] == mode
