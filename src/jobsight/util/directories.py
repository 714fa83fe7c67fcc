"""Directories below a root in which users may write, opened so that no link leads out of it.

A path is looked up again at every use, and between two uses a user can exchange a directory of his
own for a symbolic link. :func:`open_below` follows no link below the root; :func:`in_directory`
gives paths within the directory that was opened, whatever happens to its name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from jobsight.util.durable import sync_directory

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_below(
    root: str, below: str, *, make: bool = False, owners: Collection[int] | None = None
) -> int:
    """Open a directory by its path below the root; "" is the root itself.

    With ``make``, missing directories are created durably. With ``owners``, a directory of another
    user is refused.
    """
    descriptor = os.open(root, _FLAGS)
    try:
        for part in [part for part in below.split("/") if part]:
            if part == "..":
                raise PermissionError(errno.EPERM, f"leads out of {root}", below)
            if make:
                _make(part, descriptor)
            parent, descriptor = descriptor, _open(part, descriptor, os.path.join(root, below))
            os.close(parent)
            if owners is not None and (owner := os.fstat(descriptor).st_uid) not in owners:
                raise PermissionError(
                    errno.EPERM,
                    f"{part} belongs to user {owner}, who could replace what is written there",
                    os.path.join(root, below),
                )
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open(part: str, parent: int, path: str) -> int:
    try:
        return os.open(part, _FLAGS | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotADirectoryError(
                errno.ENOTDIR, f"{part} is a symbolic link or a file, not a directory", path
            ) from None
        raise OSError(error.errno, error.strerror, path) from None


def _make(part: str, parent: int) -> None:
    try:
        os.mkdir(part, dir_fd=parent)
    except FileExistsError:
        return
    sync_directory(in_directory(parent, "."))


def in_directory(descriptor: int, name: str) -> Path:
    """The path of a file in an open directory, for functions that take no descriptor."""
    return Path(f"/proc/self/fd/{descriptor}", name)
