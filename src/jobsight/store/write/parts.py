"""Store the parts of a batch: :class:`Parts`, and the rows that it changes.

The rows of all nodes are read with one query, changed in memory and written once, so that a batch
takes few statements however many parts it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from jobsight.model import Coverage, JobPart, JobTotals, Sighting
from jobsight.store.database import Transaction
from jobsight.store.schema import statements
from jobsight.store.schema.statements import NODE_FIGURES, SIGHTING_KEY, RunSums
from jobsight.store.write.runs import RunWriter, total

_encode = msgspec.msgpack.Encoder().encode
_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode

#: These only grow within one cgroup, while a restarted agent samples them from zero.
_PEAKS = frozenset(("memory_peak", "memory_used_peak", "swap_peak"))

#: Chunks of a node that are joined into one. Each value is then rewritten twice, and the time
#: series of a running job are read from few chunks.
MAX_OPEN_CHUNKS = 64

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


class _Node(msgspec.Struct, kw_only=True):
    """A row of ``run_nodes``."""

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
    #: None leaves the stored one.
    coverage: bytes | None = None
    compact: bool = False

    def figures(self) -> tuple[int | None, int | None, int | None]:
        return self.cpu_time, self.memory_used_peak, self.memory_peak

    def merge(
        self, part: JobPart, series: PackedSeries | None, coverage: bytes, written: int
    ) -> None:
        """Merge a part of a batch that was written at this time."""
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
            self.final = self.compact = True
        # A part that arrives after the end is late: all chunks are joined again.
        if self.open_chunks and (self.final or self.open_chunks >= MAX_OPEN_CHUNKS):
            self.compact = True


_figures_of_node = attrgetter(*NODE_FIGURES, "coverage")


class _Run(msgspec.Struct):
    """The sums of a run, updated by differences however many nodes it has."""

    id: int
    sums: RunSums
    changed: bool = False
    #: The run has several sightings on one node, which do not simply add up: the sums are computed
    #: again from all nodes.
    needs_recount: bool = False

    def merge(
        self,
        before: tuple[int | None, ...],
        after: tuple[int | None, ...],
        series: PackedSeries | None,
    ) -> None:
        """Merge what a part changed in the figures of its node."""
        sums = self.sums
        if before != after:
            cpu_time, memory_used_peak, memory_peak = map(_replace_in_sum, sums, before, after)
            sums = sums._replace(
                cpu_time=cpu_time, memory_used_peak=memory_used_peak, memory_peak=memory_peak
            )
        if series is not None:
            sums = sums._replace(
                first_seen=_min(sums.first_seen, series.first),
                last_seen=_max(sums.last_seen, series.last),
            )
        self.changed |= before != after or series is not None
        self.sums = sums


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
        #: Run and node of those.
        self._new_nodes: set[tuple[int, str]] = set()
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
        executables: list[tuple[Any, ...]] = []
        steps: list[tuple[Any, ...]] = []
        self._find_nodes(parts)
        for part, series in zip(parts, packed, strict=True):
            node = self._node(part)
            before = node.figures()
            node.merge(part, series, self._coverage(part), self._stamp.written)
            run = self._runs[node.run_id]
            run.merge(before, node.figures(), series)
            # Executables are part of the daily rollups, and everything is part of the archive.
            run.changed |= bool(part.executables or part.steps or part.totals or part.coverage)
            if series is not None:
                chunks.append((node.id, *series, None))
            if part.executables:
                executables += self._executables(node, part, paths)
            steps += [(node.id, *msgspec.structs.astuple(use)) for use in part.steps]
        written = self._run_writer.flush({id: run.sums for id, run in self._runs.items()})
        self._write_nodes()
        self._transaction.execute_rows(statements.INSERT_CHUNK, chunks)
        self._transaction.execute_rows(statements.UPSERT_EXECUTABLE, executables)
        self._transaction.execute_rows(statements.UPSERT_STEP, steps)
        self._finish(written)

    def _write_nodes(self) -> None:
        new, known = [], []
        for key, node in self._nodes.items():
            compact = node.compact and node.first_sample is not None
            if node.compact:
                node.compact, node.open_chunks = compact, 0
            if key in self._new:
                sighting = msgspec.structs.astuple(self._new[key])
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
        updates = [
            (self._stamp.received, *run.sums, run.id) for run in changed if run.id not in written
        ]
        self._transaction.execute_rows(statements.UPDATE_SUMS, updates)
        for run in changed:
            if run.needs_recount:
                self._run_writer.sum_up(run.id)

    def _join(self, node: _Node) -> None:
        # Imported late: only time series need numpy.
        from jobsight.store.series.blocks import join_chunks

        join_chunks(self._transaction, node.id, complete=node.final)

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
            node = _Node(**dict(zip(_NODE_COLUMNS, columns, strict=True)))
            self._nodes[tuple(row[:_NODE_START])] = node
            *sums, has_other_sighting = row[_SUMS_START:]
            self._add_run(node.run_id, RunSums(*sums), has_other_sighting)

    def _add_run(self, run_id: int, sums: RunSums, has_other_sighting: object) -> None:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(run_id, sums)
        run.needs_recount |= bool(has_other_sighting)

    def _node(self, part: JobPart) -> _Node:
        key = _key(part.sighting)
        if key not in self._nodes:
            run_id, new_run = self._run_writer.match(part.sighting)
            node = part.sighting.node
            sums: Sequence[int | None] = ()
            has_other_sighting = False
            if not new_run:
                run = {"id": run_id, "node": node}
                row = self._transaction.execute(statements.SUMS_OF_RUN, run).fetchone()
                *sums, has_other_sighting = row
            self._add_run(
                run_id, RunSums(*sums), has_other_sighting or (run_id, node) in self._new_nodes
            )
            self._new_nodes.add((run_id, node))
            self._new[key] = part.sighting
            self._nodes[key] = _Node(
                id=self._transaction.new_id("run_nodes"),
                run_id=run_id,
                epoch=part.epoch,
                written=self._stamp.written,
            )
        return self._nodes[key]

    def _coverage(self, part: JobPart) -> bytes:
        # Thousands of imported records share one.
        if part.coverage is not self._packed_coverage[0]:
            self._packed_coverage = part.coverage, _encode(part.coverage)
        return self._packed_coverage[1]

    def _executables(
        self, node: _Node, part: JobPart, paths: Mapping[bytes, int]
    ) -> list[tuple[Any, ...]]:
        key = (node.id, _epoch_number(part.epoch), self._stamp.sequence)
        return [
            (*key, paths[use.path], *msgspec.structs.astuple(use)[1:]) for use in part.executables
        ]


@lru_cache(maxsize=4096)
def _epoch_number(epoch: str) -> int:
    digest = hashlib.blake2b(epoch.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def merge_totals(stored: JobTotals | None, arriving: JobTotals) -> JobTotals:
    """The newer totals by their own time, in any order of arrival; None never overwrites."""
    if stored is None:
        return arriving
    older, newer = (stored, arriving) if stored.time <= arriving.time else (arriving, stored)
    changes: dict[str, Any] = {}
    values = zip(
        JobTotals.__struct_fields__,
        msgspec.structs.astuple(older),
        msgspec.structs.astuple(newer),
        strict=True,
    )
    for name, old, new in values:
        if old is not None and (new is None or (name in _PEAKS and old > new)):
            changes[name] = old
    if newer.cpu_time is None and older.cpu_time is not None:
        changes["cpu_source"] = older.cpu_source
    return msgspec.structs.replace(newer, **changes) if changes else newer


def _replace_in_sum(sum: int | None, old: int | None, new: int | None) -> int | None:
    """A sum after one of its figures has changed."""
    if old == new:
        return sum
    if sum is None and old is None:
        return new
    return total([sum, new, None if old is None else -old])


def _min(known: int | None, value: int) -> int:
    return value if known is None or value < known else known


def _max(known: int | None, value: int) -> int:
    return value if known is None or value > known else known
