"""Backups, restores and moves: whole or not at all, between SQLite and PostgreSQL."""

import random
import subprocess
import sys
from array import array
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from jobsight.errors import StoreError
from jobsight.model import SECOND, Series
from jobsight.store.database import open_database
from jobsight.store.maintenance import dump
from jobsight.store.maintenance.dump import BackupError, back_up, copy_store, restore, verify
from jobsight.store.store import Store
from tests.examples import examples
from tests.store import postgresql
from tests.store.contents import answers, assert_sound, rows
from tests.store.many import NOW, count, fill, summed
from tests.store.sample import EXACT, START, batch, find, info, part, sighting, step, totals, use
from tests.store.test_faults import writer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def filled(store: Store) -> Store:
    """A bit of everything, with what is hard to carry."""
    odd = "a%b'\n{}\x01é\U0001f600\\N\t"
    fill(store, range(5), age=50, now=NOW, rows=20)
    summed(store)
    fill(store, range(10, 13), age=0, now=NOW, rows=20, final=False)
    record = info(7, name=odd, nodes=("n1", "n2"), tres={"gres/gpu": 2}, exit_code=-1)
    uses = [use(bytes(range(256)), 2**62), use(b"\\x00%s", 1, path_known=False)]
    whole = part(
        totals=totals(1, 2**61), executables=uses, steps=[step("a%b'{}é\\N")], coverage=EXACT
    )
    assert store.write(batch(record, whole, part(sighting(8))))
    with store.database.write() as transaction:
        transaction.execute("INSERT INTO checkpoints (name, value, text) VALUES ('x', 5, NULL)")
        transaction.execute(
            "INSERT INTO tokens (cluster, digest, label, created) VALUES ('c1', :d, 'é', 1)",
            {"d": bytes(32)},
        )
    return store


@pytest.fixture
def empty(request: pytest.FixtureRequest, location: str, tmp_path: Path) -> str:
    """Where a store of the other kind may be made."""
    if location.startswith("postgresql"):
        return str(tmp_path / "other.db")
    server: postgresql.Server = request.getfixturevalue("postgresql_server")
    return server.new_database()


def _grows(store: Store) -> None:
    """New rows are numbered behind those that came."""
    highest = max(run.id for run in store.runs(limit=1000))
    assert store.write(batch(info(99), part(sighting(99), executables=[use(b"/new", 1)])))
    assert find(store, "99").id > highest


def test_move_there_and_back(filled: Store, location: str, empty: str, tmp_path: Path) -> None:
    before, said = rows(filled), answers(filled)
    with Store.open(empty) as other, other.database.write() as transaction:
        # What a server has noted for itself is no content.
        transaction.execute("INSERT INTO checkpoints (name, value) VALUES ('retention', 1)")
    copy_store(location, empty)
    with Store.open(empty) as other:
        assert (rows(other), answers(other)) == (before, said)
        assert_sound(other)
    back = str(tmp_path / "back.db")
    copy_store(empty, back)
    with Store.open(back) as other:
        assert (rows(other), answers(other)) == (before, said)
        _grows(other)
    with Store.open(empty) as other:
        _grows(other)
    assert rows(filled) == before


# Fault 21: without statistics the planner of the new store chose slow plans.
def test_a_moved_store_has_statistics(filled: Store, location: str, empty: str) -> None:
    copy_store(location, empty)
    with Store.open(empty) as other, other.database.query() as transaction:
        query = "SELECT count(*) FROM sqlite_stat1 WHERE tbl = 'runs'"
        if transaction.postgresql:
            query = "SELECT count(*) FROM pg_stats WHERE tablename = 'runs'"
        assert transaction.execute(query).fetchone()[0]


def test_a_backup_becomes_either_kind_of_store(filled: Store, empty: str, tmp_path: Path) -> None:
    before = rows(filled)
    file = tmp_path / "backup"
    shown: list[tuple[str, int, int]] = []
    made = back_up(filled.database, file, lambda *said: shown.append(said))
    assert made.counts == {name: len(found) for name, found in before.items()}
    assert shown[-1] == ("rows", *[sum(made.counts.values())] * 2)
    assert (file.stat().st_mode & 0o777, [*tmp_path.glob("*.partial")]) == (0o600, [])
    for target in (empty, str(tmp_path / "third.db")):
        restore(target, file)
        with Store.open(target) as other:
            assert rows(other) == before
            assert_sound(other)
            _grows(other)
    with pytest.raises(BackupError, match="exists already"):
        back_up(filled.database, file)
    back_up(filled.database, file, replace=True)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
