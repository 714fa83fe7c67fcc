"""What can go wrong with a place: one clear line, and nothing is lost."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jobsight.archive.reader import Reader, attach
from jobsight.archive.storage import ArchiveError, Storage, open_storage
from jobsight.archive.verify import check_archive
from jobsight.archive.writer import archiving, write_archive
from jobsight.config.settings import ArchiveSettings, S3Settings
from jobsight.errors import ConfigError
from jobsight.model import RunReference
from jobsight.store.store import Store
from tests.archive import months, s3
from tests.archive.months import LATER
from tests.store.many import count

ROOT = Path(__file__).parents[2]
#: What a child mounts, it alone sees.
ALONE = ("unshare", "--mount", "--propagation", "private")


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store.db")
    months.fill(store)
    return store


def fails(store: Store, place: Storage, words: str) -> None:
    """The sentence of an error, after which no run counts as archived."""
    with pytest.raises(ArchiveError, match=words) as caught:
        write_archive(store, place, LATER)
    assert "\n" not in str(caught.value)
    assert count(store, "runs", "archived IS NOT NULL") == 0


def test_a_folder_that_cannot_be_made(sqlite: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = open_storage(ArchiveSettings(location=str(tmp_path / "file" / "archive")))
    fails(sqlite, place, "the archive .*/file/archive: Not a directory")


@pytest.mark.root
def test_a_folder_that_cannot_be_written(sqlite: Store, place: Storage, tmp_path: Path) -> None:
    Path(place.location).mkdir()
    script = f"""
import subprocess
subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tiny", {place.location!r}], check=True)
from jobsight.cli.main import main
raise SystemExit(main(["archive", "write", "--store", {str(tmp_path / "store.db")!r},
    "--archive", {place.location!r}]))
"""
    done = _python(script, *ALONE)
    assert done.returncode == 1
    assert done.stderr == (
        f"jobsight: the archive {place.location} cannot be written or read: Read-only file system\n"
    )


def _python(script: str, *before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )


@pytest.mark.root
def test_a_full_disk(sqlite: Store, place: Storage, tmp_path: Path) -> None:
    folder = Path(place.location)
    folder.mkdir()
    script = f"""
import subprocess
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80k", "tiny", {str(folder)!r}], check=True)
from jobsight.archive.storage import ArchiveError, open_storage
from jobsight.config.settings import ArchiveSettings
from jobsight.archive.writer import write_archive
from jobsight.store.store import Store
from pathlib import Path
place = open_storage(ArchiveSettings(location={str(folder)!r}))
with Store.open({str(tmp_path / "store.db")!r}) as store:
    try:
        write_archive(store, place, {LATER})
    except ArchiveError as error:
        print(error)
