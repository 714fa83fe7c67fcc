"""The parts of one batch on their way into the tables.

The rows of all nodes are read at once, changed in memory and written once, so that a batch costs
few statements however many parts it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from jobsight.model import Coverage, JobPart, JobTotals, Sighting
from jobsight.store.database import Transaction
from jobsight.store.schema import statements
from jobsight.store.write.runs import NOTHING_SEEN, RunWriter, Sums, total

_encode = msgspec.msgpack.Encoder().encode
_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode

#: Of one cgroup these only grow, while an agent that was started anew samples from nothing.
_PEAKS = frozenset(("memory_peak", "memory_used_peak", "swap_peak"))


#: So many parts wait until they are joined: each is then rewritten twice in its life, and the
#: curves of a running job are read from few chunks.
OPEN_CHUNKS = 64

#: Job id, node, boot id and birth: what tells one sighting of the batch from another.
_Key: TypeAlias = tuple[int, str, str, int]


class PackedSeries(NamedTuple):
    """The series of a part as it goes into ``chunks``."""

    first: int
    last: int
    rows: int
    level: int
    data: bytes


class _Node(msgspec.Struct):
    """A row of ``run_nodes``, in the order in which FIND_RUN_NODES reads it and others write it."""

    id: int
    run_id: int
    epoch: str
    written: int
    totals: bytes | None
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    first_sample: int | None
    last_sample: int | None
    final: bool
    open_chunks: int
    #: None leaves what is stored.
    coverage: bytes | None = None
    compact: bool = False

    def inserted(self, sighting: Sighting) -> tuple[Any, ...]:
        """The values of INSERT_RUN_NODE."""
        return (*msgspec.structs.astuple(sighting), *msgspec.structs.astuple(self)[:13])

    def updated(self) -> tuple[Any, ...]:
        """The values of UPDATE_RUN_NODE."""
        return (*msgspec.structs.astuple(self)[2:13], self.id)

    def figures(self) -> tuple[int | None, int | None, int | None]:
        return self.cpu_time, self.memory_used_peak, self.memory_peak

    def take(
        self, part: JobPart, series: PackedSeries | None, coverage: bytes, written: int
    ) -> None:
        """Bring in what a part of a batch written then says."""
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
            self.first_sample = _least(self.first_sample, series.first)
            self.last_sample = _greatest(self.last_sample, series.last)
        if part.final and not self.final:
            self.final = self.compact = True
        # A part that comes after the end is late; the whole is made anew with it.
        if self.open_chunks and (self.final or self.open_chunks >= OPEN_CHUNKS):
            self.compact = True


class _Run(msgspec.Struct):
    """The sums of a run, kept up by differences however many nodes it has."""

    id: int
    cpu_time: int | None
    memory_used_peak: int | None
    memory_peak: int | None
    first_seen: int | None
    last_seen: int | None
    updated: int
    changed: bool = False
    #: Several sightings on one node do not simply add up: then all nodes are summed again.
    entangled: bool = False

    def added(self) -> tuple[Any, ...]:
        """The values of ADD_TO_RUN."""
        return (self.updated, *self.sums(), self.id)

    def sums(self) -> Sums:
        return (
            *(self.cpu_time, self.memory_used_peak, self.memory_peak),
            *(self.first_seen, self.last_seen),
        )

    def take(
        self,
        before: tuple[int | None, ...],
        after: tuple[int | None, ...],
        series: PackedSeries | None,
    ) -> None:
        """Bring in what a part changed in the figures of its node."""
        if before != after:
            self.cpu_time = _moved(self.cpu_time, before[0], after[0])
            self.memory_used_peak = _moved(self.memory_used_peak, before[1], after[1])
            self.memory_peak = _moved(self.memory_peak, before[2], after[2])
            self.changed = True
        if series is not None:
            self.first_seen = _least(self.first_seen, series.first)
            self.last_seen = _greatest(self.last_seen, series.last)
            self.changed = True


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

    def __init__(self, transaction: Transaction, bookings: RunWriter, stamp: PartStamp) -> None:
        self._transaction = transaction
        self._bookings = bookings
        self._stamp = stamp
        self._nodes: dict[_Key, _Node] = {}
        self._runs: dict[int, _Run] = {}
        #: Sightings that the store has not seen before, by the key of their node.
        self._new: dict[_Key, Sighting] = {}
        #: Run and node of those.
        self._places: set[tuple[int, str]] = set()
        #: The coverage that was packed last.
        self._packed_coverage: tuple[dict[str, Coverage] | None, bytes] = (None, b"")

    def store(
        self,
        parts: Sequence[JobPart],
        packed: Sequence[PackedSeries | None],
        paths: Mapping[bytes, int],
    ) -> None:
        """Bring everything the parts say into the tables."""
        chunks: list[tuple[Any, ...]] = []
        executables: list[tuple[Any, ...]] = []
        steps: list[tuple[Any, ...]] = []
        self._find_nodes(parts)
        for part, series in zip(parts, packed, strict=True):
            node = self._node(part)
            before = node.figures()
            node.take(part, series, self._coverage(part), self._stamp.written)
            run = self._runs[node.run_id]
            run.take(before, node.figures(), series)
            # What ran is part of the sums by day, too; all of it is part of the archive.
            run.changed |= bool(part.executables or part.steps or part.totals or part.coverage)
            if series is not None:
                chunks.append((node.id, *series, None))
            if part.executables:
                executables += self._executables(node, part, paths)
            steps += [(node.id, *msgspec.structs.astuple(use)) for use in part.steps]
        written = self._bookings.flush({id: run.sums() for id, run in self._runs.items()})
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
                new.append(node.inserted(self._new[key]))
            else:
                known.append(node.updated())
        self._transaction.execute_rows(statements.INSERT_RUN_NODE, new)
        self._transaction.execute_rows(statements.UPDATE_RUN_NODE, known)

    def _finish(self, written: Set[int]) -> None:
        for node in self._nodes.values():
            if node.compact:
                self._join(node)
        changed = [run for run in self._runs.values() if run.changed]
        # A new run was written with its sums.
        added = [run.added() for run in changed if run.id not in written]
        self._transaction.execute_rows(statements.ADD_TO_RUN, added)
        for run in changed:
            if run.entangled:
                self._bookings.sum_up(run.id)

    def _join(self, node: _Node) -> None:
        # Only what has curves needs numpy, which takes long to import.
        from jobsight.store.series.curves import join_chunks

        join_chunks(self._transaction, node.id, whole=node.final)

    def _find_nodes(self, parts: Sequence[JobPart]) -> None:
        cluster = self._stamp.cluster
        keys = dict.fromkeys(
            _key(part.sighting)
            for part in parts
            if self._bookings.knows(cluster, part.sighting.job_id)
        )
        found = self._transaction.look_up(
            statements.FIND_RUN_NODES, [(cluster, *key) for key in keys]
        )
        for row in found:
            node = self._nodes[tuple(row[:4])] = _Node(*row[4:16])
            self._know_run(node.run_id, row[16:21], bool(row[21]))

    def _know_run(self, run_id: int, sums: Sums, entangled: bool) -> None:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(run_id, *sums, updated=self._stamp.received)
        run.entangled |= entangled

    def _node(self, part: JobPart) -> _Node:
        key = _key(part.sighting)
        if key not in self._nodes:
            run_id, new = self._bookings.bind(part.sighting)
            place = run_id, part.sighting.node
            sums = NOTHING_SEEN
            siblings = place in self._places
            if not new:
                row = dict(zip(("id", "node"), place, strict=True))
                found = self._transaction.execute(statements.SUMS_OF_RUN, row).fetchone()
                sums, siblings = found[:5], siblings or bool(found[5])
            self._know_run(run_id, sums, siblings)
            self._places.add(place)
            self._new[key] = part.sighting
            id = self._transaction.new_id("run_nodes")
            self._nodes[key] = _Node(
                id, run_id, part.epoch, self._stamp.written, *(None,) * 6, False, 0
            )
        return self._nodes[key]

    def _coverage(self, part: JobPart) -> bytes:
        # Thousands of records that others have made share one.
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


def _key(sighting: Sighting) -> _Key:
    return sighting.job_id, sighting.node, sighting.boot_id, sighting.birth


@lru_cache(maxsize=4096)
def _epoch_number(epoch: str) -> int:
    digest = hashlib.blake2b(epoch.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def merge_totals(stored: JobTotals | None, arriving: JobTotals) -> JobTotals:
    """The newer totals by their own time, in whatever order they come; None never overwrites."""
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


def _moved(whole: int | None, old: int | None, new: int | None) -> int | None:
    """A sum after one of its figures has changed."""
    if old == new:
        return whole
    if whole is None and old is None:
        return new
    return total([whole, new, None if old is None else -old])


def _least(known: int | None, value: int) -> int:
    return value if known is None or value < known else known


def _greatest(known: int | None, value: int) -> int:
    return value if known is None or value > known else known
