"""``jobsight archive`` as people type it, and the server that does it by itself."""

import json
import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest
from starlette.testclient import TestClient

from jobsight.archive.reader import attach
from jobsight.archive.storage import open_storage
from jobsight.archive.writer import Stopped, archive_once, archiving, write_archive
from jobsight.cli.main import main
from jobsight.config.settings import ArchiveSettings
from jobsight.server.app import create_app
from jobsight.store.store import Store
from tests.archive import months
from tests.archive.months import LATER
from tests.store.many import count
from tests.waiting import wait_until

TOKEN = "a-token-for-the-tests-of-the-archive"


class Command:
    """The command with the places of a test."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store = folder / "store.db"
        self.archive = folder / "archive"
        self._capsys = capsys

    def __call__(self, action: str, *arguments: str) -> tuple[int, str, str]:
        places = ["--store", str(self.store), "--archive", str(self.archive)]
        code = main(["archive", action, *arguments, *places])
        return code, *self._capsys.readouterr()


@pytest.fixture
def command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with Store.open(tmp_path / "store.db") as store:
        months.fill(store)
    return Command(tmp_path, capsys)


def test_out_and_back(command: Command) -> None:
    cutoff = ("--before", "2026-11-20")
    code, said, _ = command("write", "--dry-run", *cutoff)
    assert (code, said) == (
        0,
        f"c1 2026-10  2 runs\nc1 2026-11  4 runs\n6 runs would be archived in {command.archive}\n",
    )
    assert not command.archive.exists()
    code, said, _ = command("write", *cutoff)
    assert said.startswith(f"6 runs archived in {command.archive}: 2 parts, 250 samples, ")
    code, said, _ = command("write", "--json", *cutoff)
    assert json.loads(said)["runs"] == 0
    code, said, _ = command("list")
    lines = said.splitlines()
    assert lines[0].split() == ["CLUSTER", "MONTH", "RUNS", "SAMPLES", "PARTS", "SIZE"]
    assert lines[1].split()[:4] == ["c1", "2026-10", "2", "164"]
    assert [row["runs"] for row in json.loads(command("list", "--json")[1])] == [2, 4]
    code, said, _ = command("check")
    assert (code, said.startswith("2 parts, 14 files, 6 runs, ")) == (0, True)

    with Store.open(command.store) as store:
        before = months.everything(store)
        months.drop_runs(store)
    assert command("read", "c1:3", "--dry-run")[1].startswith("1 of 1 runs would be restored")
    assert command("read", "1", "3")[1].startswith("2 of 2 runs restored")
    assert command("read", "--month", "2026-11")[1].startswith("3 of 4 runs restored")
    with Store.open(command.store) as store:
        # Job 2 of October was not requested.
        assert months.everything(store) == {
            key: found for key, found in before.items() if not key.startswith("c1:2:")
        }
    with duckdb.connect() as connection:
        connection.execute(command("sql")[1])
        assert connection.sql("SELECT count(*) FROM runs").fetchall() == [(6,)]


def test_damage_is_an_exit_code(command: Command) -> None:
    command("write", "--before", "2026-11-20")
    next(command.archive.rglob("steps/*/*/*.parquet")).unlink()
    code, said, complaint = command("check")
    assert (code, said.endswith("1 problems\n")) == (1, True)
    assert complaint.startswith("jobsight: steps/cluster=c1/month=2026-")
    assert complaint.endswith("is missing\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["write", "--month", "2026-11"], "`jobsight archive write` does not accept --month"),
        (["list", "7"], "`jobsight archive list` does not accept RUN"),
        (["read"], "expected either runs or --month YYYY-MM"),
        (["read", "--month", "November"], "--month 'November': expected 2026-11"),
        (["read", "seven"], "'seven' does not name a run"),
        (["write", "--before", "yesterday"], "--before 'yesterday' is not a date"),
        (["read", "99"], "has no run 99"),
    ],
)
def test_what_cannot_be(command: Command, arguments: list[str], words: str) -> None:
    code, _, complaint = command(*arguments)
    assert code in (1, 2)
    assert words in complaint
    assert complaint.count("\n") == 1


def test_a_server_archives_and_its_pages_read_it(store: Store, settings: ArchiveSettings) -> None:
    months.fill(store)
    settings.interval = 3600
    settings.older_than = 0
    # The runs of the sample end in the future of some machines.
    with store.database.write() as transaction:
        transaction.execute('UPDATE runs SET "end" = 1 WHERE "end" IS NOT NULL AND job_id < 3')
    with archiving(store, settings):
        wait_until(lambda: count(store, "runs", "archived IS NOT NULL") >= 2)
    assert count(store, "runs", "archived IS NOT NULL") >= 2
    client = _client(store)
    asked = ["/api/v1/jobs/1", "/api/v1/jobs/1/series?metrics=cpu.time"]
    before = [_json(client, path) for path in asked]
    page = client.get("/jobs/1").text
    months.prune(store)
    assert [_json(client, path) for path in asked] != before
    attach(store, settings)
    assert [_json(client, path) for path in asked] == before
    assert client.get("/jobs/1").text == page


def test_a_server_that_ends_drops_what_it_was_writing(
    store: Store, settings: ArchiveSettings
) -> None:
    months.fill(store)
    settings.older_than = 0
    with store.database.write() as transaction:
        transaction.execute('UPDATE runs SET "end" = 1 WHERE "end" IS NOT NULL')
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(Stopped):
        archive_once(store, settings, stopped)
    assert count(store, "runs", "archived IS NOT NULL") == count(store, "checkpoints") == 0
    assert [file for file in Path(str(settings.location)).rglob("*") if file.is_file()] == []
    archive_once(store, settings, threading.Event())
    assert count(store, "runs", "archived IS NOT NULL") == 6


def test_a_page_when_the_archive_is_away(store: Store, settings: ArchiveSettings) -> None:
    months.fill(store)
    write_archive(store, open_storage(settings), LATER)
    months.prune(store)
    attach(store, settings)
    Path(str(settings.location)).rename(f"{settings.location}.moved")
    client = _client(store)
    answer = client.get("/api/v1/jobs/1")
    assert answer.status_code == 503
    assert "the archive has no" in answer.json()["detail"]
    assert client.get("/jobs/1").status_code == 503
    # The others have not lost anything.
    assert client.get("/jobs/6").status_code == 200
    assert client.get("/").status_code == 200


def _client(store: Store) -> TestClient:
    client = TestClient(create_app(store, TOKEN, delay=0), base_url="http://127.0.0.1:8080")
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client


def _json(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()
