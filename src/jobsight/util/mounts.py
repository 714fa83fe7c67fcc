"""Which file system a path lies on: shared memory of SQLite's WAL does not work over a network.

Where file systems are mounted, and of which type.
"""

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


def file_system(path: Path, mountinfo: Path | None = None) -> str | None:
    """The type of the file system that holds ``path``, or None where that cannot be told."""
    try:
        text = (mountinfo or MOUNTINFO).read_bytes()
    except OSError:
        return None
    place = os.fsencode(os.path.realpath(path))
    best, found = b"", None
    for line in text.splitlines():
        # 36 35 98:0 /root /mount/point options optional... - type source options
        fields, _, rest = line.partition(b" - ")
        parts = fields.split(b" ")
        if len(parts) < 5 or not rest:
            continue
        mount = _unescape(parts[4])
        inside = place == mount or place.startswith(mount.rstrip(b"/") + b"/")
        # A later mount on the same point hides the earlier one.
        if inside and len(mount) >= len(best):
            best, found = mount, rest.split(b" ")[0].decode("ascii", "replace")
    return found


def is_network(kind: str | None) -> bool:
    """Whether files of this type of file system may be shared between machines."""
    return kind is not None and (kind in _NETWORK or kind.split(".")[0] in ("fuse", "fuseblk"))


def _unescape(text: bytes) -> bytes:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    for code in (b"040", b"011", b"012", b"134"):
        text = text.replace(b"\\" + code, bytes((int(code, 8),)))
    return text


_ESCAPE = re.compile(rb"\\([0-7]{3})")


def parse_mountinfo(data: bytes) -> list[tuple[bytes, str]]:
    """Mount points and their types, in the order of mounting."""
    found: list[tuple[bytes, str]] = []
    for line in data.split(b"\n"):
        head, separator, tail = line.partition(b" - ")
        words, kinds = head.split(b" "), tail.split(b" ")
        if separator and len(words) >= 5:
            point = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 255]), words[4])
            found.append((point, kinds[0].decode("ascii", "replace")))
    return found


def below(path: bytes, prefix: bytes) -> bool:
    """Whether a path is the prefix or lies below it; ``/scratch2`` is not below ``/scratch``."""
    prefix = prefix.rstrip(b"/")
    return path == prefix or path.startswith(prefix + b"/")


def type_of(path: bytes, mounts: Iterable[tuple[bytes, str]]) -> str | None:
    """The type of the file system that a path lies on: the longest mount point, the last of it."""
    best: tuple[int, str] | None = None
    for point, kind in mounts:
        if below(path, point) and (best is None or len(point) >= best[0]):
            best = (len(point), kind)
    return best[1] if best else None
