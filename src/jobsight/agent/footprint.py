"""Keeps the agent's memory small: the C library gives back what it does not use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3


def tighten() -> Callable[[], None]:
    """One heap for all threads, and large pieces on their own. Gives a function that returns
    unused memory to the system; it does nothing where the C library has no such call."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, 64 * 1024)
        trim = library.malloc_trim
    except (OSError, AttributeError):
        # Another C library, such as musl, is small by itself.
        return _nothing
    return lambda: _call(trim)


def _call(trim: Callable[[int], int]) -> None:
    trim(0)


def _nothing() -> None:
    pass
