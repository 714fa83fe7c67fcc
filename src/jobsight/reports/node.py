"""One node: its jobs as a time line, what they used, and its faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from jobsight.model import MISSING, SECOND
from jobsight.reports.build import JobRow, job_row
from jobsight.reports.whole_node import WholeNode, view_whole_node
from jobsight.scheduler.records import NodeInfo
from jobsight.store.read import nodes
from jobsight.store.read.nodes import GpuFaults, NodeAgent, NodeGpu
from jobsight.store.read.queries import StoredRun, StoredSeries, TooLarge
from jobsight.store.read.visibility import Visibility
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store

#: Jobs of the time line, and of the list of failures.
MAX_JOBS: Final = 200
MAX_FAILURES: Final = 10
#: Intervals of the time series, and values that are read for them at most.
POINTS: Final = 144
_DAY: Final = 86400 * SECOND
#: Days in which faults and GPUs are searched.
FAULT_DAYS: Final = 90

Floats = NDArray[np.float64]


class LaneJob(msgspec.Struct, kw_only=True):
    """A job in the time line."""

    row: JobRow
    #: The line it is drawn in.
    lane: int
    #: Its begin and end within the interval.
    since: int
    until: int


class NodeUse(msgspec.Struct, kw_only=True):
    """What the jobs of a node used over time, summed over them."""

    since: int
    #: Nanoseconds of one interval.
    width: int
    cores: list[float]
    memory: list[float]
    #: CPUs that the jobs held.
    held: list[float]


class NodeView(msgspec.Struct, kw_only=True):
    """One node."""

    cluster: str
    name: str
    #: As of the last scrape; None if the scheduler does not know it.
    info: NodeInfo | None
    agent: NodeAgent | None
    gpus: list[NodeGpu]
    faults: list[GpuFaults]
    #: Runs that ended because the node failed, the newest first.
    failures: list[JobRow]
    jobs: list[LaneJob]
    lanes: int
    more_jobs: bool
    use: NodeUse | None
    #: The node itself, for viewers who see everything: on a node with one job it shows that job.
    whole: WholeNode | None

    @property
    def is_known(self) -> bool:
        return self.info is not None or self.agent is not None or bool(self.jobs)


def view_node(
    store: Store, cluster: str, name: str, *, visibility: Visibility, since: int, until: int
) -> NodeView:
    """Read what is known of a node; jobs are those that the viewer may see."""
    database = store.database
    infos = read_snapshot(database, cluster, "node", NodeInfo)
    runs = nodes.runs_on_node(
        database, cluster, name, since=since, until=until, limit=MAX_JOBS + 1, visibility=visibility
    )
    failed = nodes.runs_on_node(
        database, cluster, name, since=until - FAULT_DAYS * _DAY, until=until, limit=MAX_FAILURES,
        visibility=visibility, state="NODE_FAIL",
    )  # fmt: skip
    shown = runs[:MAX_JOBS]
    jobs, lanes = place_in_lanes([job_row(run, until) for run in shown], since, until)
    long_ago = until - FAULT_DAYS * _DAY
    return NodeView(
        cluster=cluster,
        name=name,
        info=next((info for info in infos if info.name == name), None),
        agent=nodes.agent_of_node(database, cluster, name),
        gpus=nodes.gpus_of_node(database, cluster, name, long_ago),
        faults=nodes.gpu_faults(database, cluster, name, long_ago),
        failures=[job_row(run, until) for run in failed],
        jobs=jobs,
        lanes=lanes,
        more_jobs=len(runs) > MAX_JOBS,
        use=_use(store, shown, name, since, until),
        whole=view_whole_node(store, cluster, name, since=since, until=until, points=POINTS)
        if visibility.everything
        else None,
    )


def place_in_lanes(rows: Iterable[JobRow], since: int, until: int) -> tuple[list[LaneJob], int]:
    """Give each job the first line that is free at its start; returns the number of lines."""
    ends: list[int] = []
    placed = []
    for row in sorted(rows, key=lambda each: (each.start or 0, each.job_id)):
        begin = max(row.start or since, since)
        end = until if row.running or row.end is None else row.end
        end = max(min(end, until), begin)
        lane = next((index for index, last in enumerate(ends) if last <= begin), len(ends))
        ends[lane : lane + 1] = [end]
        placed.append(LaneJob(row=row, lane=lane, since=begin, until=end))
    return placed, len(ends)


def _use(
    store: Store, runs: Sequence[StoredRun], node: str, since: int, until: int
) -> NodeUse | None:
    if not runs or store.external_series is not None:
        return None
    bounds = np.linspace(since, until, POINTS + 1)
    cores, memory = np.zeros(POINTS), np.zeros(POINTS)
    metrics = ("cpu.time", "memory.used")
    try:
        series = nodes.series_of_runs(
            store.database, [run.id for run in runs], node, metrics, since, until
        )
        for each in series:
            cores += _mean_rate(each, "cpu.time", bounds)
            memory += _mean_value(each, "memory.used", bounds)
    except TooLarge:
        return None
    return NodeUse(
        since=since,
        width=(until - since) // POINTS,
        cores=cores.tolist(),
        memory=memory.tolist(),
        held=_held(runs, bounds).tolist(),
    )


def _known(series: StoredSeries, name: str) -> tuple[Floats, Floats]:
    column: NDArray[Any] | None = series.columns.get(name)
    if column is None:
        return np.empty(0), np.empty(0)
    known = column != MISSING if column.dtype.kind == "i" else np.isfinite(column)
    return series.times[known].astype(np.float64), column[known].astype(np.float64)


def _mean_rate(series: StoredSeries, name: str, bounds: Floats) -> Floats:
    """The mean rate of a counter of nanoseconds in each interval: its growth by the counter's
    values at the bounds, so that the integral is that of the counter."""
    times, values = _known(series, name)
    if len(times) < 2:
        return np.zeros(len(bounds) - 1)
    # An agent that restarted may report less for a moment.
    counter = np.interp(bounds, times, np.maximum.accumulate(values))
    rate: Floats = np.diff(counter) / np.diff(bounds)
    return rate


def _mean_value(series: StoredSeries, name: str, bounds: Floats) -> Floats:
    """A gauge in the middle of each interval; 0 before its first and after its last value."""
    times, values = _known(series, name)
    if not len(times):
        return np.zeros(len(bounds) - 1)
    middle = (bounds[:-1] + bounds[1:]) / 2
    value: Floats = np.interp(middle, times, values, left=0.0, right=0.0)
    return value


def _held(runs: Sequence[StoredRun], bounds: Floats) -> Floats:
    """The CPUs that the runs held on the node, by the mean over their nodes."""
    held = np.zeros(len(bounds) - 1)
    for run in runs:
        cpus = (run.info.cpus or 0) / max(run.node_count, 1)
        end = bounds[-1] if run.info.end is None else float(run.info.end)
        overlap = np.minimum(bounds[1:], end) - np.maximum(bounds[:-1], float(run.start))
        held += cpus * np.clip(overlap / np.diff(bounds), 0, 1)
    return held
