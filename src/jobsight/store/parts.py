"""The parts of one batch on their way into the tables.

Each row of a node and of a run is read once, changed in memory and written once, so that a batch
costs few statements however many parts it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from jobsight.model import Batch, ExecutableUse, JobPart, JobTotals, StepUse
from jobsight.store import statements
from jobsight.store.bookings import Bookings, total
from jobsight.store.compaction import ARRIVED, OPEN_CHUNKS, join_chunks
from jobsight.store.database import Transaction

_encode = msgspec.msgpack.Encoder().encode
_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode

#: Of one cgroup these only grow, while an agent that was started anew samples from nothing.
_PEAKS = frozenset(("memory_peak", "memory_used_peak", "swap_peak"))


class PackedSeries(NamedTuple):
    """The series of a part as it goes into ``chunks``."""

    first: int
    last: int
    rows: int
    data: bytes


class _Node(msgspec.Struct):
    """A row of ``run_nodes``; the fields that FIND_RUN_NODE reads come first, in its order."""

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

    def figures(self) -> tuple[int | None, int | None, int | None]:
        return self.cpu_time, self.memory_used_peak, self.memory_peak

    def take(self, part: JobPart, series: PackedSeries | None, written: int) -> None:
        """Bring in what a part of a batch written then says."""
        if self.written <= written:
            self.epoch, self.written = part.epoch, written
            if part.coverage:
                self.coverage = _encode(part.coverage)
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
        if self.open_chunks >= OPEN_CHUNKS or (self.open_chunks and self.final):
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

    def take(
        self,
        before: tuple[int | None, ...],
        after: tuple[int | None, ...],
        series: PackedSeries | None,
    ) -> None:
        """Bring in what a part changed in the figures of its node."""
        if before != after:
            sums = (self.cpu_time, self.memory_used_peak, self.memory_peak)
            self.cpu_time, self.memory_used_peak, self.memory_peak = (
                total([whole, new, None if old is None else -old])
                for whole, old, new in zip(sums, before, after, strict=True)
            )
            self.changed = True
        if series is not None:
            self.first_seen = _least(self.first_seen, series.first)
            self.last_seen = _greatest(self.last_seen, series.last)
            self.changed = True


class Parts:
    """Stores the parts of one batch inside a transaction."""

    def __init__(
        self, transaction: Transaction, bookings: Bookings, batch: Batch, received: int
    ) -> None:
        self._transaction = transaction
        self._bookings = bookings
        self._batch = batch
        self._received = received
        self._nodes: dict[tuple[object, ...], _Node] = {}
        self._runs: dict[int, _Run] = {}

    def store(self, packed: Sequence[PackedSeries | None], paths: Mapping[bytes, int]) -> None:
        """Bring everything the parts say into the tables."""
        chunks: list[dict[str, Any]] = []
        executables: list[dict[str, Any]] = []
        steps: list[dict[str, Any]] = []
        for part, series in zip(self._batch.parts, packed, strict=True):
            node = self._node(part)
            before = node.figures()
            node.take(part, series, self._batch.written)
            run = self._runs[node.run_id]
            run.take(before, node.figures(), series)
            # What ran is part of the sums by day, too; all of it is part of the archive.
            run.changed |= bool(part.executables or part.steps or part.totals or part.coverage)
            if series is not None:
                row = {"run_node_id": node.id, "level": ARRIVED, "summary": None}
                chunks.append(row | series._asdict())
            if part.executables:
                executables += self._executables(node, part, paths)
            steps += [_step(node.id, use) for use in part.steps]
        self._transaction.execute_many(statements.INSERT_CHUNK, chunks)
        self._transaction.execute_many(statements.UPSERT_EXECUTABLE, executables)
        self._transaction.execute_many(statements.UPSERT_STEP, steps)
        self._finish()

    def _finish(self) -> None:
        for node in self._nodes.values():
            if node.compact:
                join_chunks(self._transaction, node.id, whole=node.final)
                node.open_chunks = 0
        self._transaction.execute_many(
            statements.UPDATE_RUN_NODE, map(msgspec.structs.asdict, self._nodes.values())
        )
        changed = [run for run in self._runs.values() if run.changed]
        self._transaction.execute_many(
            statements.ADD_TO_RUN, [msgspec.structs.asdict(run) for run in changed]
        )
        for run in changed:
            if run.entangled:
                self._bookings.sum_up(run.id)

    def _node(self, part: JobPart) -> _Node:
        sighting = part.sighting
        key = (sighting.job_id, sighting.node, sighting.boot_id, sighting.birth)
        if key not in self._nodes:
            columns = msgspec.structs.asdict(sighting)
            found = self._transaction.execute(statements.FIND_RUN_NODE, columns).fetchone()
            if found is None:
                values = columns | {
                    "run_id": self._bookings.bind(sighting),
                    "epoch": part.epoch,
                    "written": self._batch.written,
                }
                self._transaction.execute(statements.INSERT_RUN_NODE, values)
                found = self._transaction.execute(statements.FIND_RUN_NODE, columns).fetchone()
            *of_node, cpu_time, used_peak, peak, first, last, siblings = found
            node = self._nodes[key] = _Node(*of_node)
            run = self._runs.get(node.run_id)
            if run is None:
                sums = (cpu_time, used_peak, peak, first, last)
                run = self._runs[node.run_id] = _Run(node.run_id, *sums, updated=self._received)
            run.entangled |= bool(siblings)
        return self._nodes[key]

    def _executables(
        self, node: _Node, part: JobPart, paths: Mapping[bytes, int]
    ) -> list[dict[str, Any]]:
        digest = hashlib.blake2b(part.epoch.encode(), digest_size=8).digest()
        key = {
            "run_node_id": node.id,
            "epoch": int.from_bytes(digest, "big", signed=True),
            "sequence": self._batch.sequence,
        }
        return [key | _figures(use, paths[use.path]) for use in part.executables]


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


def _figures(use: ExecutableUse, path_id: int) -> dict[str, Any]:
    values = msgspec.structs.asdict(use)
    values["path_id"] = path_id
    return values


def _step(run_node_id: int, use: StepUse) -> dict[str, Any]:
    values = msgspec.structs.asdict(use)
    values["run_node_id"] = run_node_id
    return values


def _least(known: int | None, value: int) -> int:
    return value if known is None or value < known else known


def _greatest(known: int | None, value: int) -> int:
    return value if known is None or value > known else known
