"""Brings finished runs into the archive, each exactly once however often it is cut short.

What is being written is noted in the store first. The files come next, that of the runs last, and
one transaction then marks the runs and takes the note back: a note that is found later names the
files of an attempt that was killed, and they go.

Runs of the store as rows of the archive's tables.

One archiver at a time on a store, whoever started it and whatever way it ends.

Archives in the background of a server.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Connection, func, select, text

from jobsight.archive.part import Part, month_of, remove_part
from jobsight.archive.reader import Reader
from jobsight.archive.restore import restore
from jobsight.archive.schema import Stretch, metrics_of
from jobsight.archive.storage import ArchiveError, Storage
from jobsight.config.settings import ArchiveSettings
from jobsight.errors import JobsightError
from jobsight.model import SECOND, JobTotals
from jobsight.store.database import Database
from jobsight.store.read.external import ArchivedRun
from jobsight.store.schema.statements import INFO_NAMES, SUMMED_FIGURES
from jobsight.store.schema.tables import (
    checkpoints,
    chunks,
    executables,
    paths,
    run_details,
    run_nodes,
    runs,
    steps,
)
from jobsight.store.series import codec
from jobsight.store.series.curves import MAX_VALUES, SeriesBlock, join
from jobsight.store.store import Store
from jobsight.store.write.runs import info_from_columns
from jobsight.text import readable_path
from jobsight.util.locks import AlreadyRunning, LockFile
from jobsight.util.workers import PeriodicWorker

#: Runs of one part at most: they are marked in one transaction.
PART_RUNS = 10_000
#: Bytes after which a part is long enough.
PART_SIZE = 512 << 20
#: Runs that are read at once from the store.
_AT_ONCE = 200

#: The name of the note among the marks of the store.
_NOTE = "archive"


class Archived(msgspec.Struct):
    """What a round did, or would do."""

    runs: int = 0
    #: Of these, runs that had changed since they were archived.
    again: int = 0
    parts: int = 0
    samples: int = 0
    size: int = 0
    #: Files of an attempt that was cut short.
    removed: int = 0
    #: Runs by cluster and month.
    months: dict[str, int] = msgspec.field(default_factory=dict)
    #: Why runs were left out, a sentence each.
    problems: list[str] = msgspec.field(default_factory=list)


class _Note(msgspec.Struct):
    location: str
    folder: str
    part: str


class _Group(NamedTuple):
    cluster: str
    month: str
    ids: Sequence[int]


def write_archive(
    store: Store,
    place: Storage,
    before: int,
    *,
    dry_run: bool = False,
    anew: bool = False,
    progress: Callable[[int, int], None] = lambda done, whole: None,
    clock: Callable[[], int] = time.time_ns,
) -> Archived:
    """Archive all runs that ended before a time and are not there as they are now.

    Where the place has none of the files that the store knows of, it is refused unless ``anew``.
    """
    this = _Round(store, place, before, clock)
    if dry_run:
        this.done.runs = sum(len(group.ids) for group in this.pending())
        return this.done
    with archive_lock(store.database):
        place.prepare()
        if not anew:
            this.check_place()
        this.remove_leftovers()
        this.withdraw()
        groups = this.pending()
        whole = sum(len(group.ids) for group in groups)
        for group in groups:
            ids = group.ids
            while len(ids):
                part = Part(place, group.cluster, group.month, clock())
                ids = ids[this.write(part, ids, lambda done: progress(done, whole)) :]
    return this.done


class _Round:
    """One pass over what waits to be archived."""

    def __init__(self, store: Store, place: Storage, before: int, clock: Callable[[], int]) -> None:
        self.done = Archived()
        self._store = store
        self._place = place
        self._reader = Reader(place)
        self._before = before
        self._clock = clock
        #: The ids of runs whose version under another start was taken back.
        self._withdrawn: set[int] = set()

    def _waits(self) -> ColumnElement[bool]:
        return (runs.c.end < self._before) & runs.c.archived_updated.is_(None)

    def pending(self) -> list[_Group]:
        """The ids of the runs that wait, by cluster and month, in the order of their job ids."""
        query = (
            select(runs.c.cluster, runs.c.start, runs.c.job_id, runs.c.id, runs.c.archived)
            .where(self._waits())
            .execution_options(stream_results=True)
        )
        # Two numbers a run: a store may have millions that wait.
        found: dict[tuple[str, str], tuple[array[int], array[int]]] = {}
        with self._store.database.read() as connection:
            for cluster, start, job_id, run_id, archived in connection.execute(query):
                key = (cluster, month_of(start))
                job_ids, ids = found.setdefault(key, (array("q"), array("q")))
                job_ids.append(job_id)
                ids.append(run_id)
                self.done.again += archived is not None
        groups = []
        for (cluster, month), (job_ids, ids) in sorted(found.items()):
            order = np.lexsort((np.array(ids), np.array(job_ids)))
            groups.append(_Group(cluster, month, np.array(ids)[order].tolist()))
            self.done.months[f"{cluster} {month}"] = len(ids)
        return groups

    def write(self, part: Part, ids: Sequence[int], say: Callable[[int], None]) -> int:
        """Archive the first of some runs; how many of the ids are done with."""
        taken = 0
        marked: list[dict[str, Any]] = []
        with self._noted(part):
            while taken < min(len(ids), PART_RUNS) and part.size() < PART_SIZE:
                some = ids[taken : min(taken + _AT_ONCE, PART_RUNS)]
                whole = self._complete(some)
                with self._store.database.read() as connection:
                    for portion in portions(connection, whole):
                        marked += self._add(part, connection, gather(connection, portion))
                taken += len(some)
                say(self.done.runs + len(marked))
            if not marked:
                part.drop()
                self._mark("", [])
                return taken
            entry = part.put()
        self._mark(entry.name, marked)
        self.done.runs += len(marked)
        self.done.parts += 1
        self.done.size += entry.size + sum(file.size for file in part.files)
        return taken

    def _add(
        self, part: Part, connection: Connection, found: list[RunToArchive]
    ) -> Iterator[dict[str, Any]]:
        """Bring runs into a part; what is to be marked of them."""
        # One that got another start just now waits for the next round.
        found = [
            run
            for run in found
            if run.archived_start in (None, run.start) or run.id in self._withdrawn
        ]
        for stretch in stretches(connection, found):
            part.add_series(stretch)
        for run in found:
            part.add("nodes", list(run.nodes.values()))
            part.add("executables", run.executables)
            part.add("steps", run.steps)
            part.add_runs([run.row])
            self.done.samples += run.row["sample_count"]
            yield {"id": run.id, "updated": run.updated, "start": run.start}

    def _complete(self, ids: Sequence[int]) -> list[int]:
        """Bring back what was pruned of runs that changed afterwards: a version is whole. The ids
        of all runs but those of which that fails."""
        query = select(
            runs.c.id, runs.c.archived, runs.c.cluster, runs.c.job_id, runs.c.archived_start
        ).where(runs.c.id.in_(ids), runs.c.pruned != 0, runs.c.archived.is_not(None))
        with self._store.database.read() as connection:
            pruned = connection.execute(query).all()
        failed = set()
        for run_id, *archived in pruned:
            run = ArchivedRun(*archived)
            try:
                restore(self._store, self._reader, run, into=run_id)
            except ArchiveError as error:
                failed.add(run_id)
                self.done.problems.append(
                    f"job {run.job_id} of {run.cluster} changed, but {error}; it waits until that "
                    "is there again"
                )
        return [run_id for run_id in ids if run_id not in failed]

    def check_place(self) -> None:
        """Refuse a place that is empty though the store knows of files there: a disk that is not
        mounted must not get the archive's next part."""
        query = select(runs.c.archived).where(runs.c.archived.is_not(None)).limit(1)
        with self._store.database.read() as connection:
            known = connection.scalar(query)
        if known is not None and not self._place.exists(known):
            raise ArchiveError(
                f"the archive {self._place.location} has no {known}, which the store knows of: is "
                "it mounted, is archive.location right? Another archive is begun by --anew"
            )

    def withdraw(self) -> None:
        """Take back the versions of runs that have another start by now."""
        query = (
            select(runs.c.id, runs.c.cluster, runs.c.job_id, runs.c.archived_start, runs.c.updated)
            .where(self._waits())
            .where(runs.c.archived_start != runs.c.start)
        )
        with self._store.database.read() as connection:
            found = connection.execute(query).all()
        parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for _, cluster, job_id, start, updated in found:
            row = {"job_id": job_id, "start": start, "updated": updated, "withdrawn": True}
            parts.setdefault((cluster, month_of(start)), []).append(row | {"sample_count": 0})
        for (cluster, month), rows in parts.items():
            part = Part(self._place, cluster, month, self._clock())
            with self._noted(part):
                part.add_runs(rows)
                part.put()
            self._mark("", [])
        self._withdrawn = {row.id for row in found}

    @contextlib.contextmanager
    def _noted(self, part: Part) -> Iterator[None]:
        """Note what is being written; where that fails, all of it goes again."""
        note = _Note(self._place.location, part.folder, part.name)
        with self._store.database.write() as transaction:
            transaction.execute(
                "INSERT INTO checkpoints (name, value, text) VALUES (:name, 0, :text)",
                {"name": _NOTE, "text": msgspec.json.encode(note).decode()},
            )
        try:
            yield
        except BaseException:
            # Where this fails too, the note stays and the next round removes the rest.
            with contextlib.suppress(JobsightError):
                part.drop()
                self._mark("", [])
            raise

    def _mark(self, file: str, marked: list[dict[str, Any]]) -> None:
        """Take the note back, and say of runs where they are archived."""
        with self._store.database.write() as transaction:
            transaction.execute_many(
                # One that has changed since it was read waits for the next round.
                "UPDATE runs SET archived = :file, archived_start = :start, "
                "archived_updated = CASE WHEN updated = :updated THEN updated END WHERE id = :id",
                [row | {"file": file} for row in marked],
            )
            transaction.execute("DELETE FROM checkpoints WHERE name = :name", {"name": _NOTE})

    def remove_leftovers(self) -> None:
        """Remove what an attempt that was killed left behind."""
        for note in _notes(self._store):
            # Of another archive than that of the settings: no run knows of it, it counts for none.
            if note.location == self._place.location:
                self.done.removed += remove_part(self._place, note.folder, note.part)
            self._mark("", [])


