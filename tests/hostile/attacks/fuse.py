"""A file system with one file that leaves some requests of the kernel without an answer.

It speaks the protocol of /dev/fuse itself, so that no library and no helper with the set-user-ID
bit is needed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

GETATTR, READ, FLUSH = 3, 15, 25
#: forget, interrupt, batch forget
_WITHOUT_REPLY: Final = frozenset({2, 36, 42})
_HEADER: Final = struct.Struct("=IIQQIII4x")
_REPLY: Final = struct.Struct("=IiQ")
_ATTRIBUTES: Final = struct.Struct("=QQQQQQIIIIIIIIII")
_ROOT, _FILE = 1, 2
_FORCE, _DETACH = 1, 2
_NEW_NAMESPACE, _RECURSIVE, _PRIVATE = 0x20000, 0x4000, 0x40000
NAME: Final = "program"

_libc: Final = ctypes.CDLL(None, use_errno=True)


class Request(NamedTuple):
    """A request about the file."""

    operation: int
    #: The user whose process makes it.
    uid: int
    #: The file has been opened.
    opened: bool


def after_open(operation: int) -> Callable[[Request], bool]:
    """Silent to this operation once the file was opened."""
    return lambda request: request.operation == operation and request.opened


class SilentFuse:
    """Mounted at a directory; the file is called ``program``."""

    def __init__(
        self,
        directory: Path,
        content: bytes,
        *,
        silent: Callable[[Request], bool],
        uid: int = 0,
        allow_other: bool = False,
    ) -> None:
        """``uid`` owns the file system; others may not use it without ``allow_other``."""
        self.program = directory / NAME
        self._directory = directory
        self._content = content
        self._silent = silent
        self._uid = uid
        #: Requests that were not answered.
        self.unanswered: list[Request] = []
        self._opened = False
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id={uid},group_id={uid}"
        options += ",allow_other" if allow_other else ""
        try:
            _call("mount", b"silent", os.fsencode(directory), b"fuse", 0, options.encode())
        except OSError:
            os.close(self._device)
            raise
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unmount; whoever waits for an answer gets an error."""
        # A request that waits holds the mount; MNT_FORCE aborts it.
        _call("umount2", os.fsencode(self._directory), _FORCE | _DETACH)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                data = os.read(self._device, 2**20)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                # Unmounted.
                os.close(self._device)
                return
            _, operation, unique, inode, uid, _, _ = _HEADER.unpack_from(data)
            if operation in _WITHOUT_REPLY:
                continue
            request = Request(operation, uid, self._opened)
            if inode == _FILE and self._silent(request):
                self.unanswered.append(request)
                continue
            status, body = self._answer(operation, inode, data[_HEADER.size :])
            try:
                os.write(self._device, _REPLY.pack(_REPLY.size + len(body), -status, unique) + body)
            except OSError:
                # The request was interrupted.
                continue

    def _answer(self, operation: int, inode: int, data: bytes) -> tuple[int, bytes]:
        """The error number and the body of a reply."""
        match operation:
            case 26:  # init
                return 0, struct.pack("=IIIIHHIIHH28x", 7, 31, 0, 0, 8, 6, 4096, 1, 1, 0)
            case 1:  # lookup
                if data.rstrip(b"\0") != NAME.encode():
                    return errno.ENOENT, b""
                # The name stays valid, its attributes do not.
                return 0, struct.pack("=QQQQII", _FILE, 0, 3600, 0, 0, 0) + self._attributes(_FILE)
            case 3:  # getattr
                return 0, struct.pack("=QII", 0, 0, 0) + self._attributes(inode)
            case 14 | 27:  # open, opendir
                self._opened |= inode == _FILE
                return 0, struct.pack("=QII", 1, 0, 0)
            case 15:  # read
                _, offset, size = struct.unpack_from("=QQI", data)
                return 0, self._content[offset : offset + size]
            case 17:  # statfs
                return 0, bytes(80)
            case 18 | 25 | 29 | 34:  # release, flush, releasedir, access
                return 0, b""
            case _:
                return errno.ENOSYS, b""

    def _attributes(self, inode: int) -> bytes:
        is_root = inode == _ROOT
        mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o755
        size = 0 if is_root else len(self._content)
        times = (0,) * 6
        return _ATTRIBUTES.pack(
            inode, size, (size + 511) // 512, *times[:3], *times[3:], mode, 1,
            self._uid, self._uid, 0, 4096, 0,
        )  # fmt: skip


def available() -> bool:
    return os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


def private_mounts() -> None:
    """Enter a mount namespace of one's own."""
    _call("unshare", _NEW_NAMESPACE)
    _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
