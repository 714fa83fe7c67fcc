"""A counter of the kernel that wraps around or starts anew, made one that only grows."""

from __future__ import annotations

from typing import Final

#: Counters of 32 bits are told by a last value in the upper half of their range.
WORD: Final = 2**32


def growth(before: int, now: int, modulus: int | None = None) -> int:
    """How much a counter grew between two readings.

    A reading below the one before means that it wrapped, where its range is known or it stood
    high in 32 bits, else that it began anew (a device was replaced), and then only what it
    counted since is known.
    """
    if now >= before:
        return now - before
    if modulus is not None and before < modulus:
        return now + modulus - before
    if modulus is None and WORD // 2 <= before < WORD and now < WORD // 2:
        return now + WORD - before
    return now


class Counter:
    """What a counter of the kernel counted since its first reading."""

    def __init__(self, modulus: int | None = None) -> None:
        self.total = 0
        self._modulus = modulus
        self._last: int | None = None

    def update(self, value: int) -> int:
        if self._last is not None:
            self.total += growth(self._last, value, self._modulus)
        self._last = value
        return self.total
