"""``jobsight open`` prints the address of a page."""

from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.transport.login import Login, write_login


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("JOBSIGHT_JOB", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "JOBSIGHT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("JOBSIGHT_STORE__LOCATION", str(tmp_path / "store.db"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["open", *arguments]) == 0
    return capsys.readouterr().out


def test_the_address_of_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBSIGHT_URL", "https://jobsight.example.org/")
    address = "https://jobsight.example.org"
    assert printed(capsys, "12") == f"{address}/jobs/12\n"
    assert printed(capsys, "alpha:62_3", "--print") == f"{address}/jobs/alpha:62_3\n"
    assert printed(capsys, "88+1") == f"{address}/jobs/88+1\n"
    assert printed(capsys) == f"{address}/\n"
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert printed(capsys) == f"{address}/jobs/77\n"


def test_the_setting_names_the_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBSIGHT_SERVER__URL", "https://other.example.org")
    assert printed(capsys, "12") == "https://other.example.org/jobs/12\n"


def test_the_server_of_a_login(capsys: pytest.CaptureFixture[str]) -> None:
    write_login(Login(url="https://login.example.org", token="a-token-of-the-tests"))
    assert printed(capsys, "12") == "https://login.example.org/jobs/12\n"


def test_mistakes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["open", "12"]) == 1
    assert "no server is known" in capsys.readouterr().err
    monkeypatch.setenv("JOBSIGHT_URL", "https://jobsight.example.org")
    assert main(["open", "no run"]) != 0
    assert "does not name a run" in capsys.readouterr().err
