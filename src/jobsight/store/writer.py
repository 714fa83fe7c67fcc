"""A batch into the store, whole or not at all, and once."""

from __future__ import annotations

import hashlib
import time
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jobsight.model import Batch, ExecutableUse, JobPart, JobTotals, Series
from jobsight.store import chunks, statements
from jobsight.store.bookings import Bookings, of_node, total
from jobsight.store.checks import check
from jobsight.store.compaction import ARRIVED, OPEN_CHUNKS, join_chunks
from jobsight.store.database import Database, Transaction
from jobsight.store.spools import take

_encode = msgspec.msgpack.Encoder().encode
_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode

#: Of one cgroup these only grow, while an agent that was started anew samples from nothing.
_PEAKS = ("memory_peak", "memory_used_peak", "swap_peak")


class _Chunk(NamedTuple):
    first: int
    last: int
    rows: int
    data: bytes


def write(database: Database, batch: Batch, received: int | None = None) -> bool:
    """Store a batch; False where it had been stored before."""
    check(batch)
    received = time.time_ns() if received is None else received
    # The costly work happens before the lock of the writer is taken.
    packed = [_pack(part.series) for part in batch.parts]
    with database.write() as transaction:
        if not take(transaction, batch, received):
            return False
        # Locks in one order everywhere: agent, jobs, paths. So writers cannot wait in a circle.
        jobs = {record.job_id for record in batch.jobs}
        jobs |= {part.sighting.job_id for part in batch.parts}
        transaction.lock("job", (f"{batch.cluster} {job_id}" for job_id in jobs))
        bookings = Bookings(transaction, received)
        for record in batch.jobs:
            bookings.record(record)
        paths = _paths(transaction, batch)
        for part, chunk in zip(batch.parts, packed, strict=True):
            _Part(transaction, bookings, batch, part, received).store(chunk, paths)
    return True


def _pack(series: Series | None) -> _Chunk | None:
    if series is None or not len(series):
        return None
    times = np.frombuffer(series.times, np.int64)
    columns: dict[str, chunks.Values] = {}
    for name, column in series.columns.items():
        kind = column.format if isinstance(column, memoryview) else column.typecode
        if kind == "q":
            columns[name] = np.frombuffer(column, np.int64)
        else:
            columns[name] = np.frombuffer(column, np.float64)
    rows = len(times)
    encode = chunks.encode_plain if rows < chunks.MANY_ROWS else chunks.encode
    data = encode(times, columns, chunks.ARRIVING_LEVEL)
    return _Chunk(int(times.min()), int(times.max()), rows, data)


def _paths(transaction: Transaction, batch: Batch) -> dict[bytes, int]:
    """The id of every path in the batch; new ones are added in sorted order."""
    result = {}
    named = {use.path for part in batch.parts for use in part.executables}
    for digest, path in sorted(
        (hashlib.blake2b(path, digest_size=16).digest(), path) for path in named
    ):
        key = {"digest": digest}
        found = transaction.execute(statements.FIND_PATH, key).fetchone()
        if found is None:
            transaction.execute(statements.INSERT_PATH, key | {"path": path})
            found = transaction.execute(statements.FIND_PATH, key).fetchone()
        result[path] = found[0]
    return result


