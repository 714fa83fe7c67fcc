"""The integrity check of a store: the database, references, chunks, and the sums of runs.

:class:`Checker` reads in short transactions, each of which covers rows that belong together, so
that others can write meanwhile. It can repair what follows from other data.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, select, text

from jobsight.errors import StoreError
from jobsight.model import Run
from jobsight.store.database import Database
from jobsight.store.maintenance.dump import Progress, no_progress
from jobsight.store.maintenance.retention import EXECUTABLES, SERIES
from jobsight.store.schema import tables
from jobsight.store.schema.tables import batches, chunks, metadata, paths, run_nodes, runs
from jobsight.store.series import codec
from jobsight.store.series.blocks import ARRIVED, SeriesBlock, Summary, join, summarise
from jobsight.store.series.codec import ChunkError, decompress
from jobsight.store.write.runs import HIGHEST, RunWriter, of_node, total

logger = logging.getLogger(__name__)

_decode = msgspec.msgpack.Decoder(dict[str, Summary]).decode
_encode = msgspec.msgpack.Encoder().encode


class ChunkRow(NamedTuple):
    """A row of ``chunks``."""

    id: int
    run_node_id: int
    first: int
    last: int
    rows: int
    level: int
    data: bytes
    summary: bytes | None
    resolution: int | None


class Damaged(Exception):
    """The bytes cannot be read; nothing can be worked out from them."""


class Right(NamedTuple):
    """What the columns should say."""

    first: int
    last: int
    rows: int
    #: The one that is stored where that is right.
    summary: bytes | None


def examine_chunk(row: ChunkRow) -> tuple[list[str], Right]:
    """What is wrong with a chunk, in words, and what would be right."""
    try:
        curves = SeriesBlock(*codec.decode(row.data))
    except ChunkError as error:
        raise Damaged(str(error)) from None
    if not len(curves.times):
        raise Damaged("a chunk of a series holds no rows")
    faults = []
    right = Right(int(curves.times.min()), int(curves.times.max()), len(curves.times), row.summary)
    for name in ("first", "last", "rows"):
        stored, found = getattr(row, name), getattr(right, name)
        if stored != found:
            faults.append(f"its column {name} says {stored}, its bytes {found}")
    if row.level > ARRIVED and bool((curves.times[1:] <= curves.times[:-1]).any()):
        faults.append("its times are not in order")
    wrong = _summary_fault(row, curves, right)
    if wrong:
        faults.append(wrong)
        # The extremes of downsampled rows are lost; those of the rest are the best estimate.
        made = summarise(join([curves]))
        right = right._replace(summary=codec.compress(_encode(made)))
    return faults, right


def _summary_fault(row: ChunkRow, curves: SeriesBlock, right: Right) -> str:
    if row.summary is None:
        return "" if row.level == ARRIVED else "its summary is missing"
    try:
        stored = _decode(decompress(row.summary))
    except (ChunkError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"its summary cannot be read ({error})"
    if row.resolution is not None:
        # Of rows that are no longer there; what is left must lie within.
        outside = [
            name
            for name, part in stored.items()
            if part.first_time < right.first or part.last_time > right.last
        ]
        if outside or stored.keys() != summarise(curves).keys():
            return "its summary is not that of a downsampled series"
        return ""
    expected = summarise(curves)
    if stored.keys() != expected.keys():
        return "its summary names other metrics than its bytes"
    wrong = [name for name in stored if not _agree(stored[name], expected[name])]
    return f"its summary of {', '.join(sorted(wrong))} is not that of its bytes" if wrong else ""


def _agree(one: Summary, other: Summary) -> bool:
    """The same to the last digits: another processor may add up in another order."""
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9)
        for a, b in pairs
    )


#: Rows in one transaction; fewer of chunks, which are large.
BATCH_SIZE, CHUNKS_BATCH_SIZE = 500, 32
#: Orphans of one kind that are listed.
MAX_LISTED = 20

_CHUNK = f"SELECT {', '.join(ChunkRow._fields)} FROM chunks WHERE id = :id"
_RIGHT_CHUNK = """
    UPDATE chunks SET first = :first, last = :last, rows = :rows, summary = :summary WHERE id = :id
