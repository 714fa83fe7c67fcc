"""``jobsight support-bundle`` with planted secrets and names: none of them is in the file."""

from __future__ import annotations

import pwd
import tarfile
from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.cli.support_bundle import Scrubber
from jobsight.config.settings import Settings
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from tests.store.sample import info

pytestmark = pytest.mark.server

SECRETS = {
    "url": "pa55-of-the-url",
    "password": "correct-horse-battery",
    "header": "tenant-secret-0815",
    "hash": "pbkdf2-sha256$300000$c2FsdA$aGFzaA",
    "token": "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4",
    "logged": "hunter2hunter2",
    "bearer": "abc.def.ghi",
}
NAMES = ("marie.curie", "lise-m", "emmy")


def bundle(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        found = {}
        for member in tar.getmembers():
            opened = tar.extractfile(member)
            assert opened is not None
            found[member.name.partition("/")[2]] = opened.read().decode()
        return found


def test_planted_secrets_and_names_are_not_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store.db"
    with Store.open(store) as opened:
        opened.record_jobs([info(number, user=name) for number, name in enumerate(NAMES[:2], 1)])
    entry = pwd.struct_passwd((NAMES[2], "x", 4711, 4711, "", "/home/emmy", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    password = tmp_path / "password"
    password.write_text(SECRETS["password"] + "\n")
    token = tmp_path / "token"
    token.write_text(SECRETS["token"] + "\n")
    token.chmod(0o600)
    config = tmp_path / "jobsight.toml"
    config.write_text(
        f"""cluster = "alpha"
[store]
location = "{store}"
[server]
token_file = "{token}"
port = 0
[server.remote_write]
url = "https://writer:{SECRETS["url"]}@mimir.test/push"
headers = {{ X-Scope-OrgID = "{SECRETS["header"]}" }}
[sinks.mongodb]
url = "mongodb://jobsight:{SECRETS["url"]}@db.test:27017"
[sinks.opensearch]
url = "http://127.0.0.1:1"
user = "admin-of-opensearch"
password_file = "{password}"
[agent]
spool = "{tmp_path}"
[agent.metrics]
user = "prometheus"
password_hash = "{SECRETS["hash"]}"
"""
    )
    log = tmp_path / "own.log"
    log.write_text(
        f"marie.curie ran /home/emmy/app with --password={SECRETS['logged']}\n"
        f"Authorization: Bearer {SECRETS['bearer']}\n"
        f"lise-m <lise-m@example.org> wrote {SECRETS['password']}; token {SECRETS['token']}\n"
        f"mongodb://jobsight:{SECRETS['url']}@db.test:27017 does not answer; marie.curie's job\n"
        "the batch of node n1 was stored\n"
    )
    # The sinks are not tried: MongoDB's client waits half a minute for an address like this one.
    monkeypatch.setattr("jobsight.scheduler.sinks.feeder.open_sinks", lambda sinks: [])
    settings = Settings()
    settings.store.location = str(store)
    settings.server.port = 0
    settings.server.token_file = str(token)
    file = tmp_path / "bundle.tar.gz"
    with BackgroundServer(settings):
        arguments = ["--config", str(config), "--log", str(log), "--output", str(file)]
        assert main(["support-bundle", *arguments]) == 0
    assert "Look into it before you" in capsys.readouterr().out
    found = bundle(file)
    whole = "\n".join(found.values())
    for what, secret in SECRETS.items():
        assert secret not in whole, what
    for name in (*NAMES, "admin-of-opensearch"):
        assert name not in whole, name
    # It is of use nevertheless.
    assert "the batch of node n1 was stored" in found["log-1.txt"]
    assert "user-" in found["log-1.txt"]
    assert '"cluster": "alpha"' in found["settings.json"]
    assert "db.test:27017" in found["settings.json"]
    assert '"healthy"' in found["health.json"]
    assert "jobsight_server_batches_total" in found["metrics.txt"]
    assert '"runs": 2' in found["store.json"]
    assert '"verdict"' in found["doctor.json"]
    assert "jobsight" in found["about.json"]


def test_an_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bundle.tar.gz"
    file.write_text("mine")
    config = tmp_path / "jobsight.toml"
    config.write_text(f'[store]\nlocation = "{tmp_path / "store.db"}"\n')
    assert main(["support-bundle", "--config", str(config), "--output", str(file)]) == 1
    assert file.read_text() == "mine"
    assert "is kept" in capsys.readouterr().err


def test_words_that_contain_a_name_are_not_changed() -> None:
    scrubber = Scrubber(["a-secret"], ["ann", "bob"])
    assert scrubber.clean("ann planned a channel; bob's") == "user-1 planned a channel; user-2's"
    assert scrubber.clean("x a-secret y") == "x (masked) y"
    assert scrubber.clean("token_file = /etc/jobsight/token") == "token_file = /etc/jobsight/token"
