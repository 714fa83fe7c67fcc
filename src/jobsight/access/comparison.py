"""Comparisons between users: shown only where nobody can be recognised in them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

#: Users that a group must have, so that a figure of it says nothing about one of them.
MIN_USERS: Final = 5


def may_compare(users: int | Collection[str]) -> bool:
    """Whether a figure of a group of this many users, or of these users, may be shown."""
    count = users if isinstance(users, int) else len(set(users))
    return count >= MIN_USERS