print(sorted(file.parent.name for file in Path({str(folder)!r}).rglob("*") if file.is_file()))
"""
    done = _python(script, *ALONE)
    assert done.stdout.startswith(f"the disk of the archive {folder} is full: "), done
    # The month that fitted is there whole; of the other one nothing is left.
    assert done.stdout.splitlines()[1] == str(["month=2026-10"] * 7)
    assert count(sqlite, "runs", "archived IS NOT NULL") == 2
    # The disk has gone with the child, as one that is not mounted: nothing is written next to it.
    with pytest.raises(ArchiveError, match="mount it or correct archive"):
        write_archive(sqlite, place, LATER)
    assert list(folder.iterdir()) == []
    assert write_archive(sqlite, place, LATER, new_archive=True).runs == 4
    (problem,) = check_archive(place, sqlite).problems
    assert "is missing, with 2 runs of the store" in problem


@pytest.mark.parametrize("table", ["runs", "nodes", "executables", "steps", "findings", "series"])
@pytest.mark.parametrize("how", ["flipped", "cut", "emptied", "gone"])
def test_a_damaged_file_is_told(sqlite: Store, place: Storage, table: str, how: str) -> None:
    write_archive(sqlite, place, LATER)
    (file,) = Path(place.location).glob(f"{table}/*/month=2026-10/*.parquet")
    data = bytearray(file.read_bytes())
    if how == "flipped":
        data[len(data) // 3] ^= 16
    if how == "gone":
        file.unlink()
    else:
        kept = {"flipped": len(data), "cut": len(data) // 2, "emptied": 0}[how]
        file.write_bytes(data[:kept])
    problems = check_archive(place, sqlite).problems
    assert any(file.name in problem for problem in problems)
    assert not any("month=2026-11" in problem for problem in problems)


@pytest.mark.parametrize("table", ["nodes", "series"])
@pytest.mark.parametrize("how", ["cut", "gone", "flipped"])
def test_a_page_of_a_damaged_file(
    sqlite: Store, place: Storage, settings: ArchiveSettings, table: str, how: str
) -> None:
    before = months.everything(sqlite)
    write_archive(sqlite, place, LATER)
    months.prune(sqlite)
    attach(sqlite, settings)
    (file,) = Path(place.location).glob(f"{table}/*/month=2026-10/*.parquet")
    data = bytearray(file.read_bytes())
    if how == "gone":
        file.unlink()
    else:
        data[200] ^= 255
        file.write_bytes(data[: len(data) // 2] if how == "cut" else data)
    run = sqlite.find(RunReference(1))
    with pytest.raises(ArchiveError, match=file.name) as caught:
        sqlite.series(run.id)
    assert "\n" not in str(caught.value)
    # Runs of other files are not concerned.
    other = sqlite.find(RunReference(3))
    assert months.content(sqlite, other) in [row[3:] for row in before.values()]


def test_a_pruned_run_whose_file_is_gone_waits(sqlite: Store, place: Storage) -> None:
    write_archive(sqlite, place, LATER)
    months.prune(sqlite)
    (file,) = Path(place.location).glob("series/*/month=2026-11/*.parquet")
    aside = file.rename(file.with_suffix(".aside"))
    for job, start in ((1, months.OCTOBER), (3, months.NOVEMBER)):
        months.late(sqlite, job, start, name="late")
    done = write_archive(sqlite, place, LATER)
    assert (done.runs, done.again, done.parts) == (1, 2, 1)
    (problem,) = done.problems
    assert problem.startswith("job 3 of c1 has changed, but the archive has no ")
    # Fault 10: in the background it was a line of the log, and the archive was healthy.
    worker = archiving(sqlite, ArchiveSettings(location=place.location, older_than=0))
    assert not worker.run_once()
    assert worker.reason == problem
    aside.rename(file)
    done = write_archive(sqlite, place, LATER)
    assert (done.runs, done.problems) == (1, [])


def test_files_of_others_are_refused(sqlite: Store, place: Storage) -> None:
    write_archive(sqlite, place, LATER)
    (steps,) = Path(place.location).glob("steps/*/month=2026-10/*.parquet")
    (runs,) = Path(place.location).glob("runs/*/month=2026-10/*.parquet")
    runs.write_bytes(steps.read_bytes())
    with pytest.raises(ArchiveError, match="was not written by jobsight"):
        Reader(place).versions()
    runs.unlink()
    (Path(place.location) / "runs" / "notes.parquet").write_text("")
    with pytest.raises(ArchiveError, match="is not a file of an archive"):
        Reader(place).versions()


def test_runs_of_a_service(sqlite: Store, service: s3.Service, tmp_path: Path) -> None:
    settings = service.settings(tmp_path, "whole")
    before = months.everything(sqlite)
    place = open_storage(settings)
    assert write_archive(sqlite, place, LATER).runs == 6
    assert check_archive(place, sqlite).problems == []
    months.prune(sqlite)
    attach(sqlite, settings)
    assert months.everything(sqlite) == before
    months.late(sqlite, 1, months.OCTOBER, name="late")
    assert write_archive(sqlite, place, LATER).again == 1
    assert check_archive(place, sqlite).problems == []


def test_a_service_without_the_bucket(sqlite: Store, service: s3.Service, tmp_path: Path) -> None:
    settings = service.settings(tmp_path, "there")
    settings.location = "s3://not-there/prefix"
    fails(sqlite, open_storage(settings), "s3://not-there/prefix: there is no such bucket")


def test_a_service_that_is_away(sqlite: Store, service: s3.Service, tmp_path: Path) -> None:
    settings = service.settings(tmp_path, "away")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        settings.s3.endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    fails(sqlite, open_storage(settings), "the service is unreachable; check archive.s3.endpoint")


def test_wrong_keys(sqlite: Store, tmp_path: Path) -> None:
    with s3.running(INITIAL_NO_AUTH_ACTION_COUNT="1") as strict:
        # Making the bucket is the one request that needs no right.
        settings = strict.settings(tmp_path, "locked")
        fails(sqlite, open_storage(settings), "s3://locked/a prefix: the service .* access key")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ArchiveSettings(), "there is no archive: set archive.location"),
        (ArchiveSettings(location="s3:///prefix"), "expected s3://bucket/prefix"),
        (ArchiveSettings(location="ftp://x"), "expected a directory or s3://bucket/prefix"),
        (
            ArchiveSettings(location="s3://b", s3=S3Settings(endpoint="minio:9000")),
            "archive.s3.endpoint 'minio:9000': expected https://host:port",
        ),
        (
            ArchiveSettings(location="s3://b", s3=S3Settings(access_key="a")),
            "access_key and secret_key_file must be set together",
        ),
        (
            ArchiveSettings(
                location="s3://b", s3=S3Settings(access_key="a", secret_key_file="/not/there")
            ),
            "secret_key_file /not/there: No such file",
        ),
    ],
)
def test_settings_that_cannot_be(settings: ArchiveSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_storage(settings)
