"""The share of one run in the daily rollups, computed from the run alone.

:func:`contribution` splits the usage of a run over days and software names. No clock is read: an
open run counts up to its last sample, so the same records always give the same figures. Integers
are split into integers with exactly the same sum. :func:`with_day_boundaries` reads the CPU
counter at midnight from the time series.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from jobsight.model import SECOND
from jobsight.store.database import Transaction
from jobsight.store.series import codec
from jobsight.store.series.blocks import SeriesBlock, join, present
from jobsight.store.series.codec import ChunkError
from jobsight.store.sql.load import load_statements

logger = logging.getLogger(__name__)

DAY = 86400 * SECOND
#: No rule matches the path.
UNDETERMINED = 0
#: CPU time that no executable accounts for.
NOT_ATTRIBUTED = -1

#: A longer run has a wrong start; only its last ten years count.
_MAX_LENGTH = 3660 * DAY
#: Limits above any real value, so that a wrong one cannot overflow 63 bits in a sum.
_MAX_CPUS, _MAX_GPUS, _MAX_MEMORY, _MAX_EXECUTIONS = 2**24, 2**20, 2**60, 2**40
_MEBIBYTE = 2**20
_CPU_TIME: Final = "cpu.time"
_SQL: Final = load_statements("rollups")


class SoftwareShare(msgspec.Struct, array_like=True):
    """The share of one software in a run on one day; times are in microseconds."""

    software_id: int
    runs: int = 0
    executions: int = 0
    cpu_time: int = 0
    core_time: int = 0
    gpu_time: int = 0
    #: The run is counted in exactly one of its rows with the same name, with the same name and
    #: version, and so on.
    name_runs: int = 0
    version_runs: int = 0
    local_version_runs: int = 0


class DayShare(msgspec.Struct, array_like=True):
    """A run on one day, the sum of its software. Memory is in MiB seconds."""

    day: int
    runs: int
    executions: int
    cpu_time: int
    core_time: int
    gpu_time: int
    memory_time: int
    software: list[SoftwareShare]


class Contribution(msgspec.Struct, array_like=True):
    """The contribution of one run to the rollups, by day."""

    cluster: str
    user: str
    account: str
    partition: str
    days: list[DayShare]

    def software(self) -> dict[int, SoftwareShare]:
        """The software of the run, summed over all days."""
        sums: dict[int, SoftwareShare] = {}
        for day in self.days:
            for share in day.software:
                _add(sums.setdefault(share.software_id, SoftwareShare(share.software_id)), share)
        return sums


class RunFacts(NamedTuple):
    """The columns of a run from which its contribution is computed."""

    id: int
    cluster: str
    start: int
    end: int | None
    provisional: bool
    user: str | None
    account: str | None
    partition: str | None
    cpus: int | None
    gpus: int | None
    memory: int | None
    last_seen: int | None
    #: What retention removed, as bits; see :mod:`jobsight.store.maintenance.retention`.
    pruned: int = 0

    def interval(self) -> tuple[int, int]:
        """Start and end of the counted time. A run without an end counts up to its last sample."""
        end = self.end if self.end is not None else self.last_seen
        end = self.start if end is None else max(self.start, end)
        return max(self.start, end - _MAX_LENGTH), end

    def midnights(self) -> range:
        """The midnights (UTC) within the run."""
        start, end = self.interval()
        return range((start // DAY + 1) * DAY, end, DAY)


class RowName(NamedTuple):
    """The name of a row of software; a run is counted on its first row in this order."""

    #: Ignored rows come last, so that a report without them counts each run that has others.
    ignored: bool
    name: str
    version: str
    local_version: str
    user_provided: bool


class Use(NamedTuple):
    """The usage of one executable on one node, over all agent epochs; CPU nanoseconds."""

    #: The digest of the path, which orders equal remainders independently of row ids.
    digest: bytes
    software_id: int
    cpu_time: int
    executions: int


class NodeFacts(NamedTuple):
    """One sighting of a run."""

    #: The counter of the job on the node, in nanoseconds; None if it was never read.
    cpu_time: int | None
    uses: Sequence[Use]
    #: The counter at each midnight of the run, if there is a time series of it.
    at_midnight: Sequence[int] | None = None

    def counted(self) -> int:
        """The CPU time of the counter; without a counter that of the executables."""
        if self.cpu_time is not None:
            return max(self.cpu_time, 0)
        return sum(max(use.cpu_time, 0) for use in self.uses)


class PathShare(NamedTuple):
    """The share of one path in a run, by day in microseconds; without a digest, the remainder."""

    digest: bytes
    software_id: int
    executions: list[int]
    cpu_time: list[int]
    core_time: list[int]
    gpu_time: list[int]


def contribution(
    run: RunFacts, nodes: Sequence[NodeFacts], names: Mapping[int, RowName]
) -> Contribution | None:
    """The contribution of a run; None for a job that has not started. ``names`` has the names of
    the rows of software by id."""
    if run.provisional and not nodes:
        return None
    usage = _usage_by_day(run, nodes)
    for path in path_shares(usage, nodes):
        for index, day in enumerate(usage):
            share = SoftwareShare(
                path.software_id,
                # Like the run itself, on the day of the start.
                int(index == 0),
                path.executions[index],
                path.cpu_time[index],
                path.core_time[index],
                path.gpu_time[index],
            )
            _gather(day.software, share)
    _count_once(usage[0].software, names)
    for day in usage:
        day.software = [share for share in day.software if any(msgspec.structs.astuple(share)[1:])]
        day.software.sort(key=lambda share: share.software_id)
        day.executions = sum(share.executions for share in day.software)
    owners = (run.user or "", run.account or "", run.partition or "")
    return Contribution(run.cluster, *owners, [day for day in usage if _counts(day)])


def shares_of_run(run: RunFacts, nodes: Sequence[NodeFacts]) -> list[PathShare]:
    """The shares of the paths of a run, which a new name would move."""
    if run.provisional and not nodes:
        return []
    return path_shares(_usage_by_day(run, nodes), nodes)


def path_shares(usage: Sequence[DayShare], nodes: Sequence[NodeFacts]) -> list[PathShare]:
    """Split a run over its paths, not over their names: a new name then moves complete shares, to
    the microsecond."""
    used, unaccounted = _cpu_by_path(nodes)
    paths = sorted(used, key=lambda key: key[0])
    weights = [used[key][0] for key in paths]
    if unaccounted or not sum(weights):
        paths.insert(0, (b"", NOT_ATTRIBUTED))
        weights.insert(0, unaccounted)
    cpu = split_evenly([day.cpu_time for day in usage], weights)
    core = split_evenly([day.core_time for day in usage], weights)
    gpu = split_evenly([day.gpu_time for day in usage], weights)
    # The days of executions are not known: they are split like the CPU time.
    days = [day.cpu_time for day in usage]
    result = []
    for index, (digest, software_id) in enumerate(paths):
        executions = used[digest, software_id][1] if digest else 0
        columns = ([row[index] for row in table] for table in (cpu, core, gpu))
        result.append(PathShare(digest, software_id, split_integer(executions, days), *columns))
    return result


def _usage_by_day(run: RunFacts, nodes: Sequence[NodeFacts]) -> list[DayShare]:
    start, end = run.interval()
    bounds = [start, *run.midnights(), end]
    counted = [0, *_cpu_at_midnights(run, nodes), sum(node.counted() for node in nodes)]
    cpus, gpus = _within(run.cpus, _MAX_CPUS), _within(run.gpus, _MAX_GPUS)
    memory = _within(run.memory, _MAX_MEMORY)
    # Rounded at the bounds and not by day, so that the days add up to the total.
    cpu = _differences([value // 1000 for value in counted])
    core = _differences([cpus * (bound - start) // 1000 for bound in bounds])
    gpu = _differences([gpus * (bound - start) // 1000 for bound in bounds])
    held = [memory * (bound - start) // (_MEBIBYTE * SECOND) for bound in bounds]
    return [
        DayShare(start // DAY + index, int(index == 0), 0, *figures, [])
        for index, figures in enumerate(zip(cpu, core, gpu, _differences(held), strict=True))
    ]


def _cpu_at_midnights(run: RunFacts, nodes: Sequence[NodeFacts]) -> list[int]:
    """CPU nanoseconds of all nodes up to each midnight; in proportion to time without a series."""
    start, end = run.interval()
    result = []
    for index, midnight in enumerate(run.midnights()):
        result.append(0)
        for node in nodes:
            counted = node.counted()
            if node.at_midnight is not None:
                result[-1] += min(max(node.at_midnight[index], 0), counted)
            else:
                result[-1] += counted * (midnight - start) // (end - start)
    return result


def _cpu_by_path(
    nodes: Sequence[NodeFacts],
) -> tuple[dict[tuple[bytes, int], tuple[int, int]], int]:
    """CPU time and executions by path and name, and the CPU time that no path accounts for."""
    used: dict[tuple[bytes, int], tuple[int, int]] = {}
    unaccounted = 0
    for node in nodes:
        counted = node.counted()
        figures = [max(use.cpu_time, 0) for use in node.uses]
        if sum(figures) > counted:
            # The sum of the processes may exceed the counter by rounding; the counter is exact.
            figures = split_integer(counted, figures)
        unaccounted += counted - sum(figures)
        for use, cpu_time in zip(node.uses, figures, strict=True):
            before = used.get((use.digest, use.software_id), (0, 0))
            executions = before[1] + _within(use.executions, _MAX_EXECUTIONS)
            used[use.digest, use.software_id] = (before[0] + cpu_time, executions)
    return used, unaccounted


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(values)]


def _within(value: int | None, maximum: int) -> int:
    return min(max(value or 0, 0), maximum)


def _counts(day: DayShare) -> bool:
    return any((day.runs, day.cpu_time, day.core_time, day.gpu_time, day.memory_time, day.software))


def _gather(shares: list[SoftwareShare], share: SoftwareShare) -> None:
    for known in shares:
        if known.software_id == share.software_id:
            runs = max(known.runs, share.runs)
            _add(known, share)
            known.runs = runs
            return
    shares.append(share)


def _count_once(shares: Sequence[SoftwareShare], names: Mapping[int, RowName]) -> None:
    """Count the run on one row of each name, version and local version: the first in the order of
    their texts, which does not depend on row ids."""
    named = [share for share in shares if share.software_id in names]
    for share in shares:
        if share.software_id not in names:
            share.name_runs = share.version_runs = share.local_version_runs = 1
    seen: set[tuple[str, ...]] = set()
    for share in sorted(named, key=lambda share: names[share.software_id]):
        _, *texts, _ = names[share.software_id]
        keys = [tuple(texts[:length]) for length in (1, 2, 3)]
        counted = [int(key not in seen) for key in keys]
        share.name_runs, share.version_runs, share.local_version_runs = counted
        seen.update(keys)


def _add(total: SoftwareShare, share: SoftwareShare) -> None:
    total.runs += share.runs
    total.executions += share.executions
    total.cpu_time += share.cpu_time
    total.core_time += share.core_time
    total.gpu_time += share.gpu_time
    total.name_runs += share.name_runs
    total.version_runs += share.version_runs
    total.local_version_runs += share.local_version_runs


def with_day_boundaries(
    transaction: Transaction, run: RunFacts, nodes: dict[int, NodeFacts]
) -> list[NodeFacts]:
    """The nodes of a run, with their counters at midnight if there are time series of them."""
    if not nodes or not run.midnights():
        return list(nodes.values())
    parts: dict[int, list[SeriesBlock]] = {}
    for run_node_id, data in transaction.execute(_SQL["chunks_of_run"], {"id": run.id}).fetchall():
        try:
            times, columns = codec.decode(bytes(data), frozenset([_CPU_TIME]))
        except ChunkError as error:
            # The total does not depend on it; only the split over days is less exact.
            logger.warning("run %d: a chunk is not used for its daily rollups: %s", run.id, error)
            continue
        if _CPU_TIME in columns:
            parts.setdefault(run_node_id, []).append(SeriesBlock(times, columns))
    return [
        node._replace(at_midnight=_interpolate(join(parts[id]), run, node)) if id in parts else node
        for id, node in nodes.items()
    ]


def _interpolate(block: SeriesBlock, run: RunFacts, node: NodeFacts) -> list[int]:
    """The counter at each midnight, interpolated linearly between samples."""
    start, end = run.interval()
    values = block.columns[_CPU_TIME]
    inside = present(values) & (block.times > start) & (block.times < end)
    # The counter is zero at the start and has its stored value at the end.
    times = np.concatenate(([start], block.times[inside], [end])) - start
    points = np.concatenate(([0], values[inside], [node.counted()])).astype(np.float64)
    counter = np.minimum(np.maximum.accumulate(points), node.counted())
    midnights = np.array(run.midnights(), dtype=np.int64) - start
    return [int(value) for value in np.interp(midnights, times, counter)]


def split_integer(amount: int, weights: Sequence[int]) -> list[int]:
    """Split an amount by weights; the units left by rounding go to the largest remainders.

    Among equal remainders the first is preferred. No share differs from its exact value by one or
    more. If all weights are zero, the first share is the amount.
    """
    total = sum(weights)
    if not amount or not total or len(weights) == 1:
        return [amount, *[0] * (len(weights) - 1)] if weights else []
    shares, remainders = [], []
    for weight in weights:
        share, remainder = divmod(amount * weight, total)
        shares.append(share)
        remainders.append(remainder)
    left = amount - sum(shares)
    if left:
        order = sorted(range(len(weights)), key=remainders.__getitem__, reverse=True)
        for index in order[:left]:
            shares[index] += 1
    return shares


def split_evenly(amounts: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """Split several amounts (of days) by the same weights (of paths), one list per amount.

    Each list adds up to its amount, and the shares of each path add up to its share of the sum of
    all amounts: rounding changes neither the days nor the paths.
    """
    left = split_integer(sum(amounts), weights)
    if len(amounts) == 1:
        return [left]
    result = []
    for amount in amounts:
        # By the remaining amounts: no share exceeds them, and the last amount uses them up.
        shares = split_integer(amount, left)
        left = [remaining - share for remaining, share in zip(left, shares, strict=True)]
        result.append(shares)
    return result
