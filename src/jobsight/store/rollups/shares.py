"""The share of one run in the daily rollups, computed from the run alone.

:func:`contribution` splits the usage of a run over days and software names. No clock is read: an
open run counts up to its last sample, so the same records always give the same figures. Integers
are split into integers with exactly the same sum. :func:`with_day_boundaries` reads the CPU
counter at midnight from the time series.

Users and nodes choose how many paths and days a run has, so both are bounded: the largest paths by
CPU time are kept, and the others are one row of :data:`OTHER`. The sums stay exact.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from jobsight.model import SECOND
from jobsight.store.database import Transaction
from jobsight.store.series import codec
from jobsight.store.series.blocks import SeriesBlock, present
from jobsight.store.series.codec import ChunkError
from jobsight.store.sql.load import load_statements

logger = logging.getLogger(__name__)

DAY = 86400 * SECOND
#: No rule matches the path.
UNDETERMINED = 0
#: CPU time that no executable accounts for.
NOT_ATTRIBUTED = -1
#: The software of the paths of a run beyond its largest.
OTHER = -2

#: Paths of a run that are kept, and the product of paths and days.
MAX_PATHS: Final = 2000
MAX_SHARES: Final = 120_000
#: The CPU time of a longer run is spread evenly over its days, without its time series.
MAX_DAYS: Final = 60
#: Rows of time series that are read for one run, and bytes of chunks in memory at once.
MAX_SERIES_ROWS: Final = 5_000_000
_MAX_CHUNK_BYTES: Final = 2**22
#: Bytes of a name in the key of a rollup: all of them fit a row of an index of PostgreSQL.
MAX_OWNER: Final = 255

#: A longer run has a wrong start; only its last ten years count.
_MAX_LENGTH = 3660 * DAY
#: Limits above any real value, so that wrong ones of some runs do not overflow 63 bits in a sum.
#: The sums of honest runs fit: all CPUs of the largest machine (2**24) for a day are a sixth of 63
#: bits of microseconds. A run that makes a sum overflow is refused by the table, and becomes a dead
#: letter.
_MAX_CPUS, _MAX_GPUS, _MAX_MEMORY, _MAX_EXECUTIONS = 2**22, 2**18, 2**55, 2**40
#: Executions of a run over all its paths and nodes: a million such runs fit.
_MAX_EXECUTIONS_OF_RUN: Final = 2**43
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
    gpu_measured_time: int = 0
    gpu_profiled_time: int = 0
    gpu_used_time: int = 0
    #: Millijoules.
    gpu_energy: int = 0
    #: The run is counted in exactly one of its rows with the same name, with the same name and
    #: version, and so on.
    name_runs: int = 0
    version_runs: int = 0
    local_version_runs: int = 0


class DayShare(msgspec.Struct, array_like=True):
    """A run on one day, the sum of its software. Memory is in MiB seconds, GPU time is held GPU
    time, and the figures of GPUs are as in ``runs``."""

    day: int
    runs: int
    executions: int
    cpu_time: int
    core_time: int
    gpu_time: int
    gpu_measured_time: int
    gpu_profiled_time: int
    gpu_used_time: int
    #: Millijoules.
    gpu_energy: int
    memory_time: int
    software: list[SoftwareShare] = msgspec.field(default_factory=list)


class Contribution(msgspec.Struct, array_like=True):
    """The contribution of one run to the rollups, by day."""

    cluster: str
    user: str
    account: str
    partition: str
    days: list[DayShare]

    def owner(self) -> tuple[str, str, str, str]:
        """The key of its rollups, without the day."""
        return self.cluster, self.user, self.account, self.partition

    def with_days(self, days: Iterable[DayShare]) -> Contribution:
        """A contribution of the same owner."""
        return Contribution(*self.owner(), list(days))

    def software(self) -> dict[int, SoftwareShare]:
        """The software of the run, summed over all days."""
        sums: dict[int, SoftwareShare] = {}
        for day in self.days:
            for share in day.software:
                _add(sums.setdefault(share.software_id, SoftwareShare(share.software_id)), share)
        return sums


#: The ordinal of the day 0.
EPOCH: Final = date(1970, 1, 1).toordinal()


def month_of(day: int) -> int:
    """The month of a day since 1970, counted from January 1970."""
    when = date.fromordinal(EPOCH + day)
    return (when.year - 1970) * 12 + when.month - 1


def first_day(month: int) -> int:
    """The first day of a month, as :func:`month_of` counts them."""
    year, index = divmod(month, 12)
    return date(1970 + year, index + 1, 1).toordinal() - EPOCH


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
    #: Counts the changes of the run.
    changes: int = 0
    gpu_held_time: int | None = None
    gpu_measured_time: int | None = None
    gpu_profiled_time: int | None = None
    gpu_used_time: int | None = None
    #: Microjoules.
    gpu_energy: int | None = None

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
    #: GPU nanoseconds.
    gpu_time: int = 0


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


class PathUse(NamedTuple):
    """The usage of one path in a run, over all nodes; without a digest, a remainder."""

    digest: bytes
    software_id: int
    #: CPU nanoseconds.
    cpu_time: int
    executions: int
    #: GPU nanoseconds.
    gpu_time: int = 0


class PathUses(NamedTuple):
    """The usage of all paths of a run, and the CPU time that none of them accounts for."""

    paths: Sequence[PathUse]
    unaccounted: int


class PathTotal(NamedTuple):
    """The share of one path in a run, in microseconds."""

    digest: bytes
    cpu_time: int
    core_time: int
    gpu_time: int


def contribution(
    run: RunFacts,
    nodes: Sequence[NodeFacts],
    names: Mapping[int, RowName],
    uses: PathUses | None = None,
) -> Contribution | None:
    """The contribution of a run; None for a job that has not started. ``names`` has the names of
    the rows of software by id. ``uses`` are those of the nodes, if they were summed before."""
    if run.provisional and not nodes:
        return None
    usage = _usage_by_day(run, nodes)
    paths = _bounded(uses or _uses_by_path(nodes), len(usage))
    for day, shares in zip(usage, _shares_by_day(run, usage, paths), strict=True):
        software: dict[int, SoftwareShare] = {}
        figures = [*shares.figures.items()]
        for index, path in enumerate(paths):
            share = software.get(path.software_id)
            if share is None:
                # Like the run itself, counted on the day of the start.
                share = SoftwareShare(path.software_id, int(day is usage[0]))
                software[path.software_id] = share
            share.executions += shares.executions[index]
            for name, amounts in figures:
                if amounts[index]:
                    setattr(share, name, getattr(share, name) + amounts[index])
        if day is usage[0]:
            _count_once([*software.values()], names)
        day.software = [software[id] for id in sorted(software) if _is_used(software[id])]
        day.executions = sum(share.executions for share in day.software)
    return Contribution(
        _owner(run.cluster),
        _owner(run.user),
        _owner(run.account),
        _owner(run.partition),
        [day for day in usage if _counts(day)],
    )


def shares_of_run(run: RunFacts, nodes: Sequence[NodeFacts]) -> list[PathTotal]:
    """The shares of the paths of a run, which a new name would move."""
    if run.provisional and not nodes:
        return []
    usage = _usage_by_day(run, nodes)
    paths = _bounded(_uses_by_path(nodes), len(usage))
    totals = [
        split_integer(sum(getattr(day, name) for day in usage), _weights(paths, name))
        for name in ("cpu_time", "core_time", "gpu_time")
    ]
    return [PathTotal(path.digest, *figures) for path, *figures in zip(paths, *totals, strict=True)]


def largest_paths(uses: Iterable[PathUse], count: int) -> list[PathUse]:
    """The paths with the most CPU and GPU time; of equal ones those that do not depend on row
    ids."""
    return heapq.nlargest(
        count, uses, key=lambda path: (path.cpu_time + path.gpu_time, path.executions, path.digest)
    )


def _bounded(uses: PathUses, days: int) -> list[PathUse]:
    """The paths between which a run is split, in the order of their digests: the largest, one for
    all others, and one for the CPU time that no path accounts for."""
    paths = [path for path in uses.paths if path.digest]
    rest = [path for path in uses.paths if not path.digest]
    limit = max(1, min(MAX_PATHS, MAX_SHARES // days))
    if len(paths) > limit:
        kept = largest_paths(paths, limit)
        keys = {(path.digest, path.software_id) for path in kept}
        rest += [path for path in paths if (path.digest, path.software_id) not in keys]
        paths = kept
    paths.sort()
    if rest:
        cpu_time = sum(path.cpu_time for path in rest)
        executions = sum(path.executions for path in rest)
        gpu_time = sum(path.gpu_time for path in rest)
        paths.insert(0, PathUse(b"", OTHER, cpu_time, executions, gpu_time))
    counts = [path.executions for path in paths]
    if sum(counts) > _MAX_EXECUTIONS_OF_RUN:
        limited = split_integer(_MAX_EXECUTIONS_OF_RUN, counts)
        paths = [
            path._replace(executions=count) for path, count in zip(paths, limited, strict=True)
        ]
    if uses.unaccounted or not any(path.cpu_time for path in paths):
        paths.insert(0, PathUse(b"", NOT_ATTRIBUTED, uses.unaccounted, 0))
    return paths


#: The figures that are divided between the paths of a run: by CPU time, and by GPU time.
_GPU_FIGURES: Final = (
    *("gpu_time", "gpu_measured_time", "gpu_profiled_time", "gpu_used_time", "gpu_energy"),
)
_DIVIDED: Final = ("cpu_time", "core_time", *_GPU_FIGURES)


class _DayShares(NamedTuple):
    """The shares of the paths on one day: executions, and the figures that are not zero."""

    executions: Sequence[int]
    figures: Mapping[str, Sequence[int]]


def _weights(paths: Sequence[PathUse], figure: str) -> list[int]:
    """By what a figure is divided: those of GPUs by GPU time, if there is any."""
    if figure in _GPU_FIGURES and any(path.gpu_time for path in paths):
        return [path.gpu_time for path in paths]
    return [path.cpu_time for path in paths]


def _shares_by_day(
    run: RunFacts, usage: Sequence[DayShare], paths: Sequence[PathUse]
) -> Iterator[_DayShares]:
    """Split a run over its paths, not over their names: a new name then moves complete shares, to
    the microsecond."""
    amounts = {name: [getattr(day, name) for day in usage] for name in _DIVIDED}
    amounts = {name: figures for name, figures in amounts.items() if any(figures)}
    if len(usage) > MAX_DAYS:
        yield from _spread_evenly(run, usage, paths, amounts)
        return
    # The days of executions are not known: they are split like the CPU time.
    cpu = [day.cpu_time for day in usage]
    executions = [split_integer(path.executions, cpu) for path in paths]
    tables = [split_evenly(figures, _weights(paths, name)) for name, figures in amounts.items()]
    for index in range(len(usage)):
        shares = {name: next(table) for name, table in zip(amounts, tables, strict=True)}
        yield _DayShares([counts[index] for counts in executions], shares)


def _spread_evenly(
    run: RunFacts,
    usage: Sequence[DayShare],
    paths: Sequence[PathUse],
    amounts: Mapping[str, Sequence[int]],
) -> Iterator[_DayShares]:
    """Spread the total of each path over the days in proportion to time, a day at a time.

    The figures of a day become the sums of its paths. Both add up to the totals of the run.
    """
    totals = {
        name: split_integer(sum(figures), _weights(paths, name))
        for name, figures in amounts.items()
    }
    totals["executions"] = [path.executions for path in paths]
    start, end = run.interval()
    before = {name: [0] * len(paths) for name in totals}
    for day, bound in zip(usage, [*run.midnights(), end], strict=True):
        reached = {
            name: [total * (bound - start) // (end - start) for total in row]
            for name, row in totals.items()
        }
        shares = {
            name: [now - then for now, then in zip(reached[name], before[name], strict=True)]
            for name in totals
        }
        executions = shares.pop("executions")
        for name, row in shares.items():
            setattr(day, name, sum(row))
        yield _DayShares(executions, shares)
        before = reached


def _usage_by_day(run: RunFacts, nodes: Sequence[NodeFacts]) -> list[DayShare]:
    start, end = run.interval()
    bounds = [start, *run.midnights(), end]
    total = min(sum(node.counted() for node in nodes), _MAX_CPUS * max(end - start, DAY))
    midnights = [min(value, total) for value in _cpu_at_midnights(run, nodes, total)]
    counted = [0, *midnights, total]
    cpus = _within(run.cpus, _MAX_CPUS)
    memory = _within(run.memory, _MAX_MEMORY)
    # Rounded at the bounds and not by day, so that the days add up to the total.
    cpu = _differences([value // 1000 for value in counted])
    core = _differences([cpus * (bound - start) // 1000 for bound in bounds])
    held = [memory * (bound - start) // (_MEBIBYTE * SECOND) for bound in bounds]
    figures = [cpu, core, *_gpus_by_day(run, bounds), _differences(held)]
    return [
        DayShare(start // DAY + index, int(index == 0), 0, *figures_of_day)
        for index, figures_of_day in enumerate(zip(*figures, strict=True))
    ]


def _gpus_by_day(run: RunFacts, bounds: Sequence[int]) -> Iterator[list[int]]:
    """The figures of GPUs of each day, in proportion to time: what was allocated, or what the nodes
    reported if the scheduler says nothing, and what was measured."""
    start, end = bounds[0], bounds[-1]
    most = _MAX_GPUS * max(end - start, DAY)
    held = _within(run.gpu_held_time, most)
    if run.gpus is not None:
        held = _within(run.gpus, _MAX_GPUS) * (end - start)
    measured = (run.gpu_measured_time, run.gpu_profiled_time, run.gpu_used_time)
    totals = [held, *(_within(time, most) for time in measured)]
    # No GPU needs ten kilowatts.
    totals.append(_within(run.gpu_energy, most // SECOND * 10**10))
    for total in totals:
        if not total:
            yield [0] * (len(bounds) - 1)
        elif end == start:
            yield [total // 1000]
        else:
            yield _differences(
                [total * (bound - start) // (end - start) // 1000 for bound in bounds]
            )


def _cpu_at_midnights(run: RunFacts, nodes: Sequence[NodeFacts], total: int) -> list[int]:
    """CPU nanoseconds of all nodes up to each midnight; in proportion to time without a series."""
    start, end = run.interval()
    midnights = run.midnights()
    if len(midnights) >= MAX_DAYS:
        return [total * (midnight - start) // (end - start) for midnight in midnights]
    result = []
    for index, midnight in enumerate(midnights):
        result.append(0)
        for node in nodes:
            counted = node.counted()
            if node.at_midnight is not None:
                result[-1] += min(max(node.at_midnight[index], 0), counted)
            else:
                result[-1] += counted * (midnight - start) // (end - start)
    return result


def _uses_by_path(nodes: Sequence[NodeFacts]) -> PathUses:
    """CPU time, executions and GPU time by path and name, and the CPU time that no path accounts
    for."""
    used: dict[tuple[bytes, int], tuple[int, int, int]] = {}
    unaccounted = 0
    for node in nodes:
        counted = node.counted()
        figures = [max(use.cpu_time, 0) for use in node.uses]
        if sum(figures) > counted:
            # The sum of the processes may exceed the counter by rounding; the counter is exact.
            figures = split_integer(counted, figures)
        unaccounted += counted - sum(figures)
        for use, cpu_time in zip(node.uses, figures, strict=True):
            before = used.get((use.digest, use.software_id), (0, 0, 0))
            executions = before[1] + _within(use.executions, _MAX_EXECUTIONS)
            gpu_time = before[2] + max(use.gpu_time, 0)
            used[use.digest, use.software_id] = (before[0] + cpu_time, executions, gpu_time)
    return PathUses([PathUse(*key, *figures) for key, figures in used.items()], unaccounted)


def _differences(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(values)]


def _within(value: int | None, maximum: int) -> int:
    return min(max(value or 0, 0), maximum)


def _counts(day: DayShare) -> bool:
    return any(msgspec.structs.astuple(day)[1:])


def _is_used(share: SoftwareShare) -> bool:
    return any(msgspec.structs.astuple(share)[1:])


def _owner(name: str | None) -> str:
    """A name as part of the key of a rollup."""
    if name is None or len(name) <= MAX_OWNER // 4:
        return name or ""
    return name.encode()[:MAX_OWNER].decode(errors="ignore")


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


_SHARE_FIGURES: Final = SoftwareShare.__struct_fields__[1:]


def _add(total: SoftwareShare, share: SoftwareShare) -> None:
    for name in _SHARE_FIGURES:
        setattr(total, name, getattr(total, name) + getattr(share, name))


def with_day_boundaries(
    transaction: Transaction, run: RunFacts, nodes: dict[int, NodeFacts]
) -> list[NodeFacts]:
    """The nodes of a run, with their counters at midnight if there are time series of them.

    A run of more than MAX_DAYS days has none, and of a run with too many samples those nodes that
    were read first. The others are split in proportion to time.
    """
    midnights = run.midnights()
    if not nodes or not 0 < len(midnights) < MAX_DAYS:
        return list(nodes.values())
    boundaries: dict[int, _DayBoundaries] = {}
    for page in _pages_of_chunks(transaction, run.id):
        for run_node_id, data in transaction.look_up(_SQL["chunks_by_id"], page):
            try:
                times, columns = codec.decode(bytes(data), frozenset([_CPU_TIME]))
            except ChunkError as error:
                # The total does not depend on it; only the split over days is less exact.
                logger.warning("run %d: a chunk is not used for its rollups: %s", run.id, error)
                continue
            if _CPU_TIME in columns:
                node = boundaries.setdefault(run_node_id, _DayBoundaries(run))
                node.add(SeriesBlock(times, columns))
    return [
        node._replace(at_midnight=boundaries[id].counter(node.counted()))
        if id in boundaries
        else node
        for id, node in nodes.items()
    ]


def _pages_of_chunks(transaction: Transaction, run_id: int) -> Iterator[list[tuple[int]]]:
    """The ids of the chunks of a run in pages of bounded bytes, node by node, up to a number of
    rows; a node whose chunks would exceed it is left out."""
    by_node: dict[int, list[tuple[int, int, int]]] = {}
    rows = transaction.execute(_SQL["sizes_of_chunks"], {"id": run_id}).fetchall()
    for run_node_id, *chunk in rows:
        by_node.setdefault(run_node_id, []).append(tuple(chunk))
    left = MAX_SERIES_ROWS
    page: list[tuple[int]] = []
    size = 0
    for chunks in by_node.values():
        left -= sum(count for _, count, _ in chunks)
        if left < 0:
            break
        for id, _, length in chunks:
            if page and size + length > _MAX_CHUNK_BYTES:
                yield page
                page, size = [], 0
            page.append((id,))
            size += length
    if page:
        yield page


class _DayBoundaries:
    """The samples of one node next to each midnight of a run, from its chunks in any order."""

    def __init__(self, run: RunFacts) -> None:
        self._start, self._end = run.interval()
        self._midnights = np.array(run.midnights(), dtype=np.int64)
        count = len(self._midnights)
        # The counter is zero at the start and only grows: the highest value up to each midnight,
        # the last sample before it, and the first one after it.
        self._highest = np.zeros(count)
        self._before = np.full(count, self._start)
        self._after = np.full(count, self._end)
        self._next: Any = np.full(count, np.inf)

    def add(self, block: SeriesBlock) -> None:
        values = block.columns[_CPU_TIME]
        inside = present(values) & (block.times > self._start) & (block.times < self._end)
        times, points = block.times[inside], values[inside].astype(np.float64)
        if not len(times):
            return
        order = np.argsort(times, kind="stable")
        times, points = times[order], points[order]
        index = np.searchsorted(times, self._midnights, side="right")
        found = index > 0
        last = index[found] - 1
        self._before[found] = np.maximum(self._before[found], times[last])
        highest = np.maximum.accumulate(points)[last]
        self._highest[found] = np.maximum(self._highest[found], highest)
        later = index < len(times)
        first = index[later]
        nearer = times[first] < self._after[later]
        positions = np.flatnonzero(later)[nearer]
        self._after[positions] = times[first][nearer]
        self._next[positions] = points[first][nearer]

    def counter(self, counted: int) -> list[int]:
        """The counter at each midnight, interpolated linearly between samples."""
        low = np.minimum(self._highest, counted)
        high = np.minimum(np.maximum(self._next, low), counted)
        share = (self._midnights - self._before) / (self._after - self._before)
        return [int(value) for value in low + (high - low) * share]


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


def split_evenly(amounts: Sequence[int], weights: Sequence[int]) -> Iterator[list[int]]:
    """Split several amounts (of days) by the same weights (of paths); yields a list per amount.

    Each list adds up to its amount, and the shares of each path add up to its share of the sum of
    all amounts: rounding changes neither the days nor the paths.
    """
    left = split_integer(sum(amounts), weights)
    if len(amounts) == 1:
        yield left
        return
    for amount in amounts:
        # By the remaining amounts: no share exceeds them, and the last amount uses them up.
        shares = split_integer(amount, left)
        left = [remaining - share for remaining, share in zip(left, shares, strict=True)]
        yield shares