"""
_RIGHT_NODE = """
    UPDATE run_nodes SET
        open_chunks = (SELECT count(*) FROM chunks WHERE run_node_id = :id AND level = 0),
        first_sample = coalesce(
            (SELECT min(first) FROM chunks WHERE run_node_id = :id), first_sample),
        last_sample = coalesce((SELECT max(last) FROM chunks WHERE run_node_id = :id), last_sample)
    WHERE id = :id
"""
_ORPHANED_SHARES = """
    FROM contributions WHERE NOT dropped
        AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = contributions.run_id)
"""
_UNUSED_PATHS = """
    SELECT count(*) FROM paths
    WHERE NOT EXISTS (SELECT 1 FROM executables WHERE path_id = paths.id)
"""
#: Data that came after that of its kind was removed by age.
LATE = f"""
    (pruned & {SERIES} <> 0 AND EXISTS (
        SELECT 1 FROM run_nodes JOIN chunks ON chunks.run_node_id = run_nodes.id
        WHERE run_nodes.run_id = runs.id))
    OR (pruned & {EXECUTABLES} <> 0 AND EXISTS (
        SELECT 1 FROM run_nodes JOIN executables ON executables.run_node_id = run_nodes.id
        WHERE run_nodes.run_id = runs.id))
"""


class Fault(msgspec.Struct):
    """A fault and where it is."""

    where: str
    text: str
    repaired: bool = False


class Checked(msgspec.Struct):
    """What was checked, and the faults."""

    chunks: int = 0
    nodes: int = 0
    runs: int = 0
    paths: int = 0
    faults: list[Fault] = msgspec.field(default_factory=list)
    #: Remarks that are no faults.
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def sound(self) -> bool:
        return all(fault.repaired for fault in self.faults)


class Checker:
    """One check of a store."""

    def __init__(
        self,
        database: Database,
        progress: Progress = no_progress,
        *,
        repair: bool = False,
        remove_damaged: bool = False,
    ) -> None:
        self._database = database
        self._progress = progress
        self._repair = repair
        self._remove_damaged = remove_damaged
        self.result = Checked()

    def run(self) -> Checked:
        """Check chunks before nodes before runs, since repairs build on each other."""
        for check in (
            self._check_engine,
            self._check_references,
            self._check_chunks,
            self._check_nodes,
            self._check_runs,
            self._check_paths,
            self._check_batches,
            self._check_shares,
            self._add_notes,
        ):
            try:
                check()
            except StoreError as error:
                # Other tables of a damaged file may be readable.
                self._fault("the database", f"it cannot be read: {error}")
        logger.info(
            "check: %d chunks, %d nodes, %d runs, %d faults",
            *(self.result.chunks, self.result.nodes, self.result.runs, len(self.result.faults)),
        )
        return self.result

    def _fault(self, where: str, text: str, repaired: bool = False) -> None:
        self.result.faults.append(Fault(where, text, repaired))

    def _check_engine(self) -> None:
        if self._database.postgresql:
            # A constraint that was put off holds for new rows only.
            query = "SELECT conname FROM pg_constraint WHERE NOT convalidated"
            with self._database.read() as connection:
                for (name,) in connection.execute(text(query)):
                    self._fault("the database", f"its constraint {name} is not valid")
            return
        with self._database.read() as connection:
            self._progress("the database itself", 0, 1)
            for (said,) in connection.execute(text("PRAGMA integrity_check")):
                if said != "ok":
                    self._fault("the database", said)
            self._progress("the database itself", 1, 1)

    def _check_references(self) -> None:
        keys = [
            (table, key)
            for table in metadata.sorted_tables
            for key in sorted(table.foreign_keys, key=lambda key: key.parent.name)
        ]
        for done, (table, key) in enumerate(keys, 1):
            there = select(1).where(key.column == key.parent).exists()
            query = select(*table.primary_key).where(~there).limit(MAX_LISTED)
            with self._database.read() as connection:
                for row in connection.execute(query):
                    named = ", ".join(map(str, row))
                    self._fault(
                        f"{table.name} {named}", f"there is no row of {key.column.table.name} to it"
                    )
            self._progress("references", done, len(keys))

    def _check_chunks(self) -> None:
        columns = [chunks.c[name] for name in ChunkRow._fields]
        for rows in self._pages(chunks, columns, CHUNKS_BATCH_SIZE, "chunks"):
            for values in rows:
                row = ChunkRow(*values)
                try:
                    faults, _ = examine_chunk(row)
                except Damaged as error:
                    faults = [str(error)]
                if faults:
                    self._name_chunk(row, "; ".join(faults))
            self.result.chunks += len(rows)

    def _name_chunk(self, row: ChunkRow, said: str) -> None:
        repaired = False
        with self._database.read() as connection:
            where = f"chunk {row.id} of {name_of_node(connection, row.run_node_id)}"
        if self._repair or self._remove_damaged:
            with self._database.write() as transaction:
                # Another chunk may have the id by now.
                found = transaction.execute(_CHUNK, {"id": row.id}).fetchone()
                if found is None or bytes(found[6]) != row.data:
                    return
                try:
                    _, right = examine_chunk(row)
                except Damaged:
                    if self._remove_damaged:
                        transaction.execute("DELETE FROM chunks WHERE id = :id", {"id": row.id})
                        repaired, said = True, f"{said}; it was removed"
                else:
                    transaction.execute(_RIGHT_CHUNK, right._asdict() | {"id": row.id})
                    repaired = "not in order" not in said
        self._fault(where, said, repaired)

    def _check_nodes(self) -> None:
        waiting = (
            select(func.count())
            .where(chunks.c.run_node_id == run_nodes.c.id, chunks.c.level == 0)
            .scalar_subquery()
        )
        first, last = (
            select(found).where(chunks.c.run_node_id == run_nodes.c.id).scalar_subquery()
            for found in (func.min(chunks.c.first), func.max(chunks.c.last))
        )
        figures = (run_nodes.c.open_chunks, run_nodes.c.first_sample, run_nodes.c.last_sample)
        columns = [run_nodes.c.id, *figures, waiting, first, last]
        for rows in self._pages(run_nodes, columns, BATCH_SIZE, "nodes of runs"):
            for id, open_chunks, first_sample, last_sample, waits, earliest, latest in rows:
                said = []
                if open_chunks != waits:
                    said.append(f"{waits} chunks wait to be joined, open_chunks says {open_chunks}")
                if earliest is not None and not (
                    first_sample is not None and first_sample <= earliest and last_sample >= latest
                ):
                    said.append("its series reach beyond its first and last sample")
                if said:
                    self._name_node(id, "; ".join(said))
            self.result.nodes += len(rows)

    def _name_node(self, id: int, said: str) -> None:
        with self._database.read() as connection:
            where = name_of_node(connection, id)
            query = select(run_nodes.c.cluster, run_nodes.c.job_id).where(run_nodes.c.id == id)
            job = connection.execute(query).one_or_none()
        repaired = self._repair and job is not None
        if repaired and job is not None:
            with self._database.write() as transaction:
                transaction.lock("job", [f"{job.cluster} {job.job_id}"])
                transaction.execute(_RIGHT_NODE, {"id": id})
        self._fault(where, said, repaired)

    def _check_runs(self) -> None:
        names = ("cpu_time", "memory_used_peak", "memory_peak", "first_seen", "last_seen")
        columns = [runs.c[name] for name in ("id", "cluster", "job_id", "start", *names)]
        last = 0
        for rows in self._pages(runs, columns, BATCH_SIZE, "runs"):
            with self._database.read() as connection:
                # Read again, together with the nodes.
                among = runs.c.id.between(last, rows[-1][0])
                stored = {row[0]: row for row in connection.execute(select(*columns).where(among))}
                seen = figures(connection, last, rows[-1][0])
            for id, cluster, job_id, start, *values in stored.values():
                expected, others = sums(seen.get(id, []), cluster, job_id)
                where = f"run {Run(cluster, job_id, start)}"
                for node in others:
                    self._fault(where, f"its node {node} is that of another job")
                wrong = [
                    f"{name} is {value}, that of its nodes {right}"
                    for name, value, right in zip(names, values, expected, strict=True)
                    if value != right and HIGHEST not in (value, right)
                ]
                if wrong:
                    self._sum_up(id, f"{cluster} {job_id}")
                    self._fault(where, "; ".join(wrong), self._repair)
            self.result.runs += len(rows)
            last = rows[-1][0] + 1

    def _sum_up(self, id: int, lock: str) -> None:
        if self._repair:
            with self._database.write() as transaction:
                transaction.lock("job", [lock])
                RunWriter(transaction, time.time_ns()).sum_up(id)

    def _check_paths(self) -> None:
        for rows in self._pages(
            paths, [paths.c.id, paths.c.path, paths.c.digest], BATCH_SIZE, "paths"
        ):
            for id, path, digest in rows:
                if hashlib.blake2b(path, digest_size=16).digest() != digest:
                    self._fault(f"path {id}", "its digest is not that of its bytes")
            self.result.paths += len(rows)

    def _check_batches(self) -> None:
        one, other = batches.alias(), batches.alias()
        overlap = (one.c.first < other.c.first) & (one.c.last >= other.c.first)
        query = select(one.c.spool_id, other.c.first).where(one.c.spool_id == other.c.spool_id)
        with self._database.read() as connection:
            for spool, first in connection.execute(query.where(overlap).limit(MAX_LISTED)):
                self._fault(f"spool {spool}", f"batch {first} is recorded twice")

    def _check_shares(self) -> None:
        with self._database.read() as connection:
            found = connection.scalar(text(f"SELECT count(*) {_ORPHANED_SHARES}")) or 0
        if found:
            if self._repair:
                with self._database.write() as transaction:
                    transaction.execute(f"DELETE {_ORPHANED_SHARES}")
            said = f"{found} rows belong to no run"
            self._fault(tables.contributions.name, said, self._repair)

    def _add_notes(self) -> None:
        with self._database.read() as connection:
            unused = connection.scalar(text(_UNUSED_PATHS))
            late = connection.scalar(text(f"SELECT count(*) FROM runs WHERE {LATE}"))
        if unused:
            self.result.notes.append(f"{unused:,} paths are used by nothing; compact removes them")
        if late:
            self.result.notes.append(f"{late:,} runs got data after theirs was removed by age")

    def _pages(self, table: Any, columns: list[Any], limit: int, what: str) -> Iterator[list[Any]]:
        """All rows in the order of their ids, some at once."""
        with self._database.read() as connection:
            whole = connection.scalar(select(func.count()).select_from(table)) or 0
        done, after = 0, -1
        while True:
            query = select(*columns).where(table.c.id > after).order_by(table.c.id).limit(limit)
            with self._database.read() as connection:
                rows = list(connection.execute(query))
            if not rows:
                return
            yield rows
            after = rows[-1][0]
            done += len(rows)
            self._progress(what, min(done, whole), whole)


def name_of_node(connection: Connection, id: int) -> str:
    """A readable name of a row of ``run_nodes``."""
    query = (
        select(runs.c.cluster, runs.c.job_id, runs.c.start, run_nodes.c.node)
        .join(runs, runs.c.id == run_nodes.c.run_id)
        .where(run_nodes.c.id == id)
    )
    found = connection.execute(query).one_or_none()
    return f"run {Run(*found[:3])} on {found[3]}" if found else f"node {id} of no run"


def figures(connection: Connection, first: int, last: int) -> dict[int, list[Any]]:
    """Of each run: whose its nodes are, and their figures."""
    names = ("run_id", "cluster", "job_id", "node", "cpu_time", "memory_used_peak", "memory_peak")
    columns = [run_nodes.c[name] for name in (*names, "first_sample", "last_sample")]
    found: dict[int, list[Any]] = {}
    query = select(*columns).where(run_nodes.c.run_id.between(first, last))
    for run_id, *values in connection.execute(query):
        found.setdefault(run_id, []).append(values)
    return found


def sums(nodes: list[Any], cluster: str, job_id: int) -> tuple[list[int | None], list[str]]:
    """The figures of a run from those of its nodes, and the nodes that are not its own."""
    by_node: dict[str, list[Any]] = {}
    samples: list[tuple[int, int]] = []
    others = []
    for its_cluster, its_job, node, *figures, first, last in nodes:
        by_node.setdefault(node, []).append(figures)
        if first is not None:
            samples.append((first, last))
        if (its_cluster, its_job) != (cluster, job_id):
            others.append(node)
    figures = [of_node(rows) for rows in by_node.values()]
    sums = [total([one[place] for one in figures]) for place in range(3)]
    first = min((first for first, _ in samples), default=None)
    return [*sums, first, max((last for _, last in samples), default=None)], others
