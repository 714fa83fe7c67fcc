"""Stretches of curves put together, and summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from jobsight.model import MISSING
from jobsight.store.chunks import absent
from jobsight.store.packing import groups
from jobsight.store.transforms import Integers, Values


class Curves(NamedTuple):
    """Some metrics of one run on one node over a stretch of time."""

    times: Integers
    columns: dict[str, Values]


class Summary(msgspec.Struct, array_like=True):
    """One metric over one stretch. Summaries of neighbouring stretches can be put together."""

    minimum: int | float
    maximum: int | float
    first: int | float
    last: int | float
    first_time: int
    last_time: int
    #: Of value times seconds, each value standing for the time since the one before.
    integral: float
    duration: float


def join(parts: Sequence[Curves]) -> Curves:
    """Put stretches together, sorted by time.

    Where two rows have the same time they become one; of each column the later part's reading
    stays, unless it is missing.
    """
    if len(parts) == 1 and (np.diff(parts[0].times) > 0).all():
        return parts[0]
    kinds: dict[str, str] = {}
    for part in parts:
        for name, values in part.columns.items():
            # Integers and floats under one name: only floats can hold both.
            kinds[name] = "f" if "f" in (kinds.get(name), values.dtype.kind) else "i"
    times = np.concatenate([part.times for part in parts]) if parts else np.zeros(0, np.int64)
    columns = {
        name: np.concatenate([_column(part, name, kind) for part in parts])
        for name, kind in kinds.items()
    }
    if len(times) < 2 or (np.diff(times) > 0).all():
        return Curves(times, columns)
    order = np.argsort(times, kind="stable")
    times = times[order]
    starts = np.flatnonzero(np.concatenate(([True], times[1:] != times[:-1])))
    repeated = len(starts) < len(times)
    for name, values in columns.items():
        values = values[order]
        if repeated:
            rows = np.arange(len(values))
            # The last row of each group that has a reading, else its first.
            best = np.maximum.reduceat(np.where(present(values), rows, -1), starts)
            values = values[np.where(best < 0, starts, best)]
        columns[name] = values
    return Curves(times[starts], columns)


def between(curves: Curves, since: int | None, until: int | None) -> Curves:
    """The rows from ``since`` to ``until``, both included."""
    first = 0 if since is None else int(np.searchsorted(curves.times, since, "left"))
    last = len(curves.times)
    if until is not None:
        last = int(np.searchsorted(curves.times, until, "right"))
    if first == 0 and last == len(curves.times):
        return curves
    columns = {name: values[first:last] for name, values in curves.columns.items()}
    return Curves(curves.times[first:last], columns)


def present(values: Values) -> npt.NDArray[np.bool_]:
    """Which readings are there."""
    found = values != MISSING if values.dtype.kind == "i" else ~np.isnan(values)
    return np.asarray(found, np.bool_)


def summarise(curves: Curves) -> dict[str, Summary]:
    """Sum up every metric that has a reading; the times must be in order."""
    found: dict[str, Summary] = {}
    for kind in ("i", "f"):
        names = [name for name, column in curves.columns.items() if column.dtype.kind == kind]
        for some in groups(names, len(curves.times)):
            found |= _summaries(curves, some)
    return {name: found[name] for name in curves.columns if name in found}


def _summaries(curves: Curves, names: Sequence[str]) -> dict[str, Summary]:
    """Those of metrics of one type: of whole columns together, of each other by itself."""
    matrix: Values = np.stack([curves.columns[name] for name in names])  # type: ignore[assignment]
    there = present(matrix)
    whole: npt.NDArray[np.bool_] = np.all(there, axis=1)
    complete = [name for name, all_there in zip(names, whole, strict=True) if all_there]
    found = {}
    if complete:
        values = matrix if len(complete) == len(names) else matrix[whole]
        found = dict(zip(complete, _sum_up(values, curves.times), strict=True))
    for name, values, readings in zip(names, matrix, there, strict=True):
        if name not in found and readings.any():
            found[name] = _sum_up(values[None, readings], curves.times[readings])[0]
    return found


def _sum_up(values: Values, times: Integers) -> list[Summary]:
    gaps = np.diff(times) / 1e9
    with np.errstate(all="ignore"):
        integrals = (values[:, 1:] * gaps).sum(axis=1)
    figures = zip(
        values.min(axis=1).tolist(),
        values.max(axis=1).tolist(),
        values[:, 0].tolist(),
        values[:, -1].tolist(),
        integrals.tolist(),
        strict=True,
    )
    first_time, last_time, duration = int(times[0]), int(times[-1]), float(gaps.sum())
    return [
        Summary(minimum, maximum, first, last, first_time, last_time, integral, duration)
        for minimum, maximum, first, last, integral in figures
    ]


def combine(summaries: Iterable[Summary]) -> tuple[float, float, float, float]:
    """Minimum, mean, maximum and last of stretches that together are one curve."""
    parts = sorted(summaries, key=lambda part: (part.first_time, part.last_time))
    integral = duration = 0.0
    end = parts[0].first_time
    for part in parts:
        gap = max(part.first_time - end, 0) / 1e9
        integral += part.integral + part.first * gap
        duration += part.duration + gap
        end = max(end, part.last_time)
    last = max(parts, key=lambda part: part.last_time).last
    mean = integral / duration if duration else parts[0].first
    return (
        min(part.minimum for part in parts),
        mean,
        max(part.maximum for part in parts),
        last,
    )


def _column(part: Curves, name: str, kind: str) -> Values:
    values = part.columns.get(name)
    if values is None:
        return absent(kind, len(part.times))
    if kind == "f" and values.dtype.kind == "i":
        return np.where(present(values), values.astype(np.float64), absent("f", len(values)))
    return values