_PARTS = st.fixed_dictionaries(
    {
        "job": st.integers(0, 2**40),
        "name": st.none() | _TEXTS,
        "end": st.none() | st.integers(START, START + 10**15),
        "path": st.binary(min_size=1, max_size=40),
        "values": st.lists(st.integers(-(2**62), 2**62), max_size=20),
        "floats": st.lists(st.floats(), min_size=20, max_size=20),
        "final": st.booleans(),
    }
)


@settings(
    max_examples=examples(4),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_PARTS, min_size=1, max_size=20))
def test_whatever_is_stored_goes_over(
    postgresql_server: postgresql.Server, tmp_path: Path, drawn: list[dict[str, object]]
) -> None:
    first, last = tmp_path / "first.db", tmp_path / "last.db"
    for file in (first, last):
        for name in tmp_path.glob(f"{file.name}*"):
            name.unlink()
    between = _shared_database(postgresql_server)
    with Store.open(first) as store:
        for one in drawn:
            values, floats = array("q", one["values"]), array("d", one["floats"])  # type: ignore[call-overload]
            times = array("q", (START + place * SECOND for place in range(len(values))))
            series = Series(times, {"cpu.time": values, "x": floats[: len(values)]})
            record = info(one["job"], name=one["name"], end=one["end"])  # type: ignore[arg-type]
            seen = sighting(one["job"])  # type: ignore[arg-type]
            uses = [use(one["path"], 1)]  # type: ignore[arg-type]
            whole = part(seen, series=series, executables=uses, final=bool(one["final"]))
            assert store.write(batch(record, whole))
        assert_sound(store)
        with (
            closing(open_database(between)) as database,
            dump.snapshot(store.database) as connection,
        ):
            dump.load(database, *dump.read(connection), replace=True)
        said = answers(store)
    copy_store(between, str(last))
    with Store.open(between) as middle, Store.open(last) as end:
        assert answers(middle) == answers(end) == said


_databases: dict[postgresql.Server, str] = {}


def _shared_database(server: postgresql.Server) -> str:
    if server not in _databases:
        _databases[server] = server.new_database()
    return _databases[server]


