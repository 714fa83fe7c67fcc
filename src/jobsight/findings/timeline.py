"""The time series of a run over all its nodes, on one grid of equal intervals.

Nodes are sampled at different times and at intervals that grow with the age of a job. Each series
is therefore integrated (a counter is its own integral, a gauge holds since the previous sample) and
the integral is interpolated at the edges of the grid: the sum over a run is exact, and a change is
known to one interval. Nodes are added one after the other, so that the memory does not depend on
their number.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from jobsight.metrics import find_metric
from jobsight.model import SECOND
from jobsight.store.read.queries import StoredNode, StoredSeries
from jobsight.store.series.blocks import present

Floats: TypeAlias = "npt.NDArray[np.float64]"

CPU: Final = "cpu.time"
MEMORY: Final = "memory.used"
#: The metrics of a run that figures need, without those of single GPUs.
METRICS: Final = (
    *(CPU, MEMORY, "tasks.threads", "tasks.running", "tasks.blocked"),
    *("files.open", "files.scratch", "io.read_bytes"),
    *("pressure.cpu", "pressure.memory_full", "pressure.io", "pressure.io_full"),
    *("energy.cpu", "gpu.held", "gpu.idle"),
)
#: The metrics of each GPU.
GPU_METRICS: Final = ("utilization", "multiprocessor_time", "energy")

#: Seconds of an interval, unless there would be fewer or more intervals than these.
_WIDTH: Final = 10.0
_MIN_INTERVALS, _MAX_INTERVALS = 12, 4096
#: Values of the CPU use of single nodes.
_MATRIX: Final = 2**19
#: Points of the memory of a node over the last two thirds of the run.
MEMORY_POINTS: Final = 96


class TimeSeries(NamedTuple):
    """An integral as a function of time: seconds since the start of the run, and its value."""

    times: Floats
    values: Floats


class GpuSeries:
    """What the time series of single GPUs add up to, by interval."""

    def __init__(self, count: int) -> None:
        #: The sum and the maximum of the utilization (0 to 1) of the GPUs that were ever used, and
        #: how many of them are known.
        self.total = np.zeros(count)
        self.highest = np.zeros(count)
        self.known = np.zeros(count)
        #: GPUs that were active at all, of all GPUs.
        self.active = np.zeros(count)
        self.all_known = np.zeros(count)
        #: Joules of GPUs in intervals without activity; None if no energy was read.
        self.idle_energy: float | None = None


class Timeline:
    """The time series of a run. A column is the rate of a counter or the mean of a gauge in each
    interval, summed over the nodes; counters in nanoseconds become cores or shares of time."""

    def __init__(self, start: int, span: float, nodes: int) -> None:
        self.start = start
        self.span = span
        count = int(min(max(span / _WIDTH, min(_MIN_INTERVALS, span)), _MAX_INTERVALS)) or 1
        self.edges: Floats = np.linspace(0.0, span, count + 1)
        self.width = span / count
        self._nodes = nodes
        self._columns: dict[str, Floats] = {}
        self._known: dict[str, Floats] = {}
        #: The highest sample of a gauge on any node.
        self.highest: dict[str, float] = {}
        #: Names of the nodes with series, and the busy CPUs of each by some intervals.
        self.nodes: list[str] = []
        self._node_rows: list[npt.NDArray[np.float32]] = []
        step = -(-count // max(_MATRIX // max(nodes, 1), 64))
        self._starts = np.arange(0, count, step)
        #: Seconds of these intervals.
        self.node_widths: Floats = np.diff(np.append(self._starts, count)) * self.width
        self.memory_times: Floats = np.linspace(span / 3, span, MEMORY_POINTS)
        #: The memory of each node at these times.
        self.memory_of: dict[str, Floats] = {}
        self.gpus = GpuSeries(count)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def get(self, name: str) -> Floats | None:
        """The column of a metric; None if it was not measured."""
        return self._columns.get(name)

    def names(self) -> list[str]:
        """The metrics that were measured."""
        return list(self._columns)

    def known(self, name: str) -> Floats:
        """The number of nodes with values of the metric in each interval."""
        return self._known[name]

    def mean(self, name: str) -> float | None:
        """The mean of a gauge over the time for which it is known."""
        column = self.get(name)
        if column is None:
            return None
        weights = self._known[name]
        total = float(np.sum(weights > 0))
        return float(np.sum(column[weights > 0])) / total if total else None

    def share_of_time(self, name: str) -> float | None:
        """The growth of a counter of time by node, as a share of the time it is known for."""
        column = self.get(name)
        weights = None if column is None else float(np.sum(self._known[name]))
        return None if column is None or not weights else float(np.sum(column)) / weights

    def node_matrix(self) -> npt.NDArray[np.float32]:
        """The busy CPUs of the nodes (rows) by interval, of ``node_widths`` each."""
        return np.stack(self._node_rows) if self._node_rows else np.zeros((0, 0), np.float32)

    def add(
        self, series: StoredSeries, sightings: Collection[StoredNode], gpus: Collection[str]
    ) -> None:
        """Add the series of a node; ``gpus`` are the keys of those GPUs that were ever used."""
        if not len(series.times):
            return
        times = (series.times - self.start) / SECOND
        self.nodes.append(series.node)
        for name in series.columns:
            if not (name.startswith("gpu.") and name.count(".") > 1):
                samples = _known(series, times, name)
                if samples is not None:
                    self._add_column(name, samples, sightings)
        self._add_gpus(series, times, gpus)

    def _add_column(
        self, name: str, samples: TimeSeries, sightings: Collection[StoredNode]
    ) -> None:
        metric = find_metric(name)
        if metric is None:
            return
        if name == MEMORY:
            self._add_memory(samples)
        if metric.kind == "counter":
            series = _counter(samples)
            if name == CPU:
                series = _whole_counter(series, samples.values[0], sightings, self.start)
            column, share = self._resample(series)
            if metric.unit == "nanoseconds":
                column /= SECOND
        else:
            highest = float(samples.values.max())
            self.highest[name] = max(self.highest.get(name, highest), highest)
            column, share = self._resample_mean(_integral(samples))
        if name in self._columns:
            self._columns[name] += column
            self._known[name] += share > 0
        else:
            self._columns[name], self._known[name] = column, (share > 0).astype(np.float64)
        if name == CPU and self._nodes > 1:
            sums = np.add.reduceat(column, self._starts) * self.width / self.node_widths
            self._node_rows.append(sums.astype(np.float32))

    def _resample(self, series: TimeSeries) -> tuple[Floats, Floats]:
        """The growth in each interval by second, and the share of the interval that is known."""
        edges = self.edges
        at_edges = np.interp(edges, series.times, series.values)
        share = np.clip(edges, series.times[0], series.times[-1])
        share = (share[1:] - share[:-1]) / self.width
        growth = (at_edges[1:] - at_edges[:-1]) / self.width
        return growth, share

    def _resample_mean(self, series: TimeSeries) -> tuple[Floats, Floats]:
        """The same of the integral of a gauge: the mean of the part that is known."""
        growth, share = self._resample(series)
        return np.divide(growth, share, out=np.zeros_like(growth), where=share > 1e-9), share

    def _add_memory(self, samples: TimeSeries) -> None:
        self.memory_of[self.nodes[-1]] = np.interp(
            self.memory_times, samples.times, samples.values, left=np.nan, right=np.nan
        )

    def _add_gpus(self, series: StoredSeries, times: Floats, used: Collection[str]) -> None:
        keys = {
            name[len("gpu.") : name.rindex(".")]
            for name in series.columns
            if name.startswith("gpu.") and name.count(".") > 1
        }
        for key in sorted(keys):
            activity = self._activity_of(series, times, key)
            if activity is None:
                continue
            share, known = activity
            sums = self.gpus
            sums.active += known & (share > 0)
            sums.all_known += known
            if key in used:
                sums.total += share
                sums.known += known
                np.maximum(sums.highest, share, out=sums.highest)
            energy = _known(series, times, f"gpu.{key}.energy")
            if energy is not None:
                microwatts, _ = self._resample(_counter(energy))
                idle = float(np.sum(microwatts[known & (share == 0)])) * self.width / 1e6
                sums.idle_energy = (sums.idle_energy or 0.0) + idle

    def _activity_of(
        self, series: StoredSeries, times: Floats, key: str
    ) -> tuple[Floats, npt.NDArray[np.bool_]] | None:
        """The utilization of a GPU, 0 to 1, and where it is known. Of an instance of a GPU only the
        multiprocessors may be known."""
        utilization = _known(series, times, f"gpu.{key}.utilization")
        if utilization is not None:
            samples = TimeSeries(utilization.times, utilization.values / 100.0)
            activity, share = self._resample_mean(_integral(samples))
        else:
            busy = _known(series, times, f"gpu.{key}.multiprocessor_time")
            if busy is None:
                return None
            activity, share = self._resample_mean(_counter(busy))
            activity /= SECOND
        return np.clip(activity, 0.0, 1.0), share > 0


def _known(series: StoredSeries, times: Floats, name: str) -> TimeSeries | None:
    """The samples of a metric that are not missing; None if there is none."""
    values = series.columns.get(name)
    if values is None:
        return None
    mask = present(values)
    return TimeSeries(times[mask], values[mask].astype(np.float64)) if mask.any() else None


def _counter(samples: TimeSeries) -> TimeSeries:
    """The growth since the first sample; a counter that falls has begun again at zero."""
    steps = np.diff(samples.values)
    falls = steps < 0
    if falls.any():
        steps = np.where(falls, np.maximum(samples.values[1:], 0.0), steps)
    return TimeSeries(samples.times, np.concatenate(([0.0], np.cumsum(steps))))


def _whole_counter(
    series: TimeSeries, first: float, sightings: Collection[StoredNode], start: int
) -> TimeSeries:
    """The CPU counter from the creation of the cgroup to the last totals."""
    if len(sightings) != 1:
        return series
    (node,) = sightings
    times, values = series.times, series.values + max(first, 0.0)
    birth = max((node.sighting.birth - start) / SECOND, 0.0)
    if birth < times[0]:
        times, values = np.append(birth, times), np.append(0.0, values)
    totals = node.totals
    if totals is not None and totals.cpu_time is not None:
        end = (totals.time - start) / SECOND
        if end > times[-1]:
            times = np.append(times, end)
            values = np.append(values, max(float(totals.cpu_time), values[-1]))
    return TimeSeries(times, values)


def _integral(samples: TimeSeries) -> TimeSeries:
    """The integral of a gauge; a value holds since the previous sample."""
    steps = np.diff(samples.times) * samples.values[1:]
    if len(steps):
        return TimeSeries(samples.times, np.concatenate(([0.0], np.cumsum(steps))))
    # A single sample stands for a moment around it.
    time, value = float(samples.times[0]), float(samples.values[0])
    return TimeSeries(np.array([time - 0.5, time + 0.5]), np.array([0.0, value]))
