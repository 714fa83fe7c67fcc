"""Where file systems are mounted, and of which type."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
