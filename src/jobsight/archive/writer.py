"""Brings finished runs into the archive, each exactly once however often it is cut short.

What is being written is noted in the store first. The files come next, that of the runs last, and
one transaction then marks the runs and takes the note back: a note that is found later names the
files of an attempt that was killed, and they go.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Connection, select

from jobsight.archive.lock import alone
from jobsight.archive.part import Part, month_of, remove_part
from jobsight.archive.place import ArchiveError, Place
from jobsight.archive.reader import Reader
from jobsight.archive.restore import restore
from jobsight.archive.rows import RunToArchive, gather, portions, stretches
from jobsight.errors import JobsightError
from jobsight.store.read.external import ArchivedRun
from jobsight.store.schema.tables import marks, runs
from jobsight.store.store import Store

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
    place: Place,
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
    with alone(store.database):
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

    def __init__(self, store: Store, place: Place, before: int, clock: Callable[[], int]) -> None:
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
                "INSERT INTO marks (name, value, text) VALUES (:name, 0, :text)",
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
            transaction.execute("DELETE FROM marks WHERE name = :name", {"name": _NOTE})

    def remove_leftovers(self) -> None:
        """Remove what an attempt that was killed left behind."""
        for note in _notes(self._store):
            # Of another archive than that of the settings: no run knows of it, it counts for none.
            if note.location == self._place.location:
                self.done.removed += remove_part(self._place, note.folder, note.part)
            self._mark("", [])


def _notes(store: Store) -> list[_Note]:
    with store.database.read() as connection:
        found = connection.scalars(select(marks.c.text).where(marks.c.name == _NOTE))
        return [msgspec.json.decode(text, type=_Note) for text in found if text is not None]


def parts_under_way(store: Store) -> set[str]:
    """What is being written, or was when its writer was killed."""
    return {note.part for note in _notes(store)}
