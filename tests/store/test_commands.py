"""``jobsight store`` on both kinds of store."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from jobsight.cli import main as command
from jobsight.cli.output import PROGRESS_INTERVAL, ProgressLines
from jobsight.store.store import Store
from tests.store.contents import rows
from tests.store.many import count, fill, summed
from tests.store.sample import batch, info, part, series, sighting


@pytest.fixture
def at(location: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JOBSIGHT_STORE__LOCATION", location)
    monkeypatch.setenv("COLUMNS", "200")
    return location


def _run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Standard output, or the one line on standard error where it fails."""
    given = command.main(["store", *arguments])
    shown = capsys.readouterr()
    assert given == code, shown.err
    if code == 0 or shown.out:
        return shown.out
    last = shown.err.strip().splitlines()[-1]
    assert "Traceback" not in shown.err
    return last


def test_info(at: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, range(3), age=5, now=time.time_ns())
    shown = _run(capsys, "info")
    assert "runs     3 (0 open), 3 nodes of runs; started" in shown
    assert "schema version" in shown
    assert "agents   1, last heard 20" in shown
    assert "silent" not in shown
    with store.database.write() as transaction:
        transaction.execute("UPDATE agents SET received = 5")
    assert "silent: c1/n1 for" in _run(capsys, "info")
    document = msgspec.json.decode(_run(capsys, "info", "--json"))
    assert document["classes"]["series"]["rows"] == 3
    assert document["agents"][0]["node"] == "n1"


def test_check(at: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, range(3), age=5, now=time.time_ns())
    assert _run(capsys, "check").endswith("all sound\n")
    with store.database.write() as transaction:
        transaction.execute("UPDATE chunks SET rows = 1")
    shown = _run(capsys, "check", code=1)
    assert shown.count("its column rows is 1, expected 600\n") == 3
    assert "on n1: its column" in shown
    document = msgspec.json.decode(_run(capsys, "check", "--json", code=1))
    assert (document["sound"], len(document["faults"])) == (False, 3)
    assert "(repaired)" in _run(capsys, "check", "--repair")
    assert "all sound" in _run(capsys, "check")


def test_prune(
    at: str, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    fill(store, range(3), age=800, now=now)
    fill(store, range(3, 8), age=500, now=now)
    before = rows(store)
    monkeypatch.setenv("JOBSIGHT_STORE__RETENTION__RUNS", "700")
    shown = _run(capsys, "prune", "--dry-run")
    assert "runs removed         after 700 days: 0 runs" in shown
    assert "3 runs are kept: not archived" in shown
    assert "executables removed  never" in shown
    assert "downsampled          after 365 days: 5 runs, 5 chunks" in shown
    assert rows(store) == before
    with store.database.write() as transaction:
        transaction.execute("UPDATE paths SET software_id = 0")
    # What is named is summed up first.
    shown = _run(capsys, "prune")
    assert "runs removed         after 700 days: 3 runs" in shown
    assert "paths removed" in shown
    assert (store.count_runs(), count(store, "chunks", "resolution IS NOT NULL")) == (5, 5)
    assert count(store, "usage_by_day", "runs > 0") > 0
    document = msgspec.json.decode(_run(capsys, "prune", "--json", "--dry-run"))
    assert document["dry_run"]
    assert document["classes"]["downsampled"]["runs"] == 0


def test_compact(at: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for second in range(5):
        assert store.write(batch(part(sighting(7), series=series([second]))))
    fill(store, [7], age=5, now=time.time_ns(), rows=0, final=False)
    with store.database.write() as transaction:
        transaction.execute('UPDATE runs SET "end" = 5')
    assert "joined   1 nodes of runs: 5 chunks are 1" in _run(capsys, "compact")
    assert msgspec.json.decode(_run(capsys, "compact", "--json", "--no-vacuum"))["nodes"] == 0


def test_backup_and_restore(
    at: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(store, range(3), age=5, now=time.time_ns())
    summed(store)
    before, file, other = rows(store), str(tmp_path / "b"), str(tmp_path / "other.db")
    assert "3 runs" in _run(capsys, "backup", file)
    assert "exists already" in _run(capsys, "backup", file, code=1)
    _run(capsys, "backup", "--force", file)
    assert "would be restored" in _run(capsys, "restore", "--dry-run", file)
    assert "is not empty" in _run(capsys, "restore", file, code=1)
    assert "back it up" in _run(capsys, "restore", "--replace", file, code=2)
    assert "--yes: is only valid with" in _run(capsys, "restore", "--yes", file, code=2)
    assert store.write(batch(info(99)))
    assert "3 runs of 20" in _run(capsys, "restore", "--replace", "--yes", file)
    assert rows(store) == before
    _run(capsys, "restore", file, "--store", other)
    with Store.open(other) as restored:
        assert rows(restored) == before
    cut = Path(file).read_bytes()[:-50]
    Path(file).write_bytes(cut)
    shown = _run(capsys, "restore", file, "--store", str(tmp_path / "third.db"), code=1)
    assert "truncated" in shown
    assert not (tmp_path / "third.db").exists()
    assert "No such file" in _run(capsys, "backup", str(tmp_path / "no" / "folder"), code=1)


def test_move(at: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, range(3), age=5, now=time.time_ns())
    other = str(tmp_path / "other.db")
    assert "3 runs copied" in _run(capsys, "move", at, other)
    with Store.open(other) as moved:
        assert rows(moved) == rows(store)
    assert "is not empty" in _run(capsys, "move", at, other, code=1)
    assert "same store" in _run(capsys, "move", other, other, code=1)
    assert "there is no store at" in _run(capsys, "move", str(tmp_path / "none"), other, code=1)


def test_help_and_wrong_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, "--help")
    assert re.search(r"^  restore +\w", shown, re.MULTILINE)
    for name in ("info", "check", "compact", "prune", "backup", "restore", "move"):
        assert f"jobsight store {name}" in _run(capsys, name, "--help")
    assert "commands:" in _run(capsys, code=2)
    assert "unknown command 'prun'; did you mean `jobsight store prune`?" in _run(
        capsys, "prun", code=2
    )
    nowhere = str(tmp_path / "nowhere.db")
    for name in ("info", "check", "compact", "prune"):
        assert "there is no store at" in _run(capsys, name, "--store", nowhere, code=1)
    assert not Path(nowhere).exists()


def test_lines_of_progress_are_few() -> None:
    now = 0.0
    file = io.StringIO()
    lines = ProgressLines(file, lambda: now)
    for done in range(1, 101):
        lines("rows", done, 100)
        now += PROGRESS_INTERVAL / 40
    lines("rows", 100, 100)
    for done in range(3):
        lines("nodes", done, 0)
    assert file.getvalue().splitlines() == [
        "rows: 41 of 100",
        "rows: 81 of 100",
        "rows: 100 of 100",
    ]


def test_bars_on_a_terminal(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        fill(store, range(3), age=5, now=time.time_ns())
    ours, theirs = os.openpty()
    command_line = [sys.executable, "-m", "jobsight.cli.main", "store", "check", "--store"]
    with subprocess.Popen(
        [*command_line, str(tmp_path / "store.db")],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(theirs)
        bars = b""
        # A terminal whose other side has gone is an error, not an end.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 2**16):
                bars += piece
        os.close(ours)
        assert process.stdout is not None
        assert process.stdout.read().endswith("all sound\n")
    assert b"chunks" in bars
    assert b"3 of 3" in bars
