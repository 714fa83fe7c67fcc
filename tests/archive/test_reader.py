"""What was archived comes back: to the pages when it was pruned, and into the store."""

from array import array
from pathlib import Path

import pytest

from jobsight.archive.reader import Reader, attach
from jobsight.archive.restore import restore
from jobsight.archive.storage import ArchiveError, Storage, open_storage
from jobsight.archive.writer import write_archive
from jobsight.config.settings import ArchiveSettings, RetentionSettings
from jobsight.model import SECOND, RunReference, Series
from jobsight.reports.build import build_report
from jobsight.store.maintenance.retention import prune
from jobsight.store.store import Store
from tests.archive import months
from tests.archive.months import HOUR, LATER, NOVEMBER, OCTOBER
from tests.store.many import DAY, count, summed
from tests.store.sample import batch, part, sighting


def test_pruned_runs_read_as_before(
    filled: Store, place: Storage, settings: ArchiveSettings
) -> None:
    before = months.everything(filled)
    reports = [build_report(filled, run, clock=lambda: LATER) for run in filled.runs()]
    write_archive(filled, place, LATER)
    months.prune(filled)
    assert months.everything(filled) != before
    attach(filled, settings)
    assert months.everything(filled) == before
    found = [build_report(filled, run, clock=lambda: LATER) for run in filled.runs()]
    assert found == reports


def test_what_retention_takes_is_read_from_the_archive(
    filled: Store, place: Storage, settings: ArchiveSettings
) -> None:
    before = months.everything(filled)
    summed(filled)
    keep = RetentionSettings(series=1, downsampled=2, executables=1, only_archived=True)
    now = LATER + 10 * DAY
    prune(filled.database, keep, now, pause=lambda seconds: None)
    # Nothing was archived, so nothing went.
    assert months.everything(filled) == before
    write_archive(filled, place, LATER)
    months.late(filled, 2, OCTOBER + HOUR, name="changed")
    taken = prune(filled.database, keep, now, pause=lambda seconds: None)
    # Five of six: the one that changed waits until it is archived again.
    assert taken["series"].waiting == 1
    assert count(filled, "chunks") == 4
    attach(filled, settings)
    found = months.everything(filled)
    assert all(found[key][3:] == rows[3:] for key, rows in before.items())


def test_runs_that_are_whole_do_not_touch_the_archive(
    filled: Store, place: Storage, settings: ArchiveSettings
) -> None:
    write_archive(filled, place, LATER)

    def nobody() -> None:
        raise AssertionError("the archive was opened")

    filled.archive = nobody  # type: ignore[assignment]
    # Job 4 has neither time series nor executables, and nothing of it was pruned.
    assert len(months.everything(filled)) == 6


def test_forgotten_runs_come_back_into_the_store(filled: Store, place: Storage) -> None:
    before = months.everything(filled)
    write_archive(filled, place, LATER)
    months.drop_runs(filled)
    reader = Reader(place)
    found = reader.versions()
    assert [run.job_id for run in found] == [1, 2, 3, 3, 4, 5]
    assert [restore(filled, reader, run) for run in found] == [True] * 6
    assert months.everything(filled) == before
    # Once is enough, and the archive need not have them again.
    assert [restore(filled, reader, run) for run in found] == [False] * 6
    assert write_archive(filled, place, LATER).runs == 0
    assert count(filled, "runs", "stale") == 0


def test_what_came_later_stays(filled: Store, place: Storage) -> None:
    write_archive(filled, place, LATER)
    months.prune(filled)
    second = OCTOBER + 5000 * SECOND
    series = Series(array("q", [second]), {"cpu.time": array("q", [77])})
    filled.write(batch(part(sighting(1, birth=OCTOBER + SECOND), series=series, final=True)))
    reader = Reader(place)
    (run,) = reader.versions(reference=RunReference(1, "c1"))
    assert restore(filled, reader, run)
    stored = filled.find(RunReference(1))
    (found,) = filled.series(stored.id)
    assert len(found.times) == 42
    assert found.columns["cpu.time"][-1] == 77


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("3", [NOVEMBER, NOVEMBER + 2 * HOUR]),
        ("c1:3:20261103T110000Z", [NOVEMBER + 2 * HOUR]),
        ("c2:3", []),
        ("3_1", []),
        ("6", []),
    ],
)
def test_runs_are_found_as_people_name_them(tmp_path: Path, text: str, starts: list[int]) -> None:
    place = open_storage(ArchiveSettings(location=str(tmp_path / "archive")))
    with Store.open(tmp_path / "store.db") as store:
        months.fill(store)
        write_archive(store, place, LATER)
    reference = RunReference.parse(text)
    found = Reader(place).versions(reference.cluster, reference=reference)
    assert [run.start for run in found] == starts


@pytest.mark.parametrize("name", ["../outside.parquet", "runs/../../x", "/etc/passwd", "a/.."])
def test_no_name_of_a_manifest_leads_out_of_the_archive(place: Storage, name: str) -> None:
    for access in (place.open, place.exists, place.remove, place.names):
        with pytest.raises(ArchiveError, match="outside of it"):
            access(name)


def test_the_files_of_an_archive_are_not_readable_by_others(
    filled: Store, place: Storage, settings: ArchiveSettings
) -> None:
    write_archive(filled, place, LATER)
    assert settings.location is not None
    found = list(Path(settings.location).rglob("*"))
    assert found
    assert {path for path in found if path.stat().st_mode & 0o007} == set()
