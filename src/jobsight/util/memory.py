"""Python's search for circles among objects, kept rare where records come and go by the thousand.

Records hold no circles and go by themselves. A search looks at all objects that there are, most of
which were imported and stay to the end: it took a quarter of the time of a batch.

Keeps a process small: the C library gives back what it does not use.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Final


def collect_rarely(new_objects: int) -> None:
    """Leave alone what is there by now, and search when so many objects have been made since."""
    gc.freeze()
    gc.set_threshold(new_objects)


_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3


def return_free_memory(heaps: int = 1, large: int = 64 * 1024) -> Callable[[], None]:
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
