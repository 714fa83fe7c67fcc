"""``jobsight login``: commands on a login node query the server with the token of a user."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.config.settings import Settings
from jobsight.findings.worker import update_all
from jobsight.server.serve import BackgroundServer
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from jobsight.transport.login import login_file
from tests.findings.judge import ToldJudge
from tests.server.batches import batch


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("jobsight.transport.login.login_file", lambda: tmp_path / "login.json")
    monkeypatch.setattr("jobsight.cli.login.login_file", lambda: tmp_path / "login.json")
    return tmp_path


@pytest.fixture
def server(home: Path) -> Iterator[BackgroundServer]:
    settings = Settings()
    settings.store.location = str(home / "site" / "store.db")
    settings.server.port = 0
    # The findings are those that the test has stored.
    settings.findings.interval = 0
    (home / "site").mkdir(mode=0o700)
    with Store.open(settings.store.location) as store:
        store.write(batch(12))
        store.write(batch(13, user="bob"))
        update_all(store, ToldJudge())
        UserAccounts(store.database).add("alice", "user")
    with BackgroundServer(settings) as running:
        yield running


def test_own_jobs_without_the_file_of_the_store(
    server: BackgroundServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Store.open(server.settings.store.location) as store:
        row, token = UserTokens(store.database).add("alice", "read", 10**15)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    assert main(["login", server.url]) == 0
    assert (home / "login.json").stat().st_mode & 0o777 == 0o600
    assert token not in capsys.readouterr().err
    assert main(["login"]) == 0
    assert main(["jobs", "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert [job["job_id"] for job in json.loads(out[out.index("[") :])] == [12]
    assert main(["jobs"]) == 0
    assert main(["report", "12"]) == 0
    assert "alice" in capsys.readouterr().out
    assert main(["report"]) == 0
    assert main(["explain", "12"]) == 0
    capsys.readouterr()
    assert main(["fit", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"].startswith("alpha:12:")
    assert main(["fit", "--name", "multiply"]) == 0
    assert "alpha:12:" in capsys.readouterr().out
    assert main(["fit", "13"]) != 0
    assert main(["fit", "--name", "nothing"]) == 1
    assert "has no run with the name nothing" in capsys.readouterr().err
    script = home / "job.sh"
    script.write_text("#!/bin/sh\n")
    assert main(["fit", "--script", str(script)]) == 1
    assert "has no run with the script" in capsys.readouterr().err
    assert main(["findings", "list", "--since", "2020-01-01", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [each["user"] for each in listed] == ["alice"]
    assert main(["findings", "list", "--since", "2020-01-01"]) == 0
    assert main(["findings", "summary", "--since", "2020-01-01", "--by", "user"]) == 0
    out = capsys.readouterr().out
    assert "alice" in out
    assert "bob" not in out
    assert main(["report", "13"]) != 0
    assert "13" in capsys.readouterr().err
    with Store.open(server.settings.store.location) as store:
        UserTokens(store.database).revoke(row.id)
    assert main(["jobs"]) == 1
    assert "log in again with `jobsight login" in capsys.readouterr().err
    assert main(["login", "--forget"]) == 0
    assert not (home / "login.json").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://x", "expected https://HOST"),
        ("http://server.example.org", "the token would be sent in clear"),
        ("https://u:p@server.example.org", "expected https://HOST"),
        ("https://", "expected https://HOST"),
    ],
)
def test_wrong_addresses(
    home: Path, url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["login", url]) == 2
    assert words in capsys.readouterr().err


def test_a_login_that_others_can_read_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "login.json").write_text('{"url": "http://127.0.0.1:1", "token": "x"}')
    (home / "login.json").chmod(0o644)
    assert main(["jobs"]) == 2
    assert "can be used by others" in capsys.readouterr().err
    (home / "login.json").chmod(0o600)
    (home / "login.json").write_text("damaged")
    assert main(["jobs"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_the_file_is_below_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert login_file().name == "login.json"
