"""Whether a store is sound: the database itself, every chunk, every sum, every reference.

All is read in short transactions, each of which looks at things that belong together: others go on
writing meanwhile.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import func, select, text

from jobsight.errors import StoreError
from jobsight.model import Run
from jobsight.store import derived
from jobsight.store.bookings import HIGHEST, Bookings
from jobsight.store.chunk_faults import ChunkRow, Damaged, look
from jobsight.store.database import Database
from jobsight.store.progress import Progress, silent
from jobsight.store.retention import EXECUTABLES, SERIES
from jobsight.store.run_figures import figures, name_of_node, sums
from jobsight.store.tables import batches, chunks, metadata, paths, run_nodes, runs

#: Rows that are looked at in one transaction; of chunks, which are large, fewer.
AT_ONCE, CHUNKS_AT_ONCE = 500, 32
#: So many orphans of one kind are named.
NAMED = 20

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
    """Something that is wrong, and where."""

    where: str
    text: str
    repaired: bool = False


class Checked(msgspec.Struct):
    """What was looked at, and what was found."""

    chunks: int = 0
    nodes: int = 0
    runs: int = 0
    paths: int = 0
    faults: list[Fault] = msgspec.field(default_factory=list)
    #: What is no fault but may be of interest.
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def sound(self) -> bool:
        return all(fault.repaired for fault in self.faults)


class Checker:
    """One look through a store."""

    def __init__(
        self,
        database: Database,
        progress: Progress = silent,
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
        """Look at everything; chunks before nodes before runs, as repairs build on each other."""
        for look_at in (
            self._check_engine,
            self._check_references,
            self._check_chunks,
            self._check_nodes,
            self._check_runs,
            self._check_paths,
            self._check_batches,
            self._check_shares,
            self._take_notes,
        ):
            try:
                look_at()
            except StoreError as error:
                # A file that is damaged may not even let itself be read; the rest may.
                self._fault("the database", f"it cannot be read: {error}")
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
            query = select(*table.primary_key).where(~there).limit(NAMED)
            with self._database.read() as connection:
                for row in connection.execute(query):
                    named = ", ".join(map(str, row))
                    self._fault(
                        f"{table.name} {named}", f"there is no row of {key.column.table.name} to it"
                    )
            self._progress("references", done, len(keys))

    def _check_chunks(self) -> None:
        columns = [chunks.c[name] for name in ChunkRow._fields]
        for rows in self._pages(chunks, columns, CHUNKS_AT_ONCE, "chunks"):
            for values in rows:
                row = ChunkRow(*values)
                try:
                    faults, _ = look(row)
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
                # The id may be that of another chunk by now.
                found = transaction.execute(_CHUNK, {"id": row.id}).fetchone()
                if found is None or bytes(found[6]) != row.data:
                    return
                try:
                    _, right = look(row)
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
        for rows in self._pages(run_nodes, columns, AT_ONCE, "nodes of runs"):
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
        for rows in self._pages(runs, columns, AT_ONCE, "runs"):
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
                Bookings(transaction, time.time_ns()).sum_up(id)

    def _check_paths(self) -> None:
        for rows in self._pages(
            paths, [paths.c.id, paths.c.path, paths.c.digest], AT_ONCE, "paths"
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
            for spool, first in connection.execute(query.where(overlap).limit(NAMED)):
                self._fault(f"spool {spool}", f"batch {first} is noted twice")

    def _check_shares(self) -> None:
        with self._database.read() as connection:
            found = connection.scalar(text(f"SELECT count(*) {_ORPHANED_SHARES}")) or 0
        if found:
            if self._repair:
                with self._database.write() as transaction:
                    transaction.execute(f"DELETE {_ORPHANED_SHARES}")
            said = f"{found} rows belong to no run"
            self._fault(derived.contributions.name, said, self._repair)

    def _take_notes(self) -> None:
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