def _notes(store: Store) -> list[_Note]:
    with store.database.read() as connection:
        found = connection.scalars(select(checkpoints.c.text).where(checkpoints.c.name == _NOTE))
        return [msgspec.json.decode(text, type=_Note) for text in found if text is not None]


def parts_under_way(store: Store) -> set[str]:
    """What is being written, or was when its writer was killed."""
    return {note.part for note in _notes(store)}


#: Nodes of runs whose rows are held at once.
_NODES_AT_ONCE = 1000

_decode_totals = msgspec.msgpack.Decoder(JobTotals).decode
_TOTALS = tuple(name for name in JobTotals.__struct_fields__ if name != "time")
_RUN = ("job_id", "start", "updated", "provisional", "cpu_time", "memory_used_peak", "memory_peak")
_NODE = ("node", "boot_id", "birth", "sluid", "restart_count", "epoch", "written", "final")
_EXECUTABLE = ("path", "path_known", "epoch", "sequence", *SUMMED_FIGURES, "peak_memory")
_STEP = ("step", "tasks", "cpu_time", "cpu_overhead", "memory_peak", "oom_kills", "ended")


class RunToArchive(NamedTuple):
    """A run and all that belongs to it but its curves."""

    id: int
    updated: int
    start: int
    #: The start under which the archive holds an older version.
    archived_start: int | None
    row: dict[str, Any]
    nodes: dict[int, dict[str, Any]]
    executables: list[dict[str, Any]]
    steps: list[dict[str, Any]]