class _Part:
    """One job's part of a batch on its way into the store."""

    def __init__(
        self,
        transaction: Transaction,
        bookings: Bookings,
        batch: Batch,
        part: JobPart,
        received: int,
    ) -> None:
        self._transaction = transaction
        self._bookings = bookings
        self._batch = batch
        self._part = part
        self._received = received

    def store(self, chunk: _Chunk | None, paths: dict[bytes, int]) -> None:
        """Bring everything the part says into the tables."""
        part = self._part
        row = self._run_node()
        run_node_id, run_id, written, totals, *figures = row[:7]
        first_sample, last_sample, final, open_chunks = row[7:]
        before = tuple(figures)
        if part.totals is not None:
            merged = merge_totals(None if totals is None else _decode_totals(totals), part.totals)
            totals = _encode(merged)
            figures = [merged.cpu_time, merged.memory_used_peak, merged.memory_peak]
        if chunk is not None:
            self._insert_chunk(run_node_id, chunk)
            open_chunks += 1
            first_sample = min(chunk.first, first_sample or chunk.first)
            last_sample = max(chunk.last, last_sample or chunk.last)
        ends = part.final and not final
        final = bool(final) or part.final
        # A part that comes after the end is late; the whole is made anew with it.
        if ends or (open_chunks and (final or open_chunks >= OPEN_CHUNKS)):
            join_chunks(self._transaction, run_node_id, whole=final)
            open_chunks = 0
        self._transaction.execute(
            statements.UPDATE_RUN_NODE,
            {
                "id": run_node_id,
                "epoch": part.epoch,
                "written": self._batch.written,
                "totals": totals,
                "cpu_time": figures[0],
                "memory_used_peak": figures[1],
                "memory_peak": figures[2],
                "first_sample": first_sample,
                "last_sample": last_sample,
                "final": final,
                "open_chunks": open_chunks,
            },
        )
        if part.coverage and written <= self._batch.written:
            coverage = {"id": run_node_id, "coverage": _encode(part.coverage)}
            self._transaction.execute(statements.UPDATE_COVERAGE, coverage)
        self._insert_executables(run_node_id, paths)
        self._add_to_run(run_id, run_node_id, before, tuple(figures), chunk)

    def _run_node(self) -> Any:
        sighting = self._part.sighting
        key = msgspec.structs.asdict(sighting)
        found = self._transaction.execute(statements.FIND_RUN_NODE, key).fetchone()
        if found is None:
            values = key | {
                "run_id": self._bookings.bind(sighting),
                "epoch": self._part.epoch,
                "written": self._batch.written,
            }
            self._transaction.execute(statements.INSERT_RUN_NODE, values)
            found = self._transaction.execute(statements.FIND_RUN_NODE, key).fetchone()
        return found

    def _insert_chunk(self, run_node_id: int, chunk: _Chunk) -> None:
        self._transaction.execute(
            statements.INSERT_CHUNK,
            {"run_node_id": run_node_id, "level": ARRIVED, "summary": None, **chunk._asdict()},
        )

    def _insert_executables(self, run_node_id: int, paths: dict[bytes, int]) -> None:
        if not self._part.executables:
            return
        digest = hashlib.blake2b(self._part.epoch.encode(), digest_size=8).digest()
        key = {
            "run_node_id": run_node_id,
            "epoch": int.from_bytes(digest, "big", signed=True),
            "sequence": self._batch.sequence,
        }
        self._transaction.execute_many(
            statements.UPSERT_EXECUTABLE,
            [key | _figures(use, paths[use.path]) for use in self._part.executables],
        )

    def _add_to_run(
        self,
        run_id: int,
        run_node_id: int,
        before: tuple[int | None, ...],
        after: tuple[int | None, ...],
        chunk: _Chunk | None,
    ) -> None:
        """Bring the run's sums up to date by the difference, however many nodes it has."""
        if before == after and chunk is None:
            return
        run = {"id": run_id}
        *sums, first, last = self._transaction.execute(statements.SUMS_OF_RUN, run).fetchone()
        if before != after:
            node = {"run_id": run_id, "node": self._part.sighting.node, "id": run_node_id}
            others = self._transaction.execute(statements.SIBLINGS, node).fetchall()
            old, new = of_node([*others, before]), of_node([*others, after])
            for place in range(3):
                removed = old[place]
                change = [sums[place], new[place], None if removed is None else -removed]
                sums[place] = total(change)
        if chunk is not None:
            first = chunk.first if first is None else min(first, chunk.first)
            last = chunk.last if last is None else max(last, chunk.last)
        self._transaction.execute(
            statements.ADD_TO_RUN,
            {
                "id": run_id,
                "updated": self._received,
                "cpu_time": sums[0],
                "memory_used_peak": sums[1],
                "memory_peak": sums[2],
                "first_seen": first,
                "last_seen": last,
            },
        )


def merge_totals(stored: JobTotals | None, arriving: JobTotals) -> JobTotals:
    """The newer totals by their own time, in whatever order they come; None never overwrites."""
    if stored is None:
        return arriving
    older, newer = (stored, arriving) if stored.time <= arriving.time else (arriving, stored)
    changes: dict[str, Any] = {}
    for name in JobTotals.__struct_fields__:
        old, new = getattr(older, name), getattr(newer, name)
        if new is None or (name in _PEAKS and old is not None and old > new):
            changes[name] = old
    if newer.cpu_time is None and older.cpu_time is not None:
        changes["cpu_source"] = older.cpu_source
    return msgspec.structs.replace(newer, **changes)


def _figures(use: ExecutableUse, path_id: int) -> dict[str, Any]:
    values = msgspec.structs.asdict(use)
    del values["path"]
    return values | {"path_id": path_id}
