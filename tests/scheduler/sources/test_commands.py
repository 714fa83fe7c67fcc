"""``jobsight scrape`` and ``jobsight jobs`` as a person runs them."""

import csv
import io
import json
import logging
import os
import time
from pathlib import Path

import pytest

from jobsight.cli.jobs import parse_since
from jobsight.cli.main import main
from jobsight.config.settings import Settings, StoreSettings
from jobsight.errors import ConfigError
from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.scraper import scraping
from jobsight.scheduler.state import read_state
from jobsight.store.store import Store
from tests.waiting import wait_until

DATA = Path(__file__).parents[2] / "data" / "slurm"
START = 1_790_000_000 * SECOND


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JOBSIGHT_CLUSTER", "lab")
    monkeypatch.setenv("JOBSIGHT_SCHEDULER__RECORDED", str(DATA))
    return str(tmp_path / "store.db")


def test_a_recorded_cluster_becomes_a_table(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scrape", "--once", "--store", location]) == 0
    said = capsys.readouterr().out
    assert "asked    recorded: scheduler.recorded names a directory" in said
    assert main(["scrape", "--once", "--store", location]) == 0
    assert "0 new or changed" in capsys.readouterr().out

    assert main(["jobs", "--store", location, "--limit", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["job", "user", "account", "name"]
    assert len(lines) > 45
    columns = "display_id,user,state,exit_code,exit_signal,name"
    options = ["--format", "csv", "--columns", columns, "--limit", "500", "--user", "alice"]
    assert main(["jobs", "--store", location, *options]) == 0
    rows = {row["display_id"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert {row["user"] for row in rows.values()} == {"alice"}
    assert rows["15"]["state"] == "OUT_OF_MEMORY"
    # The accounting's JSON of 22.05 does not have it; the controller's does.
    assert rows["12"]["exit_code"] == "42"
    assert main(["jobs", "--store", location, "-t", "failed", "-o", "json", "-n", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in found] == ["FAILED", "FAILED"]
    with Store.open(location) as store:
        assert read_state(store.database, "lab").healthy


def test_names_do_nothing_to_a_terminal(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "[bold]x[/bold]\x1b[31m\nroot COMPLETED"
    info = JobInfo(cluster="lab", job_id=1, source="squeue", start=START, name=name, user="a")
    with Store.open(location) as store:
        store.record_jobs([info])
    assert main(["jobs", "--store", location, "--columns", "job_id,name"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]x[/bold]" in out
    assert main(["jobs", "--store", location, "-o", "json", "--columns", "name"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": name}]


def test_wrong_words_are_one_line(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["jobs", "--columns", "x", "--store", location], "there is no 'x'"),
        (["jobs", "--since", "soon", "--store", location], "expected 7d"),
        (["jobs", "--store", location], "there is no store"),
        (["scrape", "--store", location], "either --once or --every"),
        (["scrape", "--once", "--every", "5", "--store", location], "either --once or --every"),
        (["scrape", "--once", "--source", "x", "--store", location], "expected one of"),
    ):
        assert main(arguments) != 0
        assert words in capsys.readouterr().err


def test_slurm_away_is_one_line_and_status_1(
    location: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    arguments = ["scrape", "--once", "--source", "text", "--store", location]
    assert main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    # The log has a warning of its own about QOS and associations.
    assert all(line.startswith("jobsight: ") for line in lines)
    (line,) = [line for line in lines if "are not known" not in line]
    assert line.startswith("jobsight: squeue cannot be run")


#: What a wrapper, a broken installation or another program may print in place of a reply.
GARBAGE = {
    "random bytes": bytes(range(256)) * 40,
    "half of a document": b'{"meta": {}, "jobs": [{"job_id": 12, "job_st',
    "a page": b"<!DOCTYPE html><html><body>Sign in</body></html>\n",
    "another document": b'{"answer": 42}',
    "other columns": b"a|b|c\n1|2|3\n",
    "nothing": b"",
}


@pytest.mark.parametrize("source", ["json", "text"])
@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_of_the_commands_is_one_line_and_changes_nothing(
    location: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    kind: str,
) -> None:
    assert main(["scrape", "--once", "--store", location]) == 0
    with Store.open(location) as store:
        before = [(run.info, run.start) for run in store.runs()]
    commands = tmp_path / "commands"
    commands.mkdir()
    (commands / "reply").write_bytes(GARBAGE[kind])
    for name in ("squeue", "sacct", "sinfo", "scontrol", "sacctmgr", "sshare", "sprio", "sdiag"):
        script = commands / name
        script.write_text(f"#!/bin/sh\nexec cat {commands}/reply\n")
        script.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.delenv("JOBSIGHT_SCHEDULER__RECORDED")
    monkeypatch.setenv("PATH", f"{commands}:{path}")
    capsys.readouterr()
    status = main(["scrape", "--once", "--source", source, "--store", location])
    said = capsys.readouterr().err
    # No rows at all may be a cluster without jobs.
    assert status == 1 or (kind == "nothing" and source == "text")
    assert "Traceback" not in said
    assert all(line.startswith("jobsight: ") for line in said.splitlines())
    assert said or status == 0
    with Store.open(location) as store:
        assert [(run.info, run.start) for run in store.runs()] == before
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("JOBSIGHT_SCHEDULER__RECORDED", str(DATA))
    assert main(["scrape", "--once", "--store", location]) == 0


def test_since() -> None:
    assert parse_since("2h", START) == START - 7200 * SECOND
    assert parse_since("2026-11-15T00:00+00:00", START) == 1794700800 * SECOND
    with pytest.raises(ConfigError):
        parse_since("2h ago", START)


def test_a_server_scrapes_beside_its_work(location: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(cluster="lab", store=StoreSettings(location=location))
    settings.scheduler.recorded = str(DATA)
    settings.scheduler.interval = 0.05
    with Store.open(location) as store:
        with scraping(settings, store):
            wait_until(lambda: read_state(store.database, "lab").healthy)
        assert store.count_runs() > 45
    assert caplog.messages == [] or "exit_code" in caplog.text


def test_a_server_says_once_that_slurm_is_away(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(cluster="lab", store=StoreSettings(location=location))
    settings.scheduler.interval = 0.01
    settings.scheduler.source = "rest"
    settings.scheduler.rest.url = f"unix:{location}.socket"
    caplog.set_level(logging.WARNING)
    with Store.open(location) as store, scraping(settings, store):
        wait_until(lambda: caplog.messages)
        # Time for many more attempts.
        time.sleep(0.5)
    (message,) = [message for message in caplog.messages if "cluster lab" in message]
    assert "No such file" in message


def test_several_clusters_and_a_sink_in_one_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "jobsight.toml"
    file.write_text(
        f"[store]\nlocation = '{tmp_path}/store.db'\n"
        f"[clusters.one]\nrecorded = '{DATA}'\n[clusters.two]\nrecorded = '{tmp_path}/none'\n"
        "[sinks.opensearch]\nurl = 'http://127.0.0.1:9'\n"
    )
    assert main(["scrape", "--once", "--config", str(file)]) == 1
    shown = capsys.readouterr()
    assert "cluster  one" in shown.out
    assert "cluster  two" in shown.out
    assert "jobsight: two: the directory" in shown.err
    assert caplog.text.count("OpenSearch does not answer") == 1
    with Store.open(tmp_path / "store.db") as store:
        assert {run.info.cluster for run in store.runs(limit=1000)} == {"one"}