def test_a_store_that_is_not_empty_is_refused(
    filled: Store, location: str, empty: str, tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    back_up(filled.database, file)
    with Store.open(empty) as other:
        assert other.write(batch(info(3)))
        with other.database.write() as transaction:
            transaction.execute("INSERT INTO checkpoints (name, value) VALUES ('retention', 1)")
        before = rows(other)
        for work in (lambda: copy_store(location, empty), lambda: restore(empty, file)):
            with pytest.raises(StoreError, match="is not empty"):
                work()
        assert rows(other) == before
        if other.database.postgresql:
            # What a site has made for itself stays.
            with other.database.migration() as connection:
                connection.execute(text("CREATE VIEW of_site AS SELECT job_id FROM runs"))
    restore(empty, file, replace=True)
    with Store.open(empty) as other:
        assert rows(other) == rows(filled)
        _grows(other)
        if other.database.postgresql:
            assert count(other, "of_site") == other.count_runs()
    with pytest.raises(StoreError, match="same store"):
        copy_store(location, location)


def test_a_damaged_backup_is_refused(filled: Store, empty: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    back_up(filled.database, file)
    whole = file.read_bytes()
    choose = random.Random(5)
    with Store.open(empty) as other:
        before = rows(other)
        for _ in range(60):
            # The last four bytes are zstd's checksum of rows that the digest before it proves.
            cut = choose.randrange(len(whole) - 4)
            file.write_bytes(whole[:cut])
            with pytest.raises(BackupError, match="truncated"):
                restore(empty, file, replace=True)
        for _ in range(60):
            place, bit = choose.randrange(len(whole)), 1 << choose.randrange(8)
            file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                restore(empty, file, replace=True)
            except BackupError:
                assert rows(other) == before
            else:
                # A bit that means nothing to zstd; then nothing is lost by it.
                assert rows(other) == rows(filled)
                before = rows(other)
        for more in (b"x", whole):
            file.write_bytes(whole + more)
            with pytest.raises(BackupError):
                verify(file)
        for text in (b"", b"hello", b"SQLite format 3\x00" * 50):
            file.write_bytes(text)
            with pytest.raises(BackupError, match="not a backup"):
                verify(file)
    with pytest.raises(BackupError, match="cannot be read: No such file"):
        verify(tmp_path / "nothing")


def test_rows_that_do_not_fit_leave_the_store_as_it_was(filled: Store, empty: str) -> None:
    with dump.snapshot(filled.database) as connection:
        opening, blocks = dump.read(connection)
        whole = [block for block in blocks if block.rows]
    some = [block for block in whole if block.table != "steps"]
    odd = [*whole, dump.Block("sqlite_master", [[1]])]
    newer = msgspec.structs.replace(opening, version="9999")
    with closing(open_database(empty)) as database:
        for first, rest, said in (
            (newer, whole, "has schema version"),
            (opening, some, "0 of 9 rows of steps"),
            (opening, odd, "rows of sqlite_master do not fit"),
            (opening, [*whole, whole[-1]], "failed"),
        ):
            with pytest.raises(StoreError, match=said):
                dump.load(database, first, rest)
    with Store.open(empty) as other:
        assert other.count_runs() == 0


def test_a_store_without_a_log_is_copied_first(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        fill(store, range(3), age=5, now=NOW, rows=10)
        with store.database.alone() as connection:
            assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        with dump.snapshot(store.database) as connection:
            # A reader of the store itself would keep this one waiting.
            assert store.write(batch(info(99)))
            opening, _ = dump.read(connection)
        assert (opening.counts["runs"], store.count_runs()) == (3, 4)
    assert not [*tmp_path.glob("copy-*")]


def test_a_backup_while_a_server_writes(location: str, tmp_path: Path, empty: str) -> None:
    with Store.open(location) as store:
        fill(store, range(50), age=5, now=NOW, rows=50)
        with writer(location, 0, 10**6) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for number in range(3):
                process.stdout.readline()
                back_up(store.database, tmp_path / f"backup {number}")
            process.kill()
    for number in range(3):
        restore(empty, tmp_path / f"backup {number}", replace=True)
        with Store.open(empty) as other:
            assert_sound(other)
            assert count(other, "runs") == 51


_WORK = {
    "restore": "from jobsight.store.maintenance.dump import restore; restore(to, Path(of), show)",
    "move": "from jobsight.store.maintenance.dump import copy_store; copy_store(of, to, show)",
}
_PROCESS = """
import sys
from pathlib import Path
of, to = sys.argv[1:]
def show(*said):
    print(*said, flush=True)
"""


def _killed(work: str, source: str, target: str, lines: int) -> None:
    """Start the work and kill it once it has said so often how far it is."""
    code = [sys.executable, "-c", _PROCESS + _WORK[work], source, target]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline().startswith("rows")
        process.kill()


@pytest.mark.parametrize(
    "work", [pytest.param("restore", marks=pytest.mark.long), pytest.param("move")]
)
def test_a_kill_leaves_the_target_empty(
    store: Store, location: str, empty: str, tmp_path: Path, work: str
) -> None:
    fill(store, range(2500), age=5, now=NOW, rows=0)
    source = location
    if work == "restore":
        source = str(tmp_path / "backup")
        back_up(store.database, Path(source))
    # A restore has read everything once before.
    for lines in (2, 17) if work == "move" else (18, 33):
        _killed(work, source, empty, lines)
        with Store.open(empty) as other:
            assert other.count_runs() == 0
            assert_sound(other)
    copy_store(location, empty) if work == "move" else restore(empty, Path(source))
    with Store.open(empty) as other:
        assert rows(other) == rows(store)


def test_blocks_are_bounded(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "BYTES", 300)
    with dump.snapshot(filled.database) as connection:
        _, blocks = dump.read(connection)
        assert max(len(block.rows) for block in blocks if block.table == "chunks") <= 2
