"""Store the parts of a batch: :class:`Parts`, and the rows that it changes.

The rows of all nodes are read with one query, changed in memory and written once, so that a batch
takes few statements however many parts it has.

The figures of an executable are cumulative within an agent epoch. A part may carry some of the rows
only: a row that it does not carry keeps its last figures, and one that is as it is stored is not
written again.

A node chooses how much it sends of a run over time, so what is stored of each is bounded
(:mod:`jobsight.store.write.bounds`). What a part adds beyond is left out alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import astuple

from jobsight.model import Coverage, JobPart, JobTotals, Series, Sighting, StepUse
from jobsight.store.database import Transaction
from jobsight.store.schema import statements
from jobsight.store.schema.statements import (
    EXECUTABLE_KEY,
    HIGHEST,
    MOVING_SUMS,
    NODE_FIGURES,
    SIGHTING_KEY,
    RunSums,
)
from jobsight.store.write.bounds import (
    MAX_ROWS,
    MAX_SERIES_VALUES,
    MAX_SIGHTINGS,
    MAX_SIGHTINGS_OF_NODE,
)
from jobsight.store.write.gpus import GpuSums, NodeGpus
from jobsight.store.write.runs import RunWriter, total

_encode = msgspec.msgpack.Encoder().encode
_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode

#: These only grow within one cgroup, while a restarted agent samples them from zero.
_PEAKS = frozenset(("memory_peak", "memory_used_peak", "swap_peak"))

#: Chunks of a node that are joined into one. Each value is then rewritten twice, and the time
#: series of a running job are read from few chunks.
MAX_OPEN_CHUNKS = 64

#: A part with at least this many executables is compared with what is stored before it is written
#: to PostgreSQL, which locks each row of an upsert and writes the lock, changed or not.
_COMPARED_ROWS = 16
_KEY_LENGTH = len(EXECUTABLE_KEY)

#: A row of ``executables`` or ``steps``.
_Row: TypeAlias = tuple[Any, ...]

#: The values of SIGHTING_KEY.
_Key: TypeAlias = tuple[int, str, str, int]
_key: Callable[[Sighting], _Key] = attrgetter(*SIGHTING_KEY)

#: The columns of a row of FIND_RUN_NODES: first the key, then those of _Node, then the sums.
_NODE_COLUMNS = ("id", "run_id", *NODE_FIGURES)
_NODE_START = len(SIGHTING_KEY)
_SUMS_START = _NODE_START + len(_NODE_COLUMNS)


class PackedSeries(NamedTuple):
    """The time series of a part as a row of ``chunks``."""

    first: int
    last: int
    rows: int
    level: int
    data: bytes


def pack_series(series: Series) -> PackedSeries:
    """Encode a series as a chunk; it must have rows."""
    # Imported with the first time series: most small batches should not load numpy.
    from jobsight.store.series.blocks import ARRIVED
    from jobsight.store.series.codec import encode_series

    first, last = int(min(series.times)), int(max(series.times))
    return PackedSeries(first, last, len(series), ARRIVED, encode_series(series))


class _Node(msgspec.Struct):
    """A row of ``run_nodes``; the first fields are the columns _NODE_COLUMNS, in their order."""

    id: int
    run_id: int
    epoch: str
    written: int
    totals: bytes | None = None
    cpu_time: int | None = None
    memory_used_peak: int | None = None
    memory_peak: int | None = None
    first_sample: int | None = None
    last_sample: int | None = None
    final: bool = False
    open_chunks: int = 0
    stored_values: int = 0
    stored_rows: int = 0
    #: None leaves the stored one.
    coverage: bytes | None = None
    compact: bool = False
    #: All chunks are joined, not only the open ones.
    ends: bool = False
    #: The sums of the run do not include it yet.
    new: bool = False

    def figures(self) -> tuple[int | None, ...]:
        """The figures that are summed, in the order of RunSums."""
        figures = self.cpu_time, self.memory_used_peak, self.memory_peak
        return (*figures, None, None, None) if self.new else (*figures, int(not self.final), 1, 1)

    def merge(
        self, part: JobPart, series: PackedSeries | None, coverage: bytes, written: int
    ) -> None:
        """Merge a part of a batch that was written at this time."""
        self.new = False
        if self.written <= written:
            self.epoch, self.written = part.epoch, written
            if part.coverage:
                self.coverage = coverage
        if part.totals is not None:
            stored = None if self.totals is None else _decode_totals(self.totals)
            merged = merge_totals(stored, part.totals)
            self.totals = _encode(merged)
            self.cpu_time = merged.cpu_time
            self.memory_used_peak = merged.memory_used_peak
            self.memory_peak = merged.memory_peak
        if series is not None:
            self.open_chunks += 1
            self.first_sample = _min(self.first_sample, series.first)
            self.last_sample = _max(self.last_sample, series.last)
        if part.final and not self.final:
            self.final = self.ends = self.compact = True
        # A part that arrives after the end is late, and waits for others as before the end: each
        # would have all of the series written again.
        if self.open_chunks >= MAX_OPEN_CHUNKS:
            self.compact = True


_figures_of_node = attrgetter(*NODE_FIGURES, "coverage")


_MOVING: Final = frozenset(RunSums._fields.index(name) for name in MOVING_SUMS)
_moving_sums = itemgetter(*map(RunSums._fields.index, MOVING_SUMS))
_FIRST_SEEN, _LAST_SEEN, _SIGHTINGS = map(
    RunSums._fields.index, ("first_seen", "last_seen", "sightings")
)
_GPU_SUMS: Final = tuple(map(RunSums._fields.index, GpuSums._fields))


class _Run:
    """The sums of a run, updated by differences however many nodes it has."""

    __slots__ = ("changed", "id", "needs_recount", "only_moving", "sums")

    def __init__(self, id: int, sums: Sequence[int | None]) -> None:
        self.id = id
        #: In the order of RunSums.
        self.sums = list(sums)
        self.changed = False
        #: No other sums than MOVING_SUMS have changed.
        self.only_moving = True
        #: The run has several sightings on one node, which do not simply add up: the sums are
        #: computed again from all nodes.
        self.needs_recount = False

    def merge(
        self,
        before: tuple[int | None, ...],
        after: tuple[int | None, ...],
        series: PackedSeries | None,
    ) -> None:
        """Merge what a part changed in the figures of its node."""
        sums = self.sums
        if before != after:
            for index, (old, new) in enumerate(zip(before, after, strict=True)):
                if old != new:
                    self._set(index, _replace_in_sum(sums[index], old, new))
            self.changed = True
        if series is not None:
            self._set(_FIRST_SEEN, _min(sums[_FIRST_SEEN], series.first))
            self._set(_LAST_SEEN, _max(sums[_LAST_SEEN], series.last))
            self.changed = True

    def merge_gpus(self, before: GpuSums, after: GpuSums) -> None:
        """Merge what a part changed in the GPUs of its node."""
        for index, old, new in zip(_GPU_SUMS, before, after, strict=True):
            self._set(index, _replace_in_sum(self.sums[index], old, new))
        self.changed = True

    def _set(self, index: int, value: int | None) -> None:
        if self.sums[index] != value:
            self.sums[index] = value
            self.only_moving &= index in _MOVING


class PartStamp(NamedTuple):
    """The origin of parts that are stored together."""

    cluster: str
    #: By the clock of the writer: of two versions of a figure, the later one is kept.
    written: int
    received: int
    #: Of the batch within its spool.
    sequence: int = 0


class Parts:
    """Stores parts inside a transaction."""

    def __init__(self, transaction: Transaction, run_writer: RunWriter, stamp: PartStamp) -> None:
        self._transaction = transaction
        self._run_writer = run_writer
        self._stamp = stamp
        self._nodes: dict[_Key, _Node] = {}
        self._runs: dict[int, _Run] = {}
        #: Sightings that the store has not seen before, by the key of their node.
        self._new: dict[_Key, Sighting] = {}
        #: Run and node of those, and how many there are.
        self._new_nodes: Counter[tuple[int, str]] = Counter()
        #: Rows that wait to be written.
        self._executables: list[_Row] = []
        self._steps: list[_Row] = []
        #: A sentence for each kind of data of a part that is beyond a bound, and how many rows and
        #: values that are in all.
        self.sentences: list[str] = []
        self.left_out = 0
        #: Those of the nodes whose parts have GPUs, by the id of the node.
        self._gpus: dict[int, NodeGpus] = {}
        #: The coverage that was encoded last.
        self._packed_coverage: tuple[dict[str, Coverage] | None, bytes] = (None, b"")

    def store(
        self,
        parts: Sequence[JobPart],
        packed: Sequence[PackedSeries | None],
        paths: Mapping[bytes, int],
    ) -> None:
        """Write the parts to the tables."""
        chunks: list[tuple[Any, ...]] = []
        self._find_nodes(parts)
        self._find_gpus(parts)
        for part, series in zip(parts, packed, strict=True):
            node = self._node(part)
            if node is None:
                continue
            if series is not None and not self._admits_series(node, part):
                series = None
            before = node.figures()
            node.merge(part, series, self._coverage(part), self._stamp.written)
            run = self._runs[node.run_id]
            run.merge(before, node.figures(), series)
            # Executables are part of the daily rollups, and everything is part of the archive.
            run.changed |= bool(part.executables or part.steps or part.totals or part.coverage)
            if series is not None:
                chunks.append((node.id, *series, None))
            if part.executables:
                self._add_executables(node, part, paths)
            if part.steps:
                rows = [_step_row(node.id, use, part.epoch) for use in part.steps]
                self._steps += self._limit_rows(node, part, rows, _STEPS)
            if part.gpus:
                self._merge_gpus(node, run, part)
        written = self._run_writer.flush({id: run.sums for id, run in self._runs.items()})
        self._write_nodes()
        self._transaction.execute_rows(statements.INSERT_CHUNK, chunks)
        self._transaction.execute_rows(statements.UPSERT_EXECUTABLE, self._executables)
        self._transaction.execute_rows(statements.UPSERT_STEP, self._steps)
        gpus = [(id, *row) for id, own in self._gpus.items() for row in own.changed_rows()]
        self._transaction.execute_rows(statements.UPSERT_GPU, gpus)
        self._finish(written)

    def _write_nodes(self) -> None:
        new, known = [], []
        for key, node in self._nodes.items():
            compact = node.compact and node.first_sample is not None
            if node.compact:
                node.compact, node.open_chunks = compact, 0
            if key in self._new:
                sighting = astuple(self._new[key])
                new.append((*sighting, node.id, node.run_id, *_figures_of_node(node)))
            else:
                known.append((*_figures_of_node(node), node.id))
        self._transaction.execute_rows(statements.INSERT_RUN_NODE, new)
        self._transaction.execute_rows(statements.UPDATE_RUN_NODE, known)

    def _finish(self, written: Set[int]) -> None:
        for node in self._nodes.values():
            if node.compact:
                self._join(node)
        changed = [run for run in self._runs.values() if run.changed]
        # A new run was written with its sums.
        known = [run for run in changed if run.id not in written]
        received = self._stamp.received
        self._transaction.execute_rows(
            statements.UPDATE_MOVING_SUMS,
            [(received, *_moving_sums(run.sums), run.id) for run in known if run.only_moving],
        )
        self._transaction.execute_rows(
            statements.UPDATE_SUMS,
            [(received, *run.sums, run.id) for run in known if not run.only_moving],
        )
        for run in changed:
            if run.needs_recount:
                self._run_writer.sum_up(run.id)

    def _join(self, node: _Node) -> None:
        # Imported late: only time series need numpy.
        from jobsight.store.series.blocks import join_chunks

        join_chunks(self._transaction, node.id, complete=node.ends)

    def _find_nodes(self, parts: Sequence[JobPart]) -> None:
        cluster = self._stamp.cluster
        keys = dict.fromkeys(
            _key(part.sighting)
            for part in parts
            if self._run_writer.knows(cluster, part.sighting.job_id)
        )
        rows = self._transaction.look_up(
            statements.FIND_RUN_NODES, [(cluster, *key) for key in keys]
        )
        for row in rows:
            columns = row[_NODE_START:_SUMS_START]
            node = _Node(*columns)
            self._nodes[tuple(row[:_NODE_START])] = node
            self._add_run(node.run_id, row[_SUMS_START:-1], row[-1])

    def _find_gpus(self, parts: Sequence[JobPart]) -> None:
        keys = {_key(part.sighting) for part in parts if part.gpus} & self._nodes.keys()
        ids = [self._nodes[key].id for key in keys]
        self._gpus = {id: NodeGpus() for id in ids}
        rows = self._transaction.look_up(statements.FIND_GPUS, [(id,) for id in ids])
        for id, epoch, sequence, *columns in rows:
            self._gpus[id].add_stored(epoch, sequence, columns)

    def _merge_gpus(self, node: _Node, run: _Run, part: JobPart) -> None:
        gpus = self._gpus.setdefault(node.id, NodeGpus())
        before = gpus.sums()
        gpus.merge(part.gpus, _epoch_number(part.epoch), self._stamp.sequence)
        run.merge_gpus(before, gpus.sums())

    def _add_run(self, run_id: int, sums: Sequence[int | None], has_other_sighting: object) -> None:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(run_id, sums)
        run.needs_recount |= bool(has_other_sighting)

    def _node(self, part: JobPart) -> _Node | None:
        """The node of a part; None for a new sighting beyond the bounds."""
        key = _key(part.sighting)
        if key not in self._nodes:
            run_id, new_run = self._run_writer.match(part.sighting)
            node = part.sighting.node
            sums: Sequence[int | None] = RunSums()
            has_other_sighting = False
            if not new_run:
                run = {"id": run_id, "node": node}
                row = self._transaction.execute(statements.SUMS_OF_RUN, run).fetchone()
                *sums, has_other_sighting = row
            has_other_sighting = has_other_sighting or (run_id, node) in self._new_nodes
            self._add_run(run_id, sums, has_other_sighting)
            if not self._admits_sighting(run_id, part.sighting, has_other_sighting):
                return None
            self._new_nodes[run_id, node] += 1
            self._new[key] = part.sighting
            self._nodes[key] = _Node(
                id=self._transaction.new_id("run_nodes"),
                run_id=run_id,
                epoch=part.epoch,
                written=self._stamp.written,
                new=True,
            )
        return self._nodes[key]

    def _admits_sighting(self, run_id: int, sighting: Sighting, has_others: object) -> bool:
        known = self._runs[run_id].sums[_SIGHTINGS] or 0
        of_node = 0
        if has_others:
            place = {"id": run_id, "node": sighting.node}
            counted = self._transaction.execute(statements.COUNT_SIGHTINGS_OF_NODE, place)
            of_node = counted.fetchone()[0] + self._new_nodes[run_id, sighting.node]
        if known < MAX_SIGHTINGS and of_node < MAX_SIGHTINGS_OF_NODE:
            return True
        self._leave_out(
            sighting,
            1,
            f"is a new sighting beyond {MAX_SIGHTINGS:,} of its run or "
            f"{MAX_SIGHTINGS_OF_NODE:,} of its node",
        )
        return False

    def _admits_series(self, node: _Node, part: JobPart) -> bool:
        assert part.series is not None
        values = len(part.series) * (1 + len(part.series.columns))
        if node.stored_values + values > MAX_SERIES_VALUES:
            self._leave_out(
                part.sighting, values, f"has time series of more than {MAX_SERIES_VALUES:,} values"
            )
            return False
        node.stored_values += values
        return True

    def _leave_out(self, sighting: Sighting, count: int, reason: str) -> None:
        self.left_out += count
        self.sentences.append(f"job {sighting.job_id} on {sighting.node} {reason}")

    def _coverage(self, part: JobPart) -> bytes:
        # Thousands of imported records share one.
        if part.coverage is not self._packed_coverage[0]:
            self._packed_coverage = part.coverage, _encode(part.coverage)
        return self._packed_coverage[1]

    def _add_executables(self, node: _Node, part: JobPart, paths: Mapping[bytes, int]) -> None:
        epoch, sequence = _epoch_number(part.epoch), self._stamp.sequence
        rows = []
        for use in part.executables:
            values = astuple(use)
            rows.append((node.id, paths[values[0]], values[1], epoch, sequence, *values[2:]))
        if self._transaction.postgresql and len(rows) >= _COMPARED_ROWS and not node.new:
            rows = self._changed(rows)
        self._executables += self._limit_rows(node, part, rows, _EXECUTABLES)

    def _changed(self, rows: Sequence[_Row]) -> list[_Row]:
        """The rows whose figures are not the stored ones."""
        keys = [row[:_KEY_LENGTH] for row in rows]
        found = self._transaction.look_up(statements.FIND_EXECUTABLES, keys)
        # After the key comes the sequence, then the figures.
        stored = {tuple(row[:_KEY_LENGTH]): tuple(row[_KEY_LENGTH + 1 :]) for row in found}
        return [
            row
            for key, row in zip(keys, rows, strict=True)
            if stored.get(key) != row[_KEY_LENGTH + 1 :]
        ]

    def _limit_rows(
        self, node: _Node, part: JobPart, rows: list[_Row], table: _Table
    ) -> list[_Row]:
        """The rows up to the bound of the node. Rows are only counted exactly near the bound:
        before, a row that is written again counts again."""
        node.stored_rows += len(rows)
        if node.stored_rows <= MAX_ROWS:
            return rows
        keys = {table.key(row) for row in rows}
        waiting = {
            (each, each.key(row))
            for each, some in ((_EXECUTABLES, self._executables), (_STEPS, self._steps))
            for row in some
            if row[0] == node.id
        }
        (count,) = self._transaction.execute(
            statements.COUNT_ROWS_OF_NODE, {"id": node.id}
        ).fetchone()
        # Rows that wait may be stored as well; they then count twice until the next batch.
        count += len(waiting)
        found = self._transaction.look_up(table.find, list(keys))
        known = {table.key(tuple(row)) for row in found}
        known |= {key for each, key in waiting if each is table}
        kept: dict[_Row, _Row] = {}
        for row in rows:
            key = table.key(row)
            if key in known or key in kept or count < MAX_ROWS:
                count += key not in known and key not in kept
                kept[key] = row
        node.stored_rows = count
        if len(kept) < len(keys):
            self._leave_out(
                part.sighting,
                len(keys) - len(kept),
                f"has more than {MAX_ROWS:,} executables and steps",
            )
        return list(kept.values())


class _Table(NamedTuple):
    """How to find stored rows of a table by their keys."""

    name: str
    key_length: int
    find: str

    def key(self, row: _Row) -> _Row:
        return row[: self.key_length]


_EXECUTABLES = _Table("executables", _KEY_LENGTH, statements.FIND_EXECUTABLES)
_STEPS = _Table("steps", 2, statements.FIND_STEPS)


def _step_row(node_id: int, use: StepUse, epoch: str) -> _Row:
    gpu_epoch = None if use.gpu_time is None else _epoch_number(epoch)
    return (node_id, *astuple(use), gpu_epoch, use.gpu_time)


@lru_cache(maxsize=4096)
def _epoch_number(epoch: str) -> int:
    digest = hashlib.blake2b(epoch.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


#: Sources whose counters never fall.
_GROWING = frozenset({"cgroup v1", "cgroup v2"})
#: The figures that never fall, and those of such a source.
_HIGHEST = _PEAKS | {"cpu_time", "cpu_user", "cpu_system"}
_TOTALS = JobTotals.__struct_fields__


def merge_totals(stored: JobTotals | None, arriving: JobTotals) -> JobTotals:
    """The newer totals by their own time, in any order of arrival; None never overwrites.

    The counters of a cgroup only grow: after the clock of a node was ahead, higher ones are newer.
    """
    if stored is None:
        return arriving
    grows = stored.cpu_source == arriving.cpu_source and stored.cpu_source in _GROWING
    highest = _HIGHEST if grows else _PEAKS
    older, newer = (stored, arriving) if stored.time <= arriving.time else (arriving, stored)
    changes = {
        name: old
        for name, old, new in zip(_TOTALS, astuple(older), astuple(newer), strict=True)
        if old is not None and (new is None or (name in highest and old > new))
    }
    if newer.cpu_time is None and older.cpu_time is not None:
        changes["cpu_source"] = older.cpu_source
    return msgspec.structs.replace(newer, **changes) if changes else newer


def _replace_in_sum(sum: int | None, old: int | None, new: int | None) -> int | None:
    """A sum after one of its figures has changed."""
    if old == new:
        return sum
    if sum is None and old is None:
        return new
    if sum is None or old is None or new is None:
        return total([sum, new, None if old is None else -old])
    return max(min(sum + new - old, HIGHEST), -HIGHEST)


def _min(known: int | None, value: int) -> int:
    return value if known is None or value < known else known


def _max(known: int | None, value: int) -> int:
    return value if known is None or value > known else known
