"""Tells when folders come and go, so that nobody has to look."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

CREATED: Final = 0x00000100
DELETED: Final = 0x00000200
DELETED_SELF: Final = 0x00000400
OVERFLOWED: Final = 0x00004000
_IGNORED: Final = 0x00008000
_FOLDERS_ONLY: Final = 0x01000000
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC

_EVENT: Final = struct.Struct("=iIII")


class FolderEvent(NamedTuple):
    kind: int
    folder: Path
    name: str


class Inotify:
    """Watches folders for folders that are made and removed in them.

    Of a cgroup's end only its parent's watch tells: the kernel neither says that the folder itself
    is gone nor ends its watch, which would then stand in the way of the next folder of that name.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.inotify_init1(_NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"inotify: {os.strerror(number)}")
        self._folders: dict[int, Path] = {}
        self._watches: dict[Path, int] = {}
        #: The kernel gave no watch for want of room: somebody has to look from time to time.
        self.refused = False

    def fileno(self) -> int:
        return int(self._descriptor)

    def watch(self, folder: Path) -> bool:
        """Start watching; False when the folder is gone."""
        if folder in self._watches:
            return True
        mask = CREATED | DELETED | DELETED_SELF | _FOLDERS_ONLY
        watch = self._library.inotify_add_watch(
            self._descriptor, os.fsencode(folder), ctypes.c_uint32(mask)
        )
        if watch < 0:
            number = ctypes.get_errno()
            if number in (errno.ENOENT, errno.ENOTDIR):
                return False
            if number in (errno.ENOSPC, errno.ENOMEM):
                self.refused = True
                return True
            raise OSError(number, os.strerror(number), str(folder))
        self._folders[watch] = folder
        self._watches[folder] = watch
        return True

    def __len__(self) -> int:
        return len(self._watches)

    def read(self) -> Iterator[FolderEvent]:
        """What has happened since the last call."""
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                watch, mask, _, length = _EVENT.unpack_from(data, position)
                start = position + _EVENT.size
                name = data[start : start + length].rstrip(b"\0")
                position = start + length
                if mask & OVERFLOWED:
                    # Among what was lost may be the end of a folder: all are asked for again.
                    for folder in list(self._watches):
                        self._forget(folder)
                    # Their last words may be lost as well.
                    self._folders.clear()
                    yield FolderEvent(OVERFLOWED, Path(), "")
                elif mask & _IGNORED:
                    self._folders.pop(watch, None)
                elif watch in self._folders:
                    kind = mask & (CREATED | DELETED | DELETED_SELF)
                    event = FolderEvent(kind, self._folders[watch], os.fsdecode(name))
                    if kind == DELETED:
                        self._forget(event.folder / event.name)
                    elif kind == DELETED_SELF:
                        self._forget(event.folder)
                    yield event

    def _forget(self, folder: Path) -> None:
        """End the watch of a folder that is gone; the kernel answers with a last word of it."""
        watch = self._watches.pop(folder, None)
        if watch is not None:
            self._library.inotify_rm_watch(self._descriptor, watch)

    def close(self) -> None:
        os.close(self._descriptor)
