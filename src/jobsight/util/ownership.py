"""Whether other users could have placed or can replace a file or directory that a command uses.

What is kept together (store, token, spool, control socket) is as safe as its directory: whoever may
write there can exchange each file. A directory that others can write is refused, also with the
sticky bit: a file that does not exist yet, such as the journal of a database, can be placed in
advance. Above the directory the sticky bit is enough, because it protects the directory itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from jobsight.errors import JobsightError


class ForeignFile(JobsightError):
    """Another user could have placed a file or directory, or can replace it."""

    exit_code = 2


def check_directory(directory: Path, what: str, *, own: bool = True) -> None:
    """Refuse a directory in which others can replace files.

    With ``own`` it must belong to root or to this user. Without, root may use the directory of a
    service user.
    """
    try:
        status = directory.stat()
        above = [(parent, parent.stat()) for parent in directory.absolute().resolve().parents]
    except OSError as error:
        raise ForeignFile(f"{what} {directory} cannot be used: {error.strerror}") from None
    owners = trusted_owners() if own or os.geteuid() else {status.st_uid}
    _check_owner(directory, status, what, owners)
    if _is_writable_by_others(status):
        raise ForeignFile(
            f"{what} {directory} can be written by other users (mode {_mode(status)}), who could "
            f"replace what is in it; run `chmod go-w {directory}`, or choose a directory of its own"
        )
    for parent, found in above:
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise ForeignFile(
                f"{what} {directory} can be replaced by other users, because they can write "
                f"{parent} (mode {_mode(found)}); run `chmod o-w {parent}`"
            )


def check_file(file: Path, what: str, owners: Collection[int] | None = None) -> None:
    """Refuse an existing file that belongs to another user, or that others can write.

    Whoever placed it in advance knows what is in it and can change it.
    """
    try:
        status = file.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ForeignFile(f"{what} {file} cannot be read: {error.strerror}") from None
    _check_owner(file, status, what, trusted_owners() if owners is None else owners)
    if not stat.S_ISLNK(status.st_mode) and _is_writable_by_others(status):
        raise ForeignFile(
            f"{what} {file} can be written by other users (mode {_mode(status)}); "
            f"run `chmod go-w {file}` if nobody has changed it"
        )


def trusted_owners() -> set[int]:
    """Root and this user."""
    return {0, os.geteuid()}


def _check_owner(path: Path, status: os.stat_result, what: str, owners: Collection[int]) -> None:
    if status.st_uid not in owners:
        expected = " or ".join(
            "root" if owner == 0 else f"user {owner}" for owner in sorted(owners)
        )
        raise ForeignFile(
            f"{what} {path} belongs to user {status.st_uid}; expected {expected}: run the command "
            "as that user, or choose another place"
        )


def _is_writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status)


def _is_private_group(status: os.stat_result) -> bool:
    """Whether the group is the owner's own, as most distributions make one for each user."""
    if status.st_gid == 0:
        return True
    # Imported for this rare case only: the agent counts its memory.
    import grp
    import pwd

    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(status.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
