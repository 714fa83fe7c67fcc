"""Settings of Python's garbage collector and of the C library's allocator."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Final

#: Parameters of mallopt(3).
_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3


def collect_rarely(new_objects: int) -> None:
    """Exempt all present objects from garbage collection and collect after ``new_objects`` more.

    Records hold no cyclic references. A collection visits all objects, most of which were imported
    and live as long as the process: it took a quarter of the time of a batch.
    """
    gc.freeze()
    gc.set_threshold(new_objects)


def return_free_memory(heaps: int = 1, large: int = 64 * 1024) -> Callable[[], None]:
    """Let all threads share ``heaps`` heaps and give blocks above ``large`` bytes pages of their
    own. Returns a function that gives unused memory back to the system."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_M_ARENA_MAX, heaps)
        library.mallopt(_M_MMAP_THRESHOLD, large)
        trim = library.malloc_trim
    except (OSError, AttributeError):
        # Another C library, such as musl, has no such calls and keeps little.
        return lambda: None

    def return_memory() -> None:
        trim(0)

    return return_memory
