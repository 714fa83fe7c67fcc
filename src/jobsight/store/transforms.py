"""What makes a column cheap to compress: turn it into small numbers, and find the way back.

All arithmetic on integers is modulo 2**64, so every transform is lossless for every input; the
ones that predict (``LINEAR``) or divide (``scale``) are taken only where they cannot overflow.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from jobsight.model import MISSING

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Values: TypeAlias = Integers | Floats

#: Distance from the smallest value.
OFFSET = 0
#: Difference from the value before.
DELTA = 1
#: Difference from the difference before: good for times and steady counters.
DELTA_OF_DELTA = 2
#: Difference from a straight line through time. A busy core adds one nanosecond of CPU time per
#: nanosecond, so the jitter of the sampling clock cancels out of counters of CPU time.
LINEAR = 3
#: Bits that differ from those of the value before, for floating point.
XOR = 4
#: As it is, not even transposed: there is nothing to undo.
PLAIN = 5

METHODS = frozenset((OFFSET, DELTA, DELTA_OF_DELTA, LINEAR, XOR, PLAIN))

#: The bits of the NaN that stands for a reading that failed; other NaNs are kept as they are.
MISSING_FLOAT = np.uint64(0x7FF8000000000000)

MAX_DECIMALS = 4
#: No counter moves faster; the line through time is then far from the ends of int64.
MAX_RATE = 2.0**62

#: Below this many rows no method pays.
FEW_ROWS = 8

_ONE = np.uint64(1)


class Packed(NamedTuple):
    """A column as small words, with what is needed to undo it."""

    words: Words
    method: int
    base: int = 0
    step: int = 0
    scale: int = 1
    rate: float = 0.0
    #: For floats that are decimal fractions: the power of ten that makes them integers.
    decimals: int | None = None
    #: Rows without a reading; their words carry no information.
    missing: npt.NDArray[np.bool_] | None = None


def unpack(packed: Packed, elapsed: Floats, *, floating: bool) -> Words:
    """Undo what :func:`jobsight.store.packing.pack` did; the result is the column's bits."""
    words = packed.words
    if packed.method == XOR:
        words = words.copy()
        words[:1] = _word(packed.base)
        result: Words = np.bitwise_xor.accumulate(words)
    else:
        result = _unpack_integers(packed, elapsed)
    if packed.decimals is not None:
        result = (result.view(np.int64) / 10.0**packed.decimals).view(np.uint64)
    if packed.missing is not None:
        result[packed.missing] = MISSING_FLOAT if floating else _word(MISSING)
    return result


def _unpack_integers(packed: Packed, elapsed: Floats) -> Words:
    scale = _word(packed.scale)
    if packed.method == OFFSET:
        return packed.words * scale + _word(packed.base)
    changes = unzigzag(packed.words)
    if packed.method == DELTA_OF_DELTA:
        changes[:1] = 0
        changes[1:2] += _word(packed.step)
        np.cumsum(changes, out=changes)
    elif packed.method == LINEAR:
        changes[1:] += line(elapsed, packed.rate).view(np.uint64)
    changes *= scale
    changes[:1] = _word(packed.base)
    result: Words = np.cumsum(changes, dtype=np.uint64)
    return result


def line(elapsed: Floats, rate: float | Floats) -> Integers:
    """The changes of a counter that moves steadily."""
    # One multiplication and one rounding: IEEE 754 gives the same result on every machine.
    return np.rint(elapsed * rate).astype(np.int64)


def zigzag(changes: Integers) -> Words:
    """Small numbers of either sign become small words; the first row stays 0."""
    words = np.zeros((*changes.shape[:-1], changes.shape[-1] + 1), np.uint64)
    words[..., 1:] = ((changes << 1) ^ (changes >> 63)).view(np.uint64)
    return words


def unzigzag(words: Words) -> Words:
    """The changes that :func:`zigzag` has made words of."""
    result: Words = (words >> _ONE) ^ (np.uint64(0) - (words & _ONE))
    return result


def _word(value: int) -> np.uint64:
    return np.uint64(value & (2**64 - 1))
