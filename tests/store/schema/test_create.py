"""A new store, made at once instead of by one revision after the other."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from jobsight.errors import StoreError
from jobsight.store.database import open_database
from jobsight.store.schema import create, statements, tables, versions
from jobsight.store.store import Store
from tests.store.sample import batch, info, part, series, step, use


def _master(file: Path) -> list[tuple[object, ...]]:
    database = open_database(file)
    with database.read() as connection:
        rows = connection.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master"))
        found = [tuple(row) for row in rows]
    database.close()
    return found


def test_the_script_is_what_the_revisions_come_to() -> None:
    """After a new revision: ``make docs``."""
    assert create.SCRIPT.read_text() == versions.script()


def test_a_new_store_is_one_that_was_brought_up(tmp_path: Path) -> None:
    Store.open(tmp_path / "new.db").close()
    database = open_database(tmp_path / "old.db")
    versions.migrate(database)
    database.close()
    assert _master(tmp_path / "new.db") == _master(tmp_path / "old.db")
    with Store.open(tmp_path / "new.db") as new, Store.open(tmp_path / "old.db") as old:
        assert new.info().version == old.info().version == statements.VERSION


def test_the_columns_of_a_run_are_those_of_the_table() -> None:
    assert tuple(column.name for column in tables.INFO_FIELDS) == statements.INFO_NAMES


@pytest.mark.parametrize("before", [None, 4096])
def test_the_pages_of_a_new_file_are_large_and_an_old_one_keeps_its_own(
    tmp_path: Path, before: int | None
) -> None:
    file = tmp_path / "store.db"
    if before is not None:
        with closing(sqlite3.connect(file)) as old:
            old.execute(f"PRAGMA page_size = {before}")
            old.executescript(create.SCRIPT.read_text())
    with Store.open(file) as store:
        store.write(batch(jobs=[info(1)]))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (before or 8192,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_many_found_one_store(tmp_path: Path) -> None:
    failed: list[BaseException] = []
    together = threading.Barrier(4)

    def found(number: int) -> None:
        try:
            together.wait()
            with Store.open(tmp_path / "store.db") as store:
                store.write(batch(jobs=[info(number)], sequence=number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=found, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Store.open(tmp_path / "store.db") as store:
        assert {run.info.job_id for run in store.runs()} == {1, 2, 3, 4}


def test_a_script_that_fails_leaves_an_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.sql"
    broken.write_text(create.SCRIPT.read_text() + ";\nNONSENSE\n")
    with monkeypatch.context() as patched:
        patched.setattr(create, "SCRIPT", broken)
        with pytest.raises(StoreError, match="NONSENSE"):
            Store.open(tmp_path / "store.db")
    with Store.open(tmp_path / "store.db") as store:
        assert store.info().version == statements.VERSION


def test_who_only_writes_needs_the_driver_alone(tmp_path: Path) -> None:
    """A program that cron starts every few minutes should not wait for what it does not use."""
    program = (
        "import sys\n"
        "from jobsight.sams.aggregator import Aggregator\n"
        "from jobsight.store.write.intake import Intake\n"
        "for _ in range(2):\n"
        "    with Intake.open(sys.argv[1]) as store:\n"
        "        Aggregator(store, 'c1').store([])\n"
        "print(*{'sqlalchemy', 'alembic', 'psycopg', 'numpy'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


def test_who_reads_a_run_needs_the_driver_alone(tmp_path: Path) -> None:
    """``jobsight report`` and ``jobsight jobs`` have to start fast."""
    with Store.open(tmp_path / "store.db") as store:
        news = part(
            executables=[use(b"/bin/a", 1)], steps=[step("batch", 40)], series=series([0, 1])
        )
        assert store.write(batch(news, info()))
    program = (
        "import sys\n"
        "from jobsight.model import RunReference\n"
        "from jobsight.store.store import Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    run = store.find(RunReference(7))\n"
        "    assert store.runs(search='x', user='y') == [] and store.count_runs() == 1\n"
        "    assert store.nodes(run.id) and store.executables(run.id) and store.steps(run.id)\n"
        "print(*{'sqlalchemy', 'alembic', 'psycopg', 'numpy'} & sys.modules.keys())\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    assert store.series(run.id) and store.summaries(run.id)\n"
        "print(*{'sqlalchemy', 'alembic', 'psycopg', 'numpy'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "\nnumpy\n"


def test_another_that_has_a_new_file_in_hand_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself does not wait where the journal is chosen."""
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE reading (number INTEGER)")
    other.execute("DROP TABLE reading")
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.5, other.execute, ["ROLLBACK"])
    release.start()
    with Store.open(tmp_path / "store.db") as store:
        assert not release.is_alive()
        assert store.info().version == statements.VERSION
    release.join()
    other.close()