def portions(connection: Connection, ids: Sequence[int]) -> Iterator[list[int]]:
    """The ids in pieces whose runs have not too many nodes to be held at once."""
    query = (
        select(run_nodes.c.run_id, func.count().label("nodes"))
        .where(run_nodes.c.run_id.in_(ids))
        .group_by(run_nodes.c.run_id)
    )
    nodes = {row.run_id: row.nodes for row in connection.execute(query)}
    some: list[int] = []
    held = 0
    for run_id in ids:
        held += nodes.get(run_id, 0)
        if some and held > _NODES_AT_ONCE:
            yield some
            some, held = [], nodes.get(run_id, 0)
        some.append(run_id)
    yield some


def gather(connection: Connection, ids: Sequence[int]) -> list[RunToArchive]:
    """The runs with these ids, in the order of their job ids."""
    query = (
        select(runs, run_details.c.data.label("details"))
        .join(run_details, run_details.c.run_id == runs.c.id, isouter=True)
        .where(runs.c.id.in_(ids))
        .order_by(runs.c.job_id, runs.c.start)
    )
    found = {}
    for row in connection.execute(query).mappings():
        found[row["id"]] = RunToArchive(
            id=row["id"],
            updated=row["updated"],
            start=row["start"],
            archived_start=row["archived_start"],
            row=_run(row),
            nodes={},
            executables=[],
            steps=[],
        )
    owner: dict[int, RunToArchive] = {}
    of_runs = select(run_nodes).where(run_nodes.c.run_id.in_(ids)).order_by(run_nodes.c.id)
    for row in connection.execute(of_runs).mappings():
        run = owner[row["id"]] = found[row["run_id"]]
        run.nodes[row["id"]] = _node(run, row)
    _add_executables(connection, ids, owner)
    _add_steps(connection, ids, owner)
    for run in found.values():
        run.row["node_count"] = len(run.nodes)
        run.row["executable_count"] = len(run.executables)
        run.row["step_count"] = len(run.steps)
    return list(found.values())


