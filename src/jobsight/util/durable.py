"""Atomic and durable files: a reader sees the old content or the new, also after a power failure.

:func:`write_atomically` replaces a file. A file that must not replace another is written with
:func:`write_temporary` and gets its name with :func:`place_new`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

#: Errors of link(2) on file systems without hard links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
#: Errors of fsync(2) on network file systems that cannot sync a directory.
_NO_DIRECTORY_SYNC: Final = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP})


def make_private_directory(directory: Path) -> None:
    """Create a directory that only its owner may enter; missing parents are created likewise."""
    for parent in [*reversed(directory.parents), directory]:
        if not parent.exists():
            parent.mkdir(mode=0o700, exist_ok=True)
    if not directory.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Create or replace a file. The umask applies to the mode.

    With ``sync`` the file and its name are on disk when the function returns. Without, a power
    failure may lose the file, but a reader still never sees a part of it.
    """
    temporary = temporary_name(path)
    write_temporary(temporary, data, mode=mode, sync=sync)
    try:
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)


def temporary_name(path: Path, owner: str = "") -> Path:
    """The name of an incomplete file, in the same directory. It begins with a dot and ends in
    ``.new``, so that a reader of ``*.json`` or ``*.prom`` skips it."""
    return path.with_name(f".{path.name[:180]}{owner and '.' + owner[:40]}.new")


def write_temporary(temporary: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write a new file, after removing what a crash left under its name."""
    temporary.unlink(missing_ok=True)
    # O_EXCL: a symbolic link planted in a directory that others can write is not followed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    try:
        try:
            rest = memoryview(data)
            while rest:
                # A disk that is almost full accepts a part and refuses the next.
                rest = rest[os.write(descriptor, rest) :]
            if sync:
                os.fsync(descriptor)
        finally:
            # Some file systems report a full disk only here.
            os.close(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def place_new(temporary: Path, path: Path) -> bool:
    """Rename a complete file unless the name exists; False if it does. The caller syncs."""
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


def sync_directory(directory: Path) -> None:
    """Force the names in a directory to disk: a new file is durable only after that."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_directories(directory: Path, mode: int = 0o777) -> None:
    """Create a directory and its missing parents durably."""
    if directory.is_dir():
        return
    make_directories(directory.parent, mode)
    try:
        directory.mkdir(mode)
    except FileExistsError:
        return
    sync_directory(directory.parent)


class FileState(NamedTuple):
    """A text of a file; another one has another state."""

    path: str
    inode: int
    size: int
    modified: int


def file_state(path: Path) -> FileState | None:
    """The state of a file; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileState(str(path), status.st_ino, status.st_size, status.st_mtime_ns)
