import json
from pathlib import Path

import pytest

from jobsight.cli import report as report_command
from jobsight.cli.main import main
from jobsight.config.settings import Settings
from jobsight.server.serve import BackgroundServer
from jobsight.store.store import Store
from tests.server.batches import batch
from tests.user import as_a_user


@pytest.fixture(autouse=True)
def _a_shell_outside_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOBSIGHT_JOB", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(report_command, "user_name", lambda: "alice")
    monkeypatch.setattr("jobsight.config.paths.config_directories", list)


@pytest.fixture
def location(tmp_path: Path) -> str:
    with Store.open(tmp_path / "store.db") as store:
        store.write(batch(12))
        store.write(batch(13, user="bob", name="theirs"))
        store.write(batch(63, user="bob", array_job_id=62, array_task_id=3))
    return str(tmp_path / "store.db")


def test_the_text(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "12", "--store", location]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Job 12  multiply")
    assert "\x1b" not in shown
    assert "not attributed" in shown


def test_the_same_as_json(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "alpha:12", "--json", "--store", location]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["display_id"] == "12"
    assert made["coverage_notes"][0].startswith("CPU time: exact")


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, "12"),
        ({"SLURM_JOB_ID": "13"}, "13"),
        ({"SLURM_JOB_ID": "63", "SLURM_ARRAY_JOB_ID": "62", "SLURM_ARRAY_TASK_ID": "3"}, "62_3"),
        ({"SLURM_JOB_ID": "13", "JOBSIGHT_JOB": "alpha:12:20261115T043312Z"}, "12"),
    ],
)
def test_without_an_argument(
    location: str,
    variables: dict[str, str],
    job: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["report", "--json", "--store", location]) == 0
    assert json.loads(capsys.readouterr().out)["display_id"] == job


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["99"], 1, "99"),
        (["a.b"], 2, "'a.b' does not name a run"),
        (["a:1:20269999T999999Z"], 2, "does not name a run"),
    ],
)
def test_mistakes(
    location: str, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments, "--store", location]) == code
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.startswith("jobsight: ")
    assert shown.count("\n") == 1


def test_no_store_and_no_job(
    tmp_path: Path,
    location: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["report", "--store", str(tmp_path / "none" / "store.db")]) == 1
    assert "there is no store at" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(report_command, "user_name", lambda: "carol")
    assert main(["report", "--store", location]) == 1
    assert "the store has no job of carol" in capsys.readouterr().err


def test_a_store_in_a_folder_that_may_not_be_entered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    arguments = ["report", "--store", str(closed / "store.db")]
    assert main(arguments) == 1
    assert "there is no store at" in capsys.readouterr().err
    closed.chmod(0)
    try:
        with as_a_user():
            assert main(arguments) == 1
    finally:
        closed.chmod(0o700)
    assert f"the store {closed}/store.db may not be read by alice" in capsys.readouterr().err


def test_from_the_server_where_the_store_may_not_be_read(
    location: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_command, "is_readable", lambda location: False)
    settings = Settings()
    settings.store.location = location
    settings.server.port = 0
    with BackgroundServer(settings):
        assert main(["report", "--store", location]) == 0
        assert capsys.readouterr().out.startswith("Job 12  multiply")
        assert main(["report", "99", "--store", location]) == 1
        assert "99" in capsys.readouterr().err
    assert main(["report", "--store", location]) == 1
    assert "may not be read by alice" in capsys.readouterr().err