def _run(row: Any) -> dict[str, Any]:
    columns = {name: row[name] for name in INFO_NAMES}
    info = info_from_columns(row["cluster"], row["job_id"], None, columns)
    made = {name: getattr(info, name) for name in INFO_NAMES}
    made["nodes"] = None if info.nodes is None else list(info.nodes)
    made["tres"] = None if info.tres is None else list(info.tres.items())
    made |= {name: row[name] for name in _RUN}
    made |= {"first_seen": row["first_seen"], "last_seen": row["last_seen"]}
    return made | {"withdrawn": False, "sample_count": 0, "details": row["details"]}


def _node(run: RunToArchive, row: Any) -> dict[str, Any]:
    totals = None if row["totals"] is None else _decode_totals(row["totals"])
    coverage = row["coverage"]
    if coverage is not None:
        coverage = msgspec.json.encode(msgspec.msgpack.decode(coverage)).decode()
    made = {"job_id": row["job_id"], "start": run.start, "sighting": len(run.nodes)}
    made |= {name: row[name] for name in (*_NODE, "first_sample", "last_sample")}
    made |= {name: getattr(totals, name, None) for name in _TOTALS}
    made["counted"] = None if totals is None else totals.time
    return made | {"coverage": coverage, "metrics": [], "sample_count": 0}


def _sighting(run: RunToArchive, run_node_id: int) -> dict[str, Any]:
    node = run.nodes[run_node_id]
    return {name: node[name] for name in ("job_id", "start", "sighting", "node")}


def _seen(row: Any) -> dict[str, Any]:
    # Zero stands for a time that the agent did not know.
    return {name: row[name] or None for name in ("first_seen", "last_seen")}


