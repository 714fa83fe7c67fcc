"""Files written as another user, for file systems where root is nobody (NFS root squash)."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: No user has this number; the kernel refuses it and answers with the one in force.
_NOBODY_AT_ALL: Final = 0xFFFFFFFF


def _set(uid: int) -> int:
    """setfsuid(2): gives the number that was in force before, and says nothing of success."""
    library = ctypes.CDLL(None, use_errno=True)
    library.setfsuid.argtypes = [ctypes.c_uint32]
    library.setfsuid.restype = ctypes.c_int
    return int(library.setfsuid(uid)) & 0xFFFFFFFF


def current_fsuid() -> int:
    return _set(_NOBODY_AT_ALL)


@contextmanager
def writing_as(uid: int | None) -> Iterator[None]:
    """Let this thread, and no other, create and open files as a user.

    The call has no return code, so it is asked afterwards who the kernel takes us for.
    """
    if uid is None:
        yield
        return
    before = _set(uid)
    try:
        if current_fsuid() != uid:
            raise PermissionError(errno.EPERM, f"files cannot be written as user {uid}")
        yield
    finally:
        _set(before)
        if current_fsuid() != before:
            # Nothing may go on with the wrong identity.
            os.abort()
