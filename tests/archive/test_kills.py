"""Killed with -9 at every step, and done again: each run is there exactly once."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from jobsight.archive.reader import Reader
from jobsight.archive.storage import open_storage
from jobsight.archive.verify import check_archive
from jobsight.config.settings import ArchiveSettings
from jobsight.store.store import Store
from tests.archive import months, s3

ROOT = Path(__file__).parents[2]


def kill_all_over(location: str, settings: ArchiveSettings, stride: int = 1) -> int:
    """How many steps there are at which the archiver was killed."""
    arguments = [location, msgspec.json.encode(settings).decode(), str(stride)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.archive.killed", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout) - 1


def check(location: str, settings: ArchiveSettings, steps: int, stride: int) -> None:
    base = settings.location
    for step in range(1, steps + 2, stride):
        settings.location = f"{base}/{step}"
        place = open_storage(settings)
        found = check_archive(place)
        assert (found.problems, found.parts, found.runs) == ([], 1, 2), step
        assert [run.job_id for run in Reader(place).versions()] == [1, 2]
    # The store knows of the last one.
    with Store.open(location) as store:
        assert check_archive(place, store).problems == []


def kill_and_check(location: str, settings: ArchiveSettings, stride: int) -> None:
    with Store.open(location) as store:
        months.fill(store)
    steps = kill_all_over(location, settings, stride)
    # Five files: each is begun, written, put; then the mark. Before each of these, and after.
    assert steps > 30
    check(location, settings, steps, stride)


@pytest.mark.long
def test_killed_at_every_step(location: str, settings: ArchiveSettings) -> None:
    kill_and_check(location, settings, 1)


def test_killed_at_some_steps(location: str, settings: ArchiveSettings) -> None:
    kill_and_check(location, settings, 9)


@pytest.mark.parametrize("location", ["sqlite"], indirect=True)
def test_killed_while_a_service_is_written_to(
    location: str, service: s3.Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "aside"))
    (tmp_path / "aside").mkdir()
    kill_and_check(location, service.settings(tmp_path, "killed"), 14)
    assert list((tmp_path / "aside").iterdir()) == []
