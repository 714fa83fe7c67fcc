"""How long work on a store says how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Called with what is being done, how much of it is done, and how much there is in all; 0 where
#: nobody knows.
Progress: TypeAlias = Callable[[str, int, int], None]


def silent(what: str, done: int, whole: int) -> None:
    """Say nothing."""
