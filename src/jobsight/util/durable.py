"""A file put in its place whole or not at all, and still there after a power failure.

Files that come to be whole: written under a hidden name, and shown by giving them their own.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from jobsight.errors import JobsightError

#: File systems without hard links say one of these.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def temporary_name(path: Path, owner: str = "") -> Path:
    """The name of a file that is not finished. It ends in .new, so that no reader that looks for
    ``*.json`` or ``*.prom`` takes it for one that is."""
    return path.with_name(f".{path.name[:180]}{owner and '.' + owner[:40]}.new")


def write_temporary(temporary: Path, data: bytes, mode: int) -> None:
    """Write a new file and force it to disk; what a crash left under the name goes first."""
    temporary.unlink(missing_ok=True)
    # O_EXCL: in a folder that others can write, a planted link is not followed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            # Some file systems say only here that there was no room.
            os.close(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot; the file itself is on disk.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write or replace a file."""
    temporary = temporary_name(path)
    write_temporary(temporary, data, mode)
    os.replace(temporary, path)
    sync_directory(path.parent)


def place_new(temporary: Path, path: Path) -> bool:
    """Give a finished file its name unless there is one already; False when there is."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
    else:
        os.unlink(temporary)
    return True


def make_directories(folder: Path) -> None:
    """Make a folder and those above it, each of them kept."""
    if folder.is_dir():
        return
    make_directories(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        return
    sync_directory(folder.parent)


class ExportError(JobsightError):
    """A file of the export cannot be written."""


def hidden(file: Path) -> Path:
    """The name of a file until it is complete."""
    return file.with_name(f".{file.name}.new")


def prepare(file: Path, data: bytes) -> None:
    """Write a file durably under its hidden name."""
    if file.exists():
        raise ExportError(
            f"{file} is there already, but not from this store; right: another output_path"
        )
    try:
        with open(hidden(file), "wb") as new:
            new.write(data)
            new.flush()
            os.fsync(new.fileno())
        _sync(file.parent)
    except OSError as error:
        hidden(file).unlink(missing_ok=True)
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None


def publish(file: Path) -> None:
    """Show a file. One that has no hidden name any more was shown before."""
    try:
        os.rename(hidden(file), file)
        _sync(file.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