def _add_executables(
    connection: Connection, ids: Sequence[int], owner: dict[int, RunToArchive]
) -> None:
    query = (
        select(executables, paths.c.path)
        .join(run_nodes, run_nodes.c.id == executables.c.run_node_id)
        .join(paths, paths.c.id == executables.c.path_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(executables.c.run_node_id, paths.c.path, executables.c.epoch)
    )
    for row in connection.execute(query).mappings():
        run = owner[row["run_node_id"]]
        made = _sighting(run, row["run_node_id"]) | {name: row[name] for name in _EXECUTABLE}
        run.executables.append(made | _seen(row) | {"path_text": readable_path(bytes(row["path"]))})


def _add_steps(connection: Connection, ids: Sequence[int], owner: dict[int, RunToArchive]) -> None:
    query = (
        select(steps)
        .join(run_nodes, run_nodes.c.id == steps.c.run_node_id)
        .where(run_nodes.c.run_id.in_(ids))
        .order_by(steps.c.run_node_id, steps.c.first_seen, steps.c.step)
    )
    for row in connection.execute(query).mappings():
        run = owner[row["run_node_id"]]
        made = _sighting(run, row["run_node_id"]) | {name: row[name] for name in _STEP}
        run.steps.append(made | _seen(row))


def stretches(connection: Connection, found: Sequence[RunToArchive]) -> Iterator[Stretch]:
    """The curves of some runs, sighting by sighting; the rows learn what there is."""
    query = (
        select(chunks.c.run_node_id, chunks.c.data)
        .join(run_nodes, run_nodes.c.id == chunks.c.run_node_id)
        .where(run_nodes.c.run_id.in_([run.id for run in found]))
        .order_by(chunks.c.run_node_id, chunks.c.id)
        .execution_options(stream_results=True, max_row_buffer=16)
    )
    owner = {run_node_id: run for run in found for run_node_id in run.nodes}
    for run_node_id, curves in _joined(connection.execute(query)):
        run = owner[run_node_id]
        node = run.nodes[run_node_id]
        known = dict(node["metrics"])
        node["metrics"] = list((known | metrics_of(curves)).items())
        node["sample_count"] += len(curves.times)
        run.row["sample_count"] += len(curves.times)
        yield Stretch(**_sighting(run, run_node_id), part="", curves=curves)


def _joined(found: Any) -> Iterator[tuple[int, SeriesBlock]]:
    """Chunks put together, as far as one reader's memory allows."""
    waiting: list[SeriesBlock] = []
    owner, values = 0, 0
    for run_node_id, data in found:
        part = SeriesBlock(*codec.decode(data))
        size = len(part.times) * len(part.columns)
        if waiting and (run_node_id != owner or values + size > MAX_VALUES):
            yield owner, join(waiting)
            waiting, values = [], 0
        waiting.append(part)
        owner, values = run_node_id, values + size
    if waiting:
        yield owner, join(waiting)


#: Beside the families of jobsight.store.database.
_NUMBER = 28530


@contextmanager
def archive_lock(database: Database) -> Iterator[None]:
    """Keep other archivers off the store; :class:`AlreadyRunning` where there is one."""
    what = f"an archiver of {database.where}"
    if not database.postgresql:
        lock = LockFile(Path(f"{database.where}.archiving"), what)
        try:
            yield
        finally:
            lock.close()
        return
    # A lock of the connection: it goes with the process.
    with database.engine.connect() as connection:
        taken = text(f"SELECT pg_try_advisory_lock({_NUMBER}, 0)")
        if not connection.scalar(taken):
            raise AlreadyRunning(f"{what} is already running")
        connection.commit()
        try:
            yield
        finally:
            connection.execute(text(f"SELECT pg_advisory_unlock({_NUMBER}, 0)"))
            connection.commit()


logger = logging.getLogger("jobsight.archive")

DAY = 86400 * SECOND


class Stopped(Exception):
    """The server ends; what was being written is dropped, and comes next time."""


def archiving(store: Store, settings: ArchiveSettings) -> PeriodicWorker:
    """Archive beside what the block does, every ``archive.interval`` seconds."""

    def work(stopped: threading.Event) -> None:
        with suppress(Stopped):
            archive_once(store, settings, stopped)

    return PeriodicWorker(
        "archive", work, settings.interval, logger=logger, failure="the archive is not written"
    )


def archive_once(store: Store, settings: ArchiveSettings, stopped: threading.Event) -> None:
    """One round, given up after the next few runs when the server ends."""
    from jobsight.archive.storage import open_storage
    # MOVED

    def watch(done: int, whole: int) -> None:
        if stopped.is_set():
            raise Stopped

    before = time.time_ns() - round(settings.older_than * DAY)
    done = write_archive(store, open_storage(settings), before, progress=watch)
    for problem in done.problems:
        logger.warning("the archive waits: %s", problem)
    if done.runs:
        logger.info("%d runs archived in %d parts", done.runs, done.parts)
