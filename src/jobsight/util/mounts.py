"""File system types by mount point, from ``/proc/self/mountinfo``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "smb3", "smbfs", "wekafs"),
    )
)
#: The kernel escapes spaces, tabs, newlines, backslashes and # as three octal digits.
_ESCAPE = re.compile(rb"\\([0-7]{3})")


def file_system(path: Path, mountinfo: Path | None = None) -> str | None:
    """The type of the file system that holds ``path``; None if mountinfo cannot be read."""
    try:
        data = (mountinfo or MOUNTINFO).read_bytes()
    except OSError:
        return None
    return type_of(os.fsencode(os.path.realpath(path)), parse_mountinfo(data))


def is_network(kind: str | None) -> bool:
    """Whether several machines may mount a file system of this type. SQLite's WAL needs shared
    memory and is unsafe there."""
    return kind is not None and (kind in _NETWORK or kind.split(".")[0] in ("fuse", "fuseblk"))


def parse_mountinfo(data: bytes) -> list[tuple[bytes, str]]:
    """Mount points and their types, in the order of mounting."""
    mounts: list[tuple[bytes, str]] = []
    for line in data.split(b"\n"):
        # 36 35 98:0 /root /mount/point options optional... - type source options
        head, separator, tail = line.partition(b" - ")
        fields = head.split(b" ")
        if separator and len(fields) >= 5:
            point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 255]), fields[4])
            mounts.append((point, tail.split(b" ")[0].decode("ascii", "replace")))
    return mounts


def type_of(path: bytes, mounts: Iterable[tuple[bytes, str]]) -> str | None:
    """The type of the file system at a path: that of the longest mount point above it. Of several
    mounts on one point the last hides the others."""
    best: tuple[int, str] | None = None
    for point, kind in mounts:
        if below(path, point) and (best is None or len(point) >= best[0]):
            best = (len(point), kind)
    return best[1] if best else None


def below(path: bytes, prefix: bytes) -> bool:
    """Whether a path is the prefix or lies below it; ``/scratch2`` is not below ``/scratch``."""
    prefix = prefix.rstrip(b"/")
    return path == prefix or path.startswith(prefix + b"/")
