"""Readings that jobs share, descriptors that stay open, work next to the loop."""

import threading
from pathlib import Path

import pytest

from jobsight.agent.samplers.node import OpenFiles
from jobsight.agent.samplers.readings import Background, run_command
from jobsight.model import SECOND
from tests.agent.samplers.jobs import Job


def test_one_reading_serves_all_jobs_of_a_round(job: Job) -> None:
    read = 0

    def count() -> int:
        nonlocal read
        read += 1
        return read

    assert job.node.reading("x", count) == (1000 * SECOND, 1)
    job.clock.go(0.4)
    assert job.node.reading("x", count).value == 1
    assert job.node.reading("y", count).value == 2
    job.clock.go(0.2)
    assert job.node.reading("x", count) == (1000 * SECOND + 6 * SECOND // 10, 3)


def test_a_reading_that_failed_is_tried_again(job: Job) -> None:
    def fail() -> int:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        job.node.reading("x", fail)
    assert job.node.reading("x", lambda: 5).value == 5


def test_shared_things_are_made_once_and_closed(job: Job) -> None:
    files = job.node.shared("f", OpenFiles)
    assert job.node.shared("f", OpenFiles) is files
    job.node.close()
    assert job.node.shared("f", OpenFiles) is not files


def test_kept_files_are_whole_and_bounded(tmp_path: Path) -> None:
    files = OpenFiles(limit=2)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode() * 200_000)
        assert files.read(tmp_path / name) == name.encode() * 200_000
    assert len(files._descriptors) == 2
    assert files.read(Path("/proc/self/mountinfo")) == Path("/proc/self/mountinfo").read_bytes()
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none")
    files.close()
    assert files._descriptors == {}


def test_background_gives_results_errors_and_patience() -> None:
    work: Background[int] = Background("test", timeout=60)
    assert work.run(lambda: 3) == 3
    with pytest.raises(OSError, match="no"):
        work.run(lambda: (_ for _ in ()).throw(OSError("no")))
    gate = threading.Event()
    assert work.run(lambda: gate.wait(100) and 4, timeout=0.01) is None
    # While one hangs nothing else is begun and nobody waits.
    assert work.run(lambda: 5) is None
    assert work.busy
    gate.set()
    assert work.run(lambda: 6, timeout=60) == 4
    assert work.run(lambda: 6) == 6


def test_a_command_is_stopped_and_its_failure_told() -> None:
    assert run_command(["/bin/echo", "a b"], 60) == "a b\n"
    with pytest.raises(OSError, match=r"did not finish in 0\.1 s"):
        run_command(["/bin/sleep", "60"], 0.1)
    with pytest.raises(OSError, match="exited with status 1"):
        run_command(["/bin/false"], 60)
    with pytest.raises(FileNotFoundError):
        run_command(["/no/such/command"], 60)
