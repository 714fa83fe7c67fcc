"""Curves and shares as characters, where people would rather look than read."""

from __future__ import annotations

from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def spark_line(values: Sequence[float], most: float | None = None) -> str:
    """One character for each value, as high as its share of the highest; none for nothing."""
    highest = max(values, default=0) if most is None else most
    if highest <= 0:
        return " " * len(values)
    last = len(_LEVELS) - 1
    return "".join(
        _LEVELS[min(int(value / highest * last + 0.5), last)] if value > 0 else " "
        for value in values
    )


def bar(share: float, width: int) -> str:
    """A bar of eighths of characters; what is more than nothing is seen."""
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def buckets(values: Sequence[float], count: int) -> list[float]:
    """Values joined so that at most ``count`` are left; each value counts in one of them."""
    if len(values) <= count:
        return list(values)
    result = [0.0] * count
    for place, value in enumerate(values):
        result[place * count // len(values)] += value
    return result
