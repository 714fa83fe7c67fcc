"""What a node did as a whole, whatever ran on it, from its own time series.

The difference from the sum of its jobs is what no job used: the system, its daemons, and processes
outside of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobsight.model import MISSING, SECOND
from jobsight.reports.series import GAP_FACTOR
from jobsight.store.read import node_days
from jobsight.store.read.queries import StoredSeries, TooLarge
from jobsight.store.store import Store

Floats = NDArray[np.float64]

#: Nothing is known between two samples that are further apart, even if all are.
_LONGEST_STEP: Final = 2 * 3600 * SECOND
#: Before an interval, so that its first part has a sample on both sides.
_MARGIN: Final = 3600 * SECOND
_MICRO: Final = 1e-6

#: Figure -> the metrics that are added, and the factor to its unit.
_RATES: Final = {
    "cores": (("node.cpu.user", "node.cpu.system"), 1.0),
    "io_wait": (("node.cpu.iowait",), 1.0),
    "received": (("node.network.received_bytes",), float(SECOND)),
    "sent": (("node.network.sent_bytes",), float(SECOND)),
    "disk_read": (("node.disk.read_bytes",), float(SECOND)),
    "disk_written": (("node.disk.written_bytes",), float(SECOND)),
    "power": (("node.energy.node",), SECOND * _MICRO),
    "cpu_power": (("node.energy.cpu",), SECOND * _MICRO),
    "cpu_pressure": (("node.pressure.cpu",), 1.0),
    "memory_pressure": (("node.pressure.memory",), 1.0),
    "io_pressure": (("node.pressure.io",), 1.0),
}
_VALUES: Final = {
    "load": "node.load.1m",
    "memory": "node.memory.used",
    "cache": "node.memory.cache",
    "memory_total": "node.memory.total",
    "swap": "node.swap.used",
}
METRICS: Final = (
    *(name for names, _ in _RATES.values() for name in names),
    *_VALUES.values(),
)


class WholeNode(msgspec.Struct, kw_only=True):
    """A node over an interval, in equal parts; a value that is not known is NaN. Figures of which
    nothing is known are None."""

    #: CPUs that worked, and that waited for a device.
    cores: list[float] | None = None
    io_wait: list[float] | None = None
    load: list[float] | None = None
    #: Bytes.
    memory: list[float] | None = None
    cache: list[float] | None = None
    memory_total: list[float] | None = None
    swap: list[float] | None = None
    #: Bytes per second.
    received: list[float] | None = None
    sent: list[float] | None = None
    disk_read: list[float] | None = None
    disk_written: list[float] | None = None
    #: Watts, of the node and of its processors and memory.
    power: list[float] | None = None
    cpu_power: list[float] | None = None
    #: Shares of the time in which some process waited.
    cpu_pressure: list[float] | None = None
    memory_pressure: list[float] | None = None
    io_pressure: list[float] | None = None


def view_whole_node(
    store: Store, cluster: str, node: str, *, since: int, until: int, points: int
) -> WholeNode | None:
    """The node in equal parts of an interval; None if it has no series there, or too many."""
    try:
        series = node_days.series_of_node(
            store.database, cluster, node, METRICS, since - _MARGIN, until + _MARGIN
        )
    except TooLarge:
        return None
    if series is None or not len(series.times):
        return None
    bounds = np.linspace(since, until, points + 1)
    figures: dict[str, Floats | None] = {
        **{name: _rate(series, names, factor, bounds) for name, (names, factor) in _RATES.items()},
        **{name: _value(series, metric, bounds) for name, metric in _VALUES.items()},
    }
    known = {
        name: values.tolist()
        for name, values in figures.items()
        if values is not None and bool(np.isfinite(values).any())
    }
    return WholeNode(**known) if known else None


def of_no_job(whole: Sequence[float], jobs: Sequence[float]) -> float | None:
    """The mean of what no job used, where the node is known; None if it never is."""
    rest = np.asarray(whole) - np.asarray(jobs)
    known = rest[np.isfinite(rest)]
    return max(float(known.mean()), 0.0) if len(known) else None


def _rate(
    series: StoredSeries, names: Sequence[str], factor: float, bounds: Floats
) -> Floats | None:
    """The mean rate of counters, added, in each part."""
    total: Floats | None = None
    for name in names:
        times, counted = _known(series, name)
        if len(times) < 2:
            continue
        # Differences of integers: no digit of a large counter is lost.
        growth = np.diff(counted)
        # A counter that falls was reset, at an unknown time.
        rate = factor * _mean(times, growth.astype(np.float64), growth >= 0, bounds)
        total = rate if total is None else total + rate
    return total


def _value(series: StoredSeries, name: str, bounds: Floats) -> Floats | None:
    """The mean of a gauge in each part; a value holds since the sample before."""
    times, values = _known(series, name)
    if len(times) < 2:
        return None
    amounts = values[1:].astype(np.float64) * np.diff(times)
    return _mean(times, amounts, np.ones(len(amounts), np.bool_), bounds)


def _known(series: StoredSeries, name: str) -> tuple[Floats, NDArray[Any]]:
    column: NDArray[Any] | None = series.columns.get(name)
    if column is None:
        return np.empty(0), np.empty(0)
    known = column != MISSING if column.dtype.kind == "i" else np.isfinite(column)
    return series.times[known].astype(np.float64), column[known]


def _mean(times: Floats, amounts: Floats, sound: NDArray[np.bool_], bounds: Floats) -> Floats:
    """The mean in each part by the amounts of the steps between two samples, over the time that the
    steps cover. A step that is much longer than usual covers nothing."""
    steps = np.diff(times)
    longest = min(GAP_FACTOR * float(np.median(steps)), _LONGEST_STEP)
    sound = sound & (steps > 0) & (steps <= longest)
    parts = (np.where(sound, amounts, 0.0), np.where(sound, steps, 0.0))
    sums = (np.concatenate(([0.0], np.cumsum(part))) for part in parts)
    done, covered = (np.diff(np.interp(bounds, times, each)) for each in sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean: Floats = np.where(covered > 0, done / covered, np.nan)
    return mean
