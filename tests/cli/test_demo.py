"""``jobsight demo`` with samples of a moment; the full one is `make run ONCE=1`."""

import socket
import sys
from pathlib import Path

import pytest

from jobsight.cli import demo, main
from jobsight.samples import Sample, samples
from jobsight.scheduler.records import JobRecord
from jobsight.store.findings.read import list_kinds
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store


def tiny_samples() -> list[Sample]:
    script = "import sys; print('hello'); sys.exit(0)"
    return [
        Sample(name, "a moment's work", 1, ("--cpus", "1"), (sys.executable, "-c", script))
        for name in ("first", "second")
    ]


def test_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "samples", tiny_samples)
    store = tmp_path / "store.db"
    assert main.main(["demo", "--once", "--port", "0", "--store", str(store)]) == 0
    shown = capfd.readouterr().out
    assert "http://127.0.0.1:" in shown
    assert "Job 1  first" in shown
    assert "Job 2  second" in shown
    opened = Store.open(str(store))
    assert [row.info.state for row in opened.runs(limit=9)] == ["COMPLETED", "COMPLETED"]
    opened.close()


def test_a_sample_that_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Sample("broken", "nothing", 1, (), ("/bin/sh", "-c", "exit 9"))
    monkeypatch.setattr(demo, "samples", lambda: [failing])
    arguments = ["demo", "--once", "--port", "0", "--store", str(tmp_path / "store.db")]
    assert main.main(arguments) == 1
    assert "jobsight: the sample job broken ended with 9" in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        arguments = ["demo", "--once", "--port", str(port), "--store", str(tmp_path / "store.db")]
        assert main.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"jobsight: port {port} of 127.0.0.1 is in use; choose another")
    assert said.count("\n") == 1


def test_the_real_samples_can_be_started() -> None:
    found = samples()
    assert [sample.name for sample in found] == ["parallel", "memory", "files", "storm"]
    assert all(Path(word).exists() for sample in found for word in sample.command[:2])


def test_a_made_up_site_is_served(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store.db"
    arguments = ["demo", "--site", "--runs", "60", "--once", "--port", "0", "--store", str(store)]
    for _ in range(2):
        # The second time the store is served as it is.
        assert main.main(arguments) == 0
        shown = capfd.readouterr().out
        assert "A made-up site with 60 runs; nothing of it is real." in shown
        assert "http://127.0.0.1:" in shown
    with Store.open(str(store)) as opened:
        pending = read_snapshot(opened.database, "north", "pending", JobRecord)
        assert pending
        assert all(record.info.state == "PENDING" and record.reason for record in pending)
        assert list_kinds(opened.database, 0)
