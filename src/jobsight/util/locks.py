"""Lock files: one process at a time, however the process before it ended.

The kernel releases an flock with its last descriptor. A file that its owner removes while another
process waits or opens it makes a race: the other would lock a file without a name. Each lock is
therefore compared with the name after it was acquired, and taken again if they differ.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from jobsight.errors import JobsightError
from jobsight.util.durable import make_private_directory


class AlreadyRunning(JobsightError):
    """Another process holds the lock."""


class LockFile:
    """An exclusive lock on a file that holds the PID of its owner. Never blocks.

    Raises :class:`AlreadyRunning` if another process holds the lock and :class:`JobsightError` if
    the file cannot be created. ``owner`` names the program in the error: "the agent".
    """

    def __init__(
        self, path: Path, owner: str, *, mode: int = 0o644, make_directory: bool = False
    ) -> None:
        """With ``make_directory`` the directory is created with mode 0700, again if its former
        owner removes it at the same time."""
        self.path = path
        try:
            self._descriptor = _acquire(path, owner, mode, make_directory)
        except OSError as error:
            raise JobsightError(f"{path} cannot be written: {error.strerror}") from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:
            # A full disk: the lock holds without the PID.
            pass

    def close(self, *, remove: bool = True) -> None:
        """Release the lock, and remove the file before that so that nobody locks a leftover."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def __enter__(self) -> LockFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a :class:`LockFile` now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _acquire(path: Path, owner: str, mode: int, make_directory: bool) -> int:
    while True:
        try:
            if make_directory:
                make_private_directory(path.parent)
            descriptor = _lock(path, owner, mode)
        except (FileExistsError, FileNotFoundError):
            # Another process removed the directory between two of these calls: try again.
            # A file in place of the directory is an error.
            in_the_way = os.path.lexists(path.parent) and not path.parent.is_dir()
            if not make_directory or in_the_way:
                raise
            continue
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _lock(path: Path, owner: str, mode: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise AlreadyRunning(
            f"{owner} is already running" + (f" as process {pid}" if pid.isdigit() else "")
        ) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
