"""Transforms that turn a column into small numbers, which compress well, and back.

:func:`pack` chooses the best method for each column and :func:`unpack` undoes it. The methods are
compared for many columns together: columns of a job are short and many, and one by one most of the
time would be spent in calls.

Integer arithmetic is modulo 2**64, so every transform is lossless for every input. ``LINEAR``,
which predicts, and ``scale``, which divides, are used only where they cannot overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from jobsight.model import MISSING

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Values: TypeAlias = Integers | Floats

#: Difference from the smallest value.
OFFSET = 0
#: Difference from the previous value.
DELTA = 1
#: Difference from the previous difference, for times and steady counters.
DELTA_OF_DELTA = 2
#: Difference from a straight line through time. A busy core adds one nanosecond of CPU time per
#: nanosecond, so the jitter of the sampling clock cancels out of counters of CPU time.
LINEAR = 3
#: Bits that differ from those of the previous value, for floating point.
XOR = 4
#: The values as they are, not transposed.
PLAIN = 5

METHODS = frozenset((OFFSET, DELTA, DELTA_OF_DELTA, LINEAR, XOR, PLAIN))

#: The bits of the NaN that stands for a reading that failed; other NaNs are kept as they are.
MISSING_FLOAT = np.uint64(0x7FF8000000000000)

MAX_DECIMALS = 4
#: No counter changes faster; the predicted line then stays far from the limits of int64.
MAX_RATE = 2.0**62

#: With fewer rows no method is worthwhile.
MIN_PACKED_ROWS = 8

_ONE = np.uint64(1)

_Flags: TypeAlias = npt.NDArray[np.bool_]
_Column = TypeVar("_Column")

#: Values that are processed together: many short columns, or one long one, in little memory.
_GROUP_SIZE = 1 << 17
#: Rows that are compared to choose a method.
_PROBE_ROWS = 1024
#: Rows that are compared to find the rate of a counter.
_RATE_ROWS = 128
#: Differences below this cannot overflow.
_SAFE = 2**62


class Packed(NamedTuple):
    """A column as small words, with the parameters that undo the transform."""

    words: Words
    method: int
    base: int = 0
    step: int = 0
    scale: int = 1
    rate: float = 0.0
    #: Of floats that are decimal fractions: the power of ten that makes them integers.
    decimals: int | None = None
    #: Rows without a reading; their words carry no information.
    missing: npt.NDArray[np.bool_] | None = None


def pack(columns: Sequence[Values], elapsed: Floats) -> list[Packed]:
    """Choose the best method for each column; ``elapsed`` are the differences of the times."""
    packed: list[Packed] = []
    for group in groups(columns, len(elapsed) + 1):
        prepared = _prepare(group)
        chosen = _choose(prepared.values, elapsed)
        for index, details in prepared.details.items():
            chosen[index] = _finish(prepared.values[index], details, chosen[index])
        packed += chosen
    return packed


def unpack(packed: Packed, elapsed: Floats, *, floating: bool) -> Words:
    """Undo :func:`pack`; the result is the bits of the column."""
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


def groups(columns: Sequence[_Column], rows: int) -> Iterator[Sequence[_Column]]:
    """Divide columns with this many rows into groups that are processed together."""
    size = max(1, _GROUP_SIZE // max(1, rows))
    for first in range(0, len(columns), size):
        yield columns[first : first + size]


class _Details(NamedTuple):
    """What distinguishes a prepared column from integers without missing values."""

    missing: _Flags | None
    decimals: int | None = None
    #: The values are the bits of floating-point numbers.
    bits: bool = False


class _Prepared(NamedTuple):
    """Columns as the rows of a matrix of integers without missing values."""

    values: Integers
    #: Of the columns that have some, by their index. Most are integers, none of them missing.
    details: dict[int, _Details]


def _prepare(columns: Sequence[Values]) -> _Prepared:
    floating = np.array([column.dtype.kind == "f" for column in columns])
    values = np.stack([_bits(column) for column in columns])
    missing = values == np.where(floating, MISSING_FLOAT.view(np.int64), MISSING)[:, None]
    details = {}
    for index in np.flatnonzero(floating | np.any(missing, axis=1)).tolist():
        filled, own = _fill(values[index], missing[index])
        decimal = _as_decimals(filled) if floating[index] else None
        if decimal is None:
            values[index] = filled
            details[index] = _Details(own, bits=bool(floating[index]))
        else:
            values[index] = decimal[0]
            details[index] = _Details(own, decimal[1])
    return _Prepared(values, details)


def _bits(column: Values) -> Integers:
    if column.dtype.kind == "i":
        return column.astype(np.int64, copy=False)
    return np.ascontiguousarray(column, np.float64).view(np.int64)


def _finish(values: Integers, column: _Details, packed: Packed) -> Packed:
    if column.bits:
        words = values.view(np.uint64)
        changed = words.copy()
        changed[1:] ^= words[:-1]
        changed[0] = 0
        if _costs(changed) <= _costs(packed.words):
            packed = Packed(changed, XOR, base=int(values[0]))
    return packed._replace(decimals=column.decimals, missing=column.missing)


def _choose(values: Integers, elapsed: Floats) -> list[Packed]:
    """The best method for each row of a matrix."""
    low, high = values.min(axis=1), values.max(axis=1)
    safe = high.view(np.uint64) - low.view(np.uint64) < _SAFE
    changes = np.diff(values.view(np.uint64), axis=1).view(np.int64)
    offsets = values.view(np.uint64) - low.view(np.uint64)[:, None]
    scales = _scales(changes, safe)
    divided = scales > 1
    changes[divided] //= scales[divided, None]
    offsets[divided] //= scales[divided, None].view(np.uint64)
    rates = np.where(safe, _rates(changes, elapsed), 0.0)
    candidates = {
        OFFSET: offsets,
        DELTA: zigzag(changes),
        DELTA_OF_DELTA: _twice(changes),
        LINEAR: zigzag(changes - line(elapsed, rates[:, None])),
    }
    costs = np.stack([_costs(words) for words in candidates.values()])
    costs[-1, rates == 0] = np.inf
    best = np.array(list(candidates))[costs.argmin(axis=0)].tolist()
    figures = zip(
        best,
        low.tolist(),
        values[:, 0].tolist(),
        changes[:, 0].tolist(),
        scales.tolist(),
        rates.tolist(),
        strict=True,
    )
    return [
        Packed(
            candidates[method][row],
            method,
            base=least if method == OFFSET else first,
            step=step if method == DELTA_OF_DELTA else 0,
            scale=scale,
            rate=rate if method == LINEAR else 0.0,
        )
        for row, (method, least, first, step, scale, rate) in enumerate(figures)
    ]


def _scales(changes: Integers, safe: _Flags) -> Integers:
    """The greatest common divisor of all changes of a row: counters of CPU time change in
    microseconds or clock ticks, memory in pages."""
    common: Integers = np.gcd.reduce(np.where(safe[:, None], changes, 0), axis=1)
    return np.maximum(common, 1)


def _twice(changes: Integers) -> Words:
    words = np.zeros((len(changes), changes.shape[1] + 1), np.uint64)
    words[:, 1:] = zigzag(np.diff(changes.view(np.uint64), axis=1).view(np.int64))
    return words


def _rates(changes: Integers, elapsed: Floats) -> Floats:
    moving = elapsed > 0
    if not moving.any():
        return np.zeros(len(changes))
    # The median of some rows is as good, and its cost is that of a sort.
    rows = np.flatnonzero(moving)
    rows = rows[:: len(rows) // _RATE_ROWS + 1]
    rates = np.median(changes[:, rows] / elapsed[rows], axis=1)
    # The line must stay far from the limits of int64, where the conversion is undefined.
    furthest = np.abs(elapsed).max() * np.abs(rates)
    return np.where((furthest < _SAFE) & (np.abs(rates) < MAX_RATE), rates, 0.0)


def _costs(words: Words) -> Floats:
    """The bits that the words of each row need, an estimate of their compressed size."""
    rows = words.shape[-1]
    if rows > _PROBE_ROWS:
        words = words[..., :: rows // _PROBE_ROWS]
    exponents: Floats = np.frexp(words.astype(np.float64))[1].sum(axis=-1, dtype=np.float64)
    return exponents


def _as_decimals(bits: Integers) -> tuple[Integers, int] | None:
    """The column as integers divided by a power of ten, if that restores the same bits."""
    values = bits.view(np.float64)
    for decimals in range(MAX_DECIMALS + 1):
        power = 10.0**decimals
        for part, part_bits in ((values[:16], bits[:16]), (values, bits)):
            with np.errstate(all="ignore"):
                scaled = np.rint(part * power)
                if not (np.abs(scaled) < 2**53).all():
                    return None
                integers = scaled.astype(np.int64)
                if not np.array_equal((integers / power).view(np.int64), part_bits):
                    break
        else:
            return integers, decimals
    return None


def _fill(values: Integers, missing: _Flags) -> tuple[Integers, _Flags | None]:
    """Replace each missing value by the previous one, which costs nothing."""
    if not missing.any():
        return values, None
    present = np.flatnonzero(~missing)
    if not len(present):
        return np.zeros_like(values), missing
    source = np.where(missing, present[0], np.arange(len(values)))
    return values[np.maximum.accumulate(source)], missing


def line(elapsed: Floats, rate: float | Floats) -> Integers:
    """The changes of a counter that grows at a constant rate."""
    # One multiplication and one rounding: IEEE 754 gives the same result on every machine.
    return np.rint(elapsed * rate).astype(np.int64)


def zigzag(changes: Integers) -> Words:
    """Map small numbers of either sign to small words; the first row is 0."""
    words = np.zeros((*changes.shape[:-1], changes.shape[-1] + 1), np.uint64)
    words[..., 1:] = ((changes << 1) ^ (changes >> 63)).view(np.uint64)
    return words


def unzigzag(words: Words) -> Words:
    """Undo :func:`zigzag`."""
    result: Words = (words >> _ONE) ^ (np.uint64(0) - (words & _ONE))
    return result


def _word(value: int) -> np.uint64:
    return np.uint64(value & (2**64 - 1))
