"""Which file system a path lies on: shared memory of SQLite's WAL does not work over a network."""

from __future__ import annotations

import os
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
