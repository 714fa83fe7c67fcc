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

#: Rows looked at when the methods are compared.
_PROBE = 1024
_SAFE = 2**62
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


def pack_integers(values: Integers, elapsed: Floats) -> Packed:
    """Choose the best method for a column of integers; ``elapsed`` are the gaps in time."""
    values, missing = _fill(values, values == MISSING)
    return _pack(values, elapsed)._replace(missing=missing)


def pack_floats(values: Floats, elapsed: Floats) -> Packed:
    """Choose the best method for a column of floating-point numbers."""
    bits = values.view(np.int64)
    bits, missing = _fill(bits, bits.view(np.uint64) == MISSING_FLOAT)
    decimal = _as_decimals(bits)
    if decimal is not None:
        whole, decimals = decimal
        return _pack(whole, elapsed)._replace(decimals=decimals, missing=missing)
    words = bits.view(np.uint64)
    changed = words.copy()
    changed[1:] ^= words[:-1]
    changed[0] = 0
    by_bits = Packed(changed, XOR, base=int(bits[0]))
    by_value = _pack(bits, elapsed)
    best = by_bits if _cost(by_bits.words) <= _cost(by_value.words) else by_value
    return best._replace(missing=missing)


def differences(bits: Words) -> Words:
    """Each row of a matrix by :data:`DELTA`, small numbers of either sign as small words."""
    changes = np.diff(bits, axis=1).view(np.int64)
    words = np.zeros_like(bits)
    words[:, 1:] = ((changes << 1) ^ (changes >> 63)).view(np.uint64)
    return words


def unpack(packed: Packed, elapsed: Floats, *, floating: bool) -> Words:
    """Undo :func:`pack_integers` or :func:`pack_floats`; the result is the column's bits."""
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
    changes = _unzigzag(packed.words)
    if packed.method == DELTA_OF_DELTA:
        changes[:1] = 0
        changes[1:2] += _word(packed.step)
        np.cumsum(changes, out=changes)
    elif packed.method == LINEAR:
        changes[1:] += _line(elapsed, packed.rate).view(np.uint64)
    changes *= scale
    changes[:1] = _word(packed.base)
    result: Words = np.cumsum(changes, dtype=np.uint64)
    return result


def _pack(values: Integers, elapsed: Floats) -> Packed:
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Packed(np.zeros(len(values), np.uint64), OFFSET, base=low)
    first = int(values[0])
    changes = np.diff(values.view(np.uint64)).view(np.int64)
    scale = 1
    safe = high - low < _SAFE
    if safe:
        # Counters of CPU time move in microseconds or clock ticks and memory in pages: what all
        # changes have in common need not be stored.
        scale = int(np.gcd.reduce(changes))
        if scale > 1:
            changes = changes // scale
    offsets = (values.view(np.uint64) - _word(low)) // _word(scale)
    delta = _zigzag(changes)
    twice = np.zeros_like(delta)
    twice[1:] = _zigzag(np.diff(changes.view(np.uint64)).view(np.int64))
    candidates = [
        Packed(offsets, OFFSET, base=low, scale=scale),
        Packed(delta, DELTA, base=first, scale=scale),
        Packed(twice, DELTA_OF_DELTA, base=first, step=int(changes[0]), scale=scale),
    ]
    if safe:
        rate = _rate(changes, elapsed)
        line = _line(elapsed, rate) if rate else None
        if line is not None:
            candidates.append(
                Packed(_zigzag(changes - line), LINEAR, base=first, scale=scale, rate=rate)
            )
    return min(candidates, key=lambda packed: _cost(packed.words))


def _rate(changes: Integers, elapsed: Floats) -> float:
    moving = elapsed > 0
    if not moving.any():
        return 0.0
    rate = float(np.median(changes[moving] / elapsed[moving]))
    # The line must stay far from the ends of int64, where the conversion is not defined.
    furthest = float(np.abs(elapsed).max()) * abs(rate)
    return rate if furthest < _SAFE and abs(rate) < MAX_RATE else 0.0


def _line(elapsed: Floats, rate: float) -> Integers:
    # One multiplication and one rounding: IEEE 754 gives the same result on every machine.
    return np.rint(elapsed * rate).astype(np.int64)


def _as_decimals(bits: Integers) -> tuple[Integers, int] | None:
    """The column as integers over a power of ten, where that gives the same bits back."""
    values = bits.view(np.float64)
    for decimals in range(MAX_DECIMALS + 1):
        power = 10.0**decimals
        for part, part_bits in ((values[:16], bits[:16]), (values, bits)):
            with np.errstate(all="ignore"):
                scaled = np.rint(part * power)
                if not (np.abs(scaled) < 2**53).all():
                    return None
                whole = scaled.astype(np.int64)
                if not np.array_equal((whole / power).view(np.int64), part_bits):
                    break
        else:
            return whole, decimals
    return None


def _fill(
    values: Integers, missing: npt.NDArray[np.bool_]
) -> tuple[Integers, npt.NDArray[np.bool_] | None]:
    """Put the value before in place of each missing one, so that it costs nothing."""
    if not missing.any():
        return values, None
    present = np.flatnonzero(~missing)
    if not len(present):
        return np.zeros_like(values), missing
    source = np.where(missing, present[0], np.arange(len(values)))
    return values[np.maximum.accumulate(source)], missing


def _cost(words: Words) -> float:
    """The bits that the words need, which is about what the compressor leaves of them."""
    if len(words) > _PROBE:
        words = words[:: len(words) // _PROBE]
    return float(np.frexp(words.astype(np.float64))[1].sum())


def _zigzag(changes: Integers) -> Words:
    """Small numbers of either sign become small words; the first row stays 0."""
    words = np.zeros(len(changes) + 1, np.uint64)
    words[1:] = ((changes << 1) ^ (changes >> 63)).view(np.uint64)
    return words


def _unzigzag(words: Words) -> Words:
    result: Words = (words >> _ONE) ^ (np.uint64(0) - (words & _ONE))
    return result


def _word(value: int) -> np.uint64:
    return np.uint64(value & (2**64 - 1))
