from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobsight.errors import JobsightError
from jobsight.util.locks import AlreadyRunning, LockFile, is_locked


def test_a_second_process_gets_the_pid_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from jobsight.util.locks import LockFile\n"
        "LockFile(Path(sys.argv[1]), 'the agent'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(AlreadyRunning, match=f"the agent is already running .* {other.pid}$"):
            LockFile(path, "the agent")
        assert is_locked(path)
        other.kill()
    assert not is_locked(path)
    with LockFile(path, "the agent"):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()
    assert not is_locked(path)


def test_a_file_that_its_owner_removes_meanwhile_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = tmp_path / "lock"
    flock = fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with LockFile(path, "the agent"), pytest.raises(AlreadyRunning):
        LockFile(path, "the agent")


def test_many_threads_hold_the_lock_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "directory" / "lock"
    holders: list[int] = []
    most: list[int] = []

    def work() -> None:
        acquired = 0
        while acquired < 20:
            try:
                lock = LockFile(path, "the test", make_directory=True)
            except AlreadyRunning:
                continue
            holders.append(1)
            most.append(len(holders))
            holders.pop()
            acquired += 1
            path.unlink()
            try:
                path.parent.rmdir()
            except OSError:
                pass
            lock.close(remove=False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert set(most) == {1}


def test_a_directory_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JobsightError, match="cannot be written: No such file"):
        LockFile(tmp_path / "none" / "lock", "the agent")
    with LockFile(tmp_path / "none" / "lock", "the agent", make_directory=True):
        assert (tmp_path / "none").stat().st_mode & 0o777 == 0o700


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JobsightError, match="cannot be written"):
        LockFile(tmp_path / "file" / "lock", "the agent", make_directory=True)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(JobsightError):
        LockFile(tmp_path / "lock", "the agent")
    assert (tmp_path / "victim").read_bytes() == b"precious"
