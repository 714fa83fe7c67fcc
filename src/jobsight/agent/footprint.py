"""Keeps a process small: the C library gives back what it does not use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3


def tighten(heaps: int = 1, large: int = 64 * 1024) -> Callable[[], None]:
    """Few heaps for all threads, and large pieces on their own. Gives a function that returns
    unused memory to the system; it does nothing where the C library has no such call."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, heaps)
        library.mallopt(_M_MMAP_THRESHOLD, large)
        trim = library.malloc_trim
    except (OSError, AttributeError):
        # Another C library, such as musl, is small by itself.
        return _nothing
    return lambda: _call(trim)


def _call(trim: Callable[[int], int]) -> None:
    trim(0)


def _nothing() -> None:
    pass
