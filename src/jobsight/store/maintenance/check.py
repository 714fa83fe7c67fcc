"""The integrity check of a store: the database, references, chunks, and the sums of runs.

:class:`Checker` reads related rows in short transactions, so that writers are not blocked. It can
repair what follows from other data.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Connection, Table, func, select, text

from jobsight.errors import StoreError
from jobsight.model import Run
from jobsight.store.checkpoints import read_checkpoint
from jobsight.store.database import Database
from jobsight.store.dead_letters import NODE_DAY, count_dead_letters, resolve
from jobsight.store.findings.rows import SQL as FINDINGS_SQL
from jobsight.store.findings.write import REMOVED
from jobsight.store.maintenance.dump import Progress, no_progress
from jobsight.store.read.search import count_unfindable
from jobsight.store.rollups.rollups import MONTHS, month_differences, month_rebuild
from jobsight.store.rollups.shares import EPOCH, first_day, month_of
from jobsight.store.schema.search_index import rebuild_statements
from jobsight.store.schema.statements import GPU_NAMES, HIGHEST, RunSums
from jobsight.store.schema.tables import (
    batches,
    chunks,
    gpus,
    job_properties,
    metadata,
    node_chunks,
    node_days,
    paths,
    run_nodes,
    runs,
)
from jobsight.store.series import codec
from jobsight.store.series.blocks import ARRIVED, SeriesBlock, Summary, join, summarise
from jobsight.store.series.codec import ChunkError, decompress
from jobsight.store.sql.load import load_statements
from jobsight.store.write.gpus import sum_rows
from jobsight.store.write.runs import RunWriter, of_node, total

logger = logging.getLogger(__name__)

#: Rows in one transaction; fewer of chunks, which are large.
BATCH_SIZE, CHUNKS_BATCH_SIZE = 500, 32
#: Orphans of one kind that are listed.
MAX_LISTED = 20

_SQL: Final = load_statements("maintenance")
_NODE_SQL: Final = load_statements("node_days")
_decode = msgspec.msgpack.Decoder(dict[str, Summary]).decode
_encode = msgspec.msgpack.Encoder().encode


class Fault(msgspec.Struct):
    """A fault and where it is."""

    where: str
    text: str
    repaired: bool = False


class CheckResult(msgspec.Struct):
    """The numbers of checked rows, and the faults."""

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
        self.result = CheckResult()

    def run(self) -> CheckResult:
        """Check chunks before nodes before runs, since repairs build on each other."""
        for check in (
            self._check_engine,
            self._check_references,
            self._check_chunks,
            self._check_nodes,
            self._check_node_days,
            self._check_runs,
            self._check_paths,
            self._check_batches,
            self._check_shares,
            self._check_months,
            self._check_findings,
            self._check_properties,
            self._check_search,
            self._check_dead_letters,
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
            # A constraint that is not validated holds for new rows only.
            with self._database.read() as connection:
                for (name,) in connection.execute(text(_SQL["invalid_constraints"])):
                    self._fault("the database", f"its constraint {name} is not valid")
            return
        with self._database.read() as connection:
            self._progress("the database itself", 0, 1)
            for (message,) in connection.execute(text("PRAGMA integrity_check")):
                if message != "ok":
                    self._fault("the database", message)
            self._progress("the database itself", 1, 1)

    def _check_references(self) -> None:
        keys = [
            (table, key)
            for table in metadata.sorted_tables
            for key in sorted(table.foreign_keys, key=lambda key: key.parent.name)
        ]
        for done, (table, key) in enumerate(keys, 1):
            referenced = select(1).where(key.column == key.parent).exists()
            query = select(*table.primary_key).where(key.parent.is_not(None), ~referenced)
            missing = f"it refers to a missing row of {key.column.table.name}"
            with self._database.read() as connection:
                for row in connection.execute(query.limit(MAX_LISTED)):
                    self._fault(f"{table.name} {', '.join(map(str, row))}", missing)
            self._progress("references", done, len(keys))

    def _check_properties(self) -> None:
        names = ("cluster", "job_id", "name", "value", "size")
        query = select(*(job_properties.c[name] for name in names))
        with self._database.read() as connection:
            rows = connection.execution_options(yield_per=CHUNKS_BATCH_SIZE).execute(query)
            for cluster, job_id, name, value, size in rows:
                expected = len(name.encode()) + len(value.encode())
                if size != expected:
                    where = f"property {name!r} of job {job_id} of cluster {cluster}"
                    self._fault(where, f"its size is {size}; expected {expected}")

    def _check_chunks(self) -> None:
        for kind in _CHUNKS:
            names = [kind.owner if name == "owner" else name for name in ChunkRow._fields]
            columns = [kind.table.c[name] for name in names]
            for rows in self._pages(kind.table, columns, CHUNKS_BATCH_SIZE, kind.what):
                for values in rows:
                    row = ChunkRow(*values)
                    try:
                        faults, _ = examine_chunk(row)
                    except DamagedChunk as error:
                        faults = [str(error)]
                    if faults:
                        self._handle_chunk(kind, row, "; ".join(faults))
                self.result.chunks += len(rows)

    def _handle_chunk(self, kind: _ChunkKind, row: ChunkRow, fault: str) -> None:
        repaired = False
        with self._database.read() as connection:
            where = f"chunk {row.id} of {kind.name(connection, row.owner)}"
        if self._repair or self._remove_damaged:
            with self._database.write() as transaction:
                # Another chunk may have the id by now.
                stored = transaction.execute(kind.data, {"id": row.id}).fetchone()
                if stored is None or bytes(stored[0]) != row.data:
                    return
                try:
                    _, expected = examine_chunk(row)
                except DamagedChunk:
                    if self._remove_damaged:
                        transaction.execute(kind.delete, {"id": row.id})
                        repaired, fault = True, f"{fault}; it was removed"
                else:
                    transaction.execute(kind.repair, expected._asdict() | {"id": row.id})
                    repaired = "not in order" not in fault
                if repaired and kind.letters is not None:
                    # The day can be completed.
                    resolve(transaction, kind.letters, str(row.owner))
        self._fault(where, fault, repaired)

    def _check_nodes(self) -> None:
        unjoined = (
            select(func.count())
            .where(chunks.c.run_node_id == run_nodes.c.id, chunks.c.level == 0)
            .scalar_subquery()
        )
        first, last = (
            select(extreme).where(chunks.c.run_node_id == run_nodes.c.id).scalar_subquery()
            for extreme in (func.min(chunks.c.first), func.max(chunks.c.last))
        )
        figures = (run_nodes.c.open_chunks, run_nodes.c.first_sample, run_nodes.c.last_sample)
        columns = [run_nodes.c.id, *figures, unjoined, first, last]
        for rows in self._pages(run_nodes, columns, BATCH_SIZE, "nodes of runs"):
            for id, open_chunks, first_sample, last_sample, count, earliest, latest in rows:
                faults = []
                if open_chunks != count:
                    faults.append(f"its column open_chunks is {open_chunks}, expected {count}")
                if earliest is not None and not (
                    first_sample is not None and first_sample <= earliest and last_sample >= latest
                ):
                    faults.append("its series reach beyond its first and last sample")
                if faults:
                    self._handle_node(id, "; ".join(faults))
            self.result.nodes += len(rows)

    def _handle_node(self, id: int, fault: str) -> None:
        with self._database.read() as connection:
            where = name_of_node(connection, id)
            query = select(run_nodes.c.cluster, run_nodes.c.job_id).where(run_nodes.c.id == id)
            job = connection.execute(query).one_or_none()
        if self._repair and job is not None:
            with self._database.write() as transaction:
                transaction.lock("job", [f"{job.cluster} {job.job_id}"])
                transaction.execute(_SQL["repair_node"], {"id": id})
        self._fault(where, fault, self._repair and job is not None)

    def _check_node_days(self) -> None:
        of_day = node_chunks.c.node_day_id == node_days.c.id
        unjoined = select(func.count()).where(of_day, node_chunks.c.level == 0).scalar_subquery()
        first, last = (
            select(extreme).where(of_day).scalar_subquery()
            for extreme in (func.min(node_chunks.c.first), func.max(node_chunks.c.last))
        )
        names = ("id", "cluster", "node", "open_chunks", "first_sample", "last_sample")
        columns = [*(node_days.c[name] for name in names), unjoined, first, last]
        for rows in self._pages(node_days, columns, BATCH_SIZE, "days of nodes"):
            for id, cluster, node, open_chunks, first_sample, last_sample, *found in rows:
                count, earliest, latest = found
                faults = []
                if open_chunks != count:
                    faults.append(f"its column open_chunks is {open_chunks}, expected {count}")
                if earliest is not None and not first_sample <= earliest <= latest <= last_sample:
                    faults.append("its series reach beyond its first and last sample")
                if faults:
                    self._handle_node_day(id, f"{cluster} {node}", "; ".join(faults))

    def _handle_node_day(self, id: int, lock: str, fault: str) -> None:
        with self._database.read() as connection:
            where = name_of_node_day(connection, id)
        if self._repair:
            with self._database.write() as transaction:
                transaction.lock("agent", [lock])
                transaction.execute(_NODE_SQL["repair_node_day"], {"id": id})
        self._fault(where, fault, self._repair)

    def _check_runs(self) -> None:
        names = RunSums._fields
        columns = [runs.c[name] for name in ("id", "cluster", "job_id", "start", *names)]
        last = 0
        for rows in self._pages(runs, columns, BATCH_SIZE, "runs"):
            with self._database.read() as connection:
                # Read again, together with the nodes.
                among = runs.c.id.between(last, rows[-1][0])
                stored = {row[0]: row for row in connection.execute(select(*columns).where(among))}
                seen = figures(connection, last, rows[-1][0])
                held = gpu_rows(connection, last, rows[-1][0])
            for id, cluster, job_id, start, *values in stored.values():
                expected, others = sums(seen.get(id, []), cluster, job_id)
                expected += sum_rows(held.get(id, []))
                where = f"run {Run(cluster, job_id, start)}"
                for node in others:
                    self._fault(where, f"its node {node} is that of another job")
                wrong = [
                    f"{name} is {value}, that of its nodes {correct}"
                    for name, value, correct in zip(names, values, expected, strict=True)
                    if value != correct and HIGHEST not in (value, correct)
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
                # In a damaged file a column may hold a value of any type.
                if not isinstance(path, bytes) or _digest(path) != digest:
                    self._fault(f"path {id}", "its digest is not that of its bytes")
            self.result.paths += len(rows)

    def _check_batches(self) -> None:
        batch, other = batches.alias(), batches.alias()
        overlap = (batch.c.first < other.c.first) & (batch.c.last >= other.c.first)
        query = select(batch.c.spool_id, other.c.first).where(batch.c.spool_id == other.c.spool_id)
        with self._database.read() as connection:
            for spool, first in connection.execute(query.where(overlap).limit(MAX_LISTED)):
                self._fault(f"spool {spool}", f"batch {first} is recorded twice")

    def _check_shares(self) -> None:
        with self._database.read() as connection:
            orphans = connection.scalar(text(_SQL["count_orphaned_contributions"]))
        if orphans:
            if self._repair:
                with self._database.write() as transaction:
                    transaction.execute(_SQL["delete_orphaned_contributions"])
            self._fault("contributions", f"{orphans} rows belong to no run", self._repair)

    def _check_months(self) -> None:
        """The rollups by month are the sums of those by day."""
        for by_day, by_month in MONTHS.items():
            with self._database.read() as connection:
                days = connection.scalars(text(f"SELECT DISTINCT day FROM {by_day}"))
                months = {month_of(day) for day in days}
                stored = connection.scalars(text(f"SELECT DISTINCT month FROM {by_month}"))
                ordered = sorted(months | {*stored})
            for done, month in enumerate(ordered, 1):
                values = {
                    "month": month,
                    "first": first_day(month),
                    "following": first_day(month + 1),
                }
                with self._database.read() as connection:
                    query = text(month_differences(by_day))
                    wrong = connection.scalar(query, values) or 0
                if wrong:
                    if self._repair:
                        self._rebuild_month(by_day, values)
                    self._fault(
                        f"{by_month} {month // 12 + 1970}-{month % 12 + 1:02d}",
                        f"{wrong:,} rows are not the sums of {by_day}",
                        self._repair,
                    )
                self._progress(by_month, done, len(ordered))

    def _rebuild_month(self, by_day: str, values: dict[str, int]) -> None:
        with self._database.write() as transaction:
            transaction.lock("sums", ["sums"])
            for statement in month_rebuild(by_day):
                transaction.execute(statement, values)

    def _check_findings(self) -> None:
        """The daily rollups are those of the findings, where retention has removed none of them."""
        with self._database.query() as transaction:
            removed = read_checkpoint(transaction, REMOVED)
            values = {"after": removed.value if removed is not None else -(2**31)}
            rows = transaction.execute(FINDINGS_SQL["differing_days"], values).fetchall()
        days = sorted({day for (day,) in rows})
        for done, day in enumerate(days, 1):
            if self._repair:
                with self._database.write() as transaction:
                    transaction.lock("sums", ["findings"])
                    for statement in ("delete_day", "rebuild_day"):
                        transaction.execute(FINDINGS_SQL[statement], {"day": day})
            wrong = sum(found == day for (found,) in rows)
            self._fault(
                f"findings_by_day {date.fromordinal(EPOCH + day)}",
                f"{wrong:,} rows are not the sums of findings",
                self._repair,
            )
            self._progress("findings_by_day", done, len(days))

    def _check_search(self) -> None:
        """Each run is found by its own text; what the index has beyond that is compared with the
        runs by each search."""
        missing = 0
        for rows in self._pages(runs, [runs.c.id], BATCH_SIZE, "search"):
            with self._database.query() as transaction:
                missing += count_unfindable(transaction, rows[0][0], rows[-1][0])
        if missing and self._repair:
            with self._database.write() as transaction:
                for statement in rebuild_statements(self._database.postgresql):
                    transaction.execute(statement)
        if missing:
            self._fault("run_search", f"{missing:,} runs are not found by their text", self._repair)

    def _check_dead_letters(self) -> None:
        with self._database.read() as connection:
            orphans = connection.scalar(text(_SQL["count_orphaned_dead_letters"]))
        if orphans:
            if self._repair:
                with self._database.write() as transaction:
                    transaction.execute(_SQL["delete_orphaned_dead_letters"])
            self._fault("dead_letters", f"{orphans} rows belong to no run", self._repair)
        for cluster, kind, count in count_dead_letters(self._database):
            self.result.notes.append(
                f"{count:,} dead letters of cluster {cluster}, {kind}; "
                "see jobsight store dead-letters"
            )

    def _add_notes(self) -> None:
        with self._database.read() as connection:
            unused = connection.scalar(text(_SQL["count_unused_paths"]))
            late = len(connection.execute(text(_SQL["late_runs"])).all())
        if unused:
            self.result.notes.append(f"{unused:,} paths are used by nothing; compact removes them")
        if late:
            self.result.notes.append(f"{late:,} runs got data after theirs was removed by age")

    def _pages(self, table: Any, columns: list[Any], limit: int, what: str) -> Iterator[list[Any]]:
        """All rows in pages, in the order of their ids."""
        with self._database.read() as connection:
            total_rows = connection.scalar(select(func.count()).select_from(table)) or 0
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
            self._progress(what, min(done, total_rows), total_rows)


def _digest(path: bytes) -> bytes:
    return hashlib.blake2b(path, digest_size=16).digest()


def name_of_node(connection: Connection, id: int) -> str:
    """A readable name of a row of ``run_nodes``."""
    query = (
        select(runs.c.cluster, runs.c.job_id, runs.c.start, run_nodes.c.node)
        .join(runs, runs.c.id == run_nodes.c.run_id)
        .where(run_nodes.c.id == id)
    )
    row = connection.execute(query).one_or_none()
    return f"run {Run(*row[:3])} on {row[3]}" if row else f"node {id} of no run"


def figures(connection: Connection, first: int, last: int) -> dict[int, list[Any]]:
    """The jobs and figures of the nodes of each run."""
    names = ("run_id", "cluster", "job_id", "node", "cpu_time", "memory_used_peak", "memory_peak")
    columns = [run_nodes.c[name] for name in (*names, "final", "first_sample", "last_sample")]
    nodes: dict[int, list[Any]] = {}
    query = select(*columns).where(run_nodes.c.run_id.between(first, last))
    for run_id, *values in connection.execute(query):
        nodes.setdefault(run_id, []).append(values)
    return nodes


def gpu_rows(connection: Connection, first: int, last: int) -> dict[int, list[Any]]:
    """The rows of the GPUs of each run, beginning with the node."""
    query = (
        select(run_nodes.c.run_id, run_nodes.c.node, *(gpus.c[name] for name in GPU_NAMES))
        .join(run_nodes, run_nodes.c.id == gpus.c.run_node_id)
        .where(run_nodes.c.run_id.between(first, last))
    )
    rows: dict[int, list[Any]] = {}
    for run_id, *values in connection.execute(query):
        rows.setdefault(run_id, []).append(values)
    return rows


def sums(nodes: list[Any], cluster: str, job_id: int) -> tuple[list[int | None], list[str]]:
    """The figures of a run computed from its nodes, and the nodes that belong to another job."""
    by_node: dict[str, list[Any]] = {}
    samples: list[tuple[int, int]] = []
    others = []
    open_nodes: int | None = None
    for its_cluster, its_job, node, *figures, final, first, last in nodes:
        open_nodes = (open_nodes or 0) + (not final)
        by_node.setdefault(node, []).append(figures)
        if first is not None:
            samples.append((first, last))
        if (its_cluster, its_job) != (cluster, job_id):
            others.append(node)
    figures = [of_node(rows) for rows in by_node.values()]
    sums = [total([row[index] for row in figures]) for index in range(3)]
    first = min((first for first, _ in samples), default=None)
    last = max((last for _, last in samples), default=None)
    counts = (open_nodes, len(nodes) or None, len(by_node) or None)
    return [*sums, *counts, first, last], others


def name_of_node_day(connection: Connection, id: int) -> str:
    """A readable name of a row of ``node_days``."""
    columns = [node_days.c[name] for name in ("cluster", "node", "day")]
    row = connection.execute(select(*columns).where(node_days.c.id == id)).one_or_none()
    if row is None:
        return f"day {id} of no node"
    return f"day {date.fromordinal(EPOCH + row.day)} of node {row.node} of cluster {row.cluster}"


class _ChunkKind(NamedTuple):
    """A table of chunks, and the statements for one of them."""

    table: Table
    owner: str
    what: str
    name: Callable[[Connection, int], str]
    data: str
    delete: str
    repair: str
    #: The kind of the dead letters of its owners.
    letters: str | None = None


_CHUNKS: Final = (
    _ChunkKind(
        *(chunks, "run_node_id", "chunks", name_of_node),
        *(_SQL[name] for name in ("chunk_data", "delete_chunk", "repair_chunk")),
    ),
    _ChunkKind(
        *(node_chunks, "node_day_id", "chunks of nodes", name_of_node_day),
        *(_NODE_SQL["one_chunk"], _NODE_SQL["delete_chunk"], _NODE_SQL["repair_chunk"], NODE_DAY),
    ),
)


class ChunkRow(NamedTuple):
    """A row of ``chunks`` or ``node_chunks``."""

    id: int
    #: The row that it belongs to, of ``run_nodes`` or ``node_days``.
    owner: int
    first: int
    last: int
    rows: int
    level: int
    data: bytes
    summary: bytes | None
    resolution: int | None


class DamagedChunk(Exception):
    """The data of a chunk cannot be read, so that its columns cannot be repaired."""


class ExpectedColumns(NamedTuple):
    """The columns of a chunk, computed from its data."""

    first: int
    last: int
    rows: int
    #: The stored summary if it is correct.
    summary: bytes | None


def examine_chunk(row: ChunkRow) -> tuple[list[str], ExpectedColumns]:
    """The faults of a chunk, and the columns that it should have."""
    try:
        block = SeriesBlock(*codec.decode(row.data))
    except ChunkError as error:
        raise DamagedChunk(str(error)) from None
    times = block.times
    if not len(times):
        raise DamagedChunk("a chunk of a series has no rows")
    expected = ExpectedColumns(int(times.min()), int(times.max()), len(times), row.summary)
    faults = [
        f"its column {name} is {getattr(row, name)}, expected {getattr(expected, name)}"
        for name in ("first", "last", "rows")
        if getattr(row, name) != getattr(expected, name)
    ]
    if row.level > ARRIVED and bool((times[1:] <= times[:-1]).any()):
        faults.append("its times are not in order")
    if fault := _summary_fault(row, block, expected):
        faults.append(fault)
        # The extremes of downsampled rows are lost; those of the rest are the best estimate.
        summary = codec.compress(_encode(summarise(join([block]))))
        expected = expected._replace(summary=summary)
    return faults, expected


def _summary_fault(row: ChunkRow, block: SeriesBlock, columns: ExpectedColumns) -> str:
    if row.summary is None:
        return "" if row.level == ARRIVED else "its summary is missing"
    try:
        stored = _decode(decompress(row.summary))
    except (ChunkError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"its summary cannot be read ({error})"
    if row.resolution is not None:
        # It is the summary of the rows before downsampling: only its times can be compared.
        outside = [
            name
            for name, part in stored.items()
            if part.first_time < columns.first or part.last_time > columns.last
        ]
        if outside or stored.keys() != summarise(block).keys():
            return "its summary is not that of a downsampled series"
        return ""
    expected = summarise(block)
    if stored.keys() != expected.keys():
        return "its summary names other metrics than its bytes"
    wrong = [name for name in stored if not _agree(stored[name], expected[name])]
    return f"its summary of {', '.join(sorted(wrong))} is not that of its bytes" if wrong else ""


def _agree(summary: Summary, other: Summary) -> bool:
    """Equal within rounding: another processor may add in another order."""
    pairs = zip(msgspec.structs.astuple(summary), msgspec.structs.astuple(other), strict=True)
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9)
        for a, b in pairs
    )
