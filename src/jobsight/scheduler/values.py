"""Values of replies: a number may be plain, wrapped, or one of Slurm's marks for "none"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: NO_VAL and INFINITE in 32 and 64 bits, unsigned and signed. Not those of 16 bits: 65534 is a
#: job id and a user id as well.
_MARKS = frozenset({2**32 - 2, 2**64 - 2, 2**32 - 1, 2**64 - 1, -1, -2})


def number(value: Any) -> int | float | None:
    """A number, plain or wrapped; None where it is not set or unlimited."""
    if value is None or isinstance(value, bool):
        return None if value is None else int(value)
    if isinstance(value, dict):
        if "number" not in value:
            raise ValueError(f"{value!r:.60} is not a number")
        if value.get("infinite") or value.get("set") is False:
            return None
        return number(value["number"])
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("", "n/a", "none", "(null)", "unlimited", "infinite", "unknown"):
            return None
        try:
            return int(text)
        except ValueError:
            return float(text)
    raise ValueError(f"{type(value).__name__} is not a number")


def integer(value: Any) -> int | None:
    """A whole number; fractions are an error, not rounded away."""
    found = number(value)
    if found is None:
        return None
    if isinstance(found, float):
        if found != int(found):
            raise ValueError(f"{found} is not a whole number")
        return int(found)
    return found


def amount(value: Any) -> int | None:
    """A whole number that is none of Slurm's marks for "none" and "unlimited"."""
    found = integer(value)
    return None if found is None or found in _MARKS else found


def identity(value: Any) -> int | None:
    """The id of an array or het job, where 0 means that it is none."""
    found = amount(value)
    return found or None


def text_or_none(value: Any) -> str | None:
    """Text; empty text and Slurm's ``(null)`` are None."""
    if value is None:
        return None
    if isinstance(value, str):
        return None if value in ("", "(null)") else value
    raise ValueError(f"{type(value).__name__} is not text")


def words(value: Any) -> tuple[str, ...]:
    """A list of words: a real list, or text with commas."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(word for word in value.split(",") if word and word != "(null)")
    if isinstance(value, Sequence) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"{value!r:.60} is not a list of words")
