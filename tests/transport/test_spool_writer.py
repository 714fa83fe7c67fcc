"""A disk that is slow must not stop the loop, and what it cannot take is counted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from jobsight.model import Batch, ExecutableUse, JobPart, Sighting
from jobsight.transport.spool import Spool, SpoolWriter
from jobsight.transport.wire import decode


def batch() -> Batch:
    return Batch(cluster="c", node="n", spool="", sequence=0, written=1, monotonic=1, agent="test")


class SlowSpool(Spool):
    """A disk that takes its time over each batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go_on = threading.Event()

    def put(self, batch: Batch) -> bool:
        self.go_on.wait(100)
        return super().put(batch)


def test_batches_are_written_in_their_order_and_all_before_the_end(tmp_path: Path) -> None:
    told: list[int] = []
    spool = Spool(tmp_path / "spool")
    writer = SpoolWriter(spool, lambda: told.append(len(spool)))
    for _ in range(5):
        writer.put(batch())
    writer.end()
    assert [decode(data).sequence for _, data in spool.pending()] == [1, 2, 3, 4, 5]
    assert len(told) == 5
    spool.close()


def test_putting_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    spool = SlowSpool(tmp_path / "spool")
    writer = SpoolWriter(spool)
    # The disk accepts nothing until it is allowed to: put() returns nevertheless.
    writer.put(batch())
    writer.put(batch())
    assert len(spool) == 0
    spool.go_on.set()
    writer.end()
    assert len(spool) == 2
    spool.close()


def test_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobsight.transport.spool.MAX_QUEUED", 2)
    spool = SlowSpool(tmp_path / "spool")
    writer = SpoolWriter(spool)
    for _ in range(10):
        writer.put(batch())
    assert spool.dropped >= 7
    assert "too slow" in spool.problem
    spool.go_on.set()
    writer.end()
    spool.close()


def test_an_error_in_one_batch_does_not_end_the_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Threat S-28: a number that no batch can carry."""
    spool = Spool(tmp_path / "spool")
    writer = SpoolWriter(spool)
    bad = batch()
    bad.written = 10**30
    for one in (batch(), bad, bad, batch()):
        writer.put(one)
    writer.end()
    assert len(list(spool.pending())) == 2
    assert spool.dropped == 2
    assert "OverflowError" in spool.problem
    assert len([line for line in caplog.records if "could not be written" in line.message]) == 1
    spool.close()


def test_batches_that_wait_for_the_disk_are_limited_in_bytes(tmp_path: Path) -> None:
    spool = SlowSpool(tmp_path / "spool")
    writer = SpoolWriter(spool)
    sighting = Sighting(cluster="c", job_id=1, node="n", boot_id="b", birth=1)
    rows = [ExecutableUse(path=b"x" * 3800) for _ in range(1000)]
    for _ in range(50):
        one = batch()
        one.parts = [JobPart(sighting=sighting, epoch="e", executables=rows)]
        writer.put(one)
    assert spool.dropped > 40
    spool.go_on.set()
    writer.end()
    spool.close()


def test_missing_parents_of_a_spool_are_private(tmp_path: Path) -> None:
    Spool(tmp_path / "a" / "b" / "spool").close()
    for directory in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "spool"):
        assert directory.stat().st_mode & 0o777 == 0o700
