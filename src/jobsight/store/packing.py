"""The best method for each of several columns, found for all of them at once.

Columns of a job are short and many: looked at one by one, most of the time would go into calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from jobsight.model import MISSING
from jobsight.store.transforms import (
    DELTA,
    DELTA_OF_DELTA,
    LINEAR,
    MAX_DECIMALS,
    MAX_RATE,
    MISSING_FLOAT,
    OFFSET,
    XOR,
    Floats,
    Integers,
    Packed,
    Values,
    Words,
    line,
    zigzag,
)

_Flags: TypeAlias = npt.NDArray[np.bool_]
_Column = TypeVar("_Column")

#: Values that are worked on at once: many short columns, or one long one, in little memory.
_TOGETHER = 1 << 17
#: Rows looked at when the methods are compared.
_PROBE = 1024
_SAFE = 2**62


class _Prepared(NamedTuple):
    """A column as integers without gaps."""

    values: Integers
    missing: _Flags | None
    decimals: int | None = None
    #: They are the bits of floating-point numbers.
    bits: bool = False


def groups(columns: Sequence[_Column], rows: int) -> Iterator[Sequence[_Column]]:
    """Columns of so many rows, as many as are worked on at once."""
    size = max(1, _TOGETHER // max(1, rows))
    for first in range(0, len(columns), size):
        yield columns[first : first + size]


def pack(columns: Sequence[Values], elapsed: Floats) -> list[Packed]:
    """Choose the best method for each column; ``elapsed`` are the gaps in time."""
    made: list[Packed] = []
    for some in groups(columns, len(elapsed) + 1):
        prepared = [_prepare(column) for column in some]
        chosen = _choose(np.stack([column.values for column in prepared]), elapsed)
        made += map(_finish, prepared, chosen)
    return made


def _prepare(column: Values) -> _Prepared:
    if column.dtype.kind == "i":
        whole = column.astype(np.int64, copy=False)
        return _Prepared(*_fill(whole, whole == MISSING))
    bits = np.ascontiguousarray(column, np.float64).view(np.int64)
    bits, missing = _fill(bits, bits.view(np.uint64) == MISSING_FLOAT)
    decimal = _as_decimals(bits)
    if decimal is None:
        return _Prepared(bits, missing, bits=True)
    return _Prepared(decimal[0], missing, decimal[1])


def _finish(column: _Prepared, packed: Packed) -> Packed:
    if column.bits:
        words = column.values.view(np.uint64)
        changed = words.copy()
        changed[1:] ^= words[:-1]
        changed[0] = 0
        if _costs(changed) <= _costs(packed.words):
            packed = Packed(changed, XOR, base=int(column.values[0]))
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
    """Counters of CPU time move in microseconds or clock ticks and memory in pages: what all
    changes of a row have in common need not be stored."""
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
    rates = np.median(changes[:, moving] / elapsed[moving], axis=1)
    # The line must stay far from the ends of int64, where the conversion is not defined.
    furthest = np.abs(elapsed).max() * np.abs(rates)
    return np.where((furthest < _SAFE) & (np.abs(rates) < MAX_RATE), rates, 0.0)


def _costs(words: Words) -> Floats:
    """The bits that the words of each row need, about what the compressor leaves of them."""
    rows = words.shape[-1]
    if rows > _PROBE:
        words = words[..., :: rows // _PROBE]
    exponents: Floats = np.frexp(words.astype(np.float64))[1].sum(axis=-1, dtype=np.float64)
    return exponents


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


def _fill(values: Integers, missing: _Flags) -> tuple[Integers, _Flags | None]:
    """Put the value before in place of each missing one, so that it costs nothing."""
    if not missing.any():
        return values, None
    present = np.flatnonzero(~missing)
    if not len(present):
        return np.zeros_like(values), missing
    source = np.where(missing, present[0], np.arange(len(values)))
    return values[np.maximum.accumulate(source)], missing
