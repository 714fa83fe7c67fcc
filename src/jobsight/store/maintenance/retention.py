"""Retention: downsample and delete old data, in short transactions that do not block writers.

:func:`classes` translates the settings to classes of data with the runs that are due;
:class:`Pruner` works through them; :func:`retention_worker` does so once a day in the background
of a server, in one of several. Ages count from the end of a run; a run without a known end is
never touched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select, text

from jobsight.config.settings import RetentionSettings
from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.database import Database, Transaction
from jobsight.store.maintenance.dump import Progress, no_progress
from jobsight.store.schema.tables import chunks, run_nodes
from jobsight.store.series.blocks import Downsampled, downsample_chunks
from jobsight.store.series.codec import ChunkError
from jobsight.store.store import Store
from jobsight.util.workers import in_background

#: Nodes of runs in one transaction.
NODES_BATCH_SIZE = 128
#: The same for downsampling, which reads all chunks of the nodes.
DOWNSAMPLED_BATCH_SIZE = 32
PATHS_BATCH_SIZE = 500
#: The pause after each transaction is as long as it took, up to these seconds: writers of other
#: processes can only retry.
MAX_PAUSE = 1.0

_CHUNKS = """
    SELECT count(*), coalesce(sum(length(data)), 0) FROM chunks WHERE run_node_id IN (:keys)
"""
_CHUNK_IDS = "SELECT id FROM chunks WHERE run_node_id = :id ORDER BY id"
_REMOVE_CHUNKS = "DELETE FROM chunks WHERE run_node_id = :id"
_NONE_OPEN = "UPDATE run_nodes SET open_chunks = 0 WHERE id = :id AND open_chunks <> 0"
_PATHS = "SELECT path_id FROM executables WHERE run_node_id IN (:keys)"
_STEPS = "SELECT count(*) FROM steps WHERE run_node_id IN (:keys)"
_REMOVE_EXECUTABLES = "DELETE FROM executables WHERE run_node_id = :id"
_REMOVE_STEPS = "DELETE FROM steps WHERE run_node_id = :id"
_UNUSED_PATHS = """
    SELECT id FROM paths WHERE id IN (:keys)
        AND NOT EXISTS (SELECT 1 FROM executables WHERE path_id = paths.id)
"""
_REMOVE_PATH = "DELETE FROM paths WHERE id = :id"
#: The daily rollups keep the hours: the share of the run is deleted, not subtracted.
_REMOVE_RUN = (
    "DELETE FROM run_nodes WHERE run_id = :id",
    "DELETE FROM contributions WHERE run_id = :id AND NOT dropped",
    "DELETE FROM run_details WHERE run_id = :id",
    "DELETE FROM runs WHERE id = :id",
)
#: Of each export by its name, since its key begins with that.
_REMOVE_EXPORTED = "DELETE FROM exported WHERE name = :name AND run_id = :id"
_MARK = "UPDATE runs SET pruned = pruned | :bit WHERE id = :id"
_INSERT_DOWNSAMPLED = """
    INSERT INTO chunks (run_node_id, first, last, rows, level, data, summary, resolution)
    VALUES (:run_node_id, :first, :last, :rows, 2, :data, :summary, :resolution)
"""


class Pruned(msgspec.Struct):
    """How much of one class went, or would go."""

    runs: int = 0
    #: Chunks, executables and steps, or nodes of runs.
    rows: int = 0
    #: Of series: compressed, as they were and as they are.
    bytes: int = 0
    bytes_left: int = 0
    #: Old enough, but not archived or not in the daily rollups yet.
    waiting: int = 0
    #: Chunks that cannot be read; they stay as they are.
    damaged: int = 0


class _Unit(NamedTuple):
    """The work of one transaction: some nodes, and the runs whose last nodes are among them."""

    runs: dict[int, Due]
    #: With the id of their run.
    nodes: list[tuple[int, int]]
    finished: list[Due]


def prune(
    database: Database,
    keep: RetentionSettings,
    now: int | None = None,
    progress: Progress = no_progress,
    rest: Callable[[float], object] = time.sleep,
) -> dict[str, Pruned]:
    """Downsample and delete what the settings no longer keep; returns how much, by class.

    ``rest`` is called with a pause after each transaction; a true result ends the work.
    """
    return Pruner(database, keep, time.time_ns() if now is None else now, progress, rest).run()


class Pruner:
    """One round over the store."""

    def __init__(
        self,
        database: Database,
        keep: RetentionSettings,
        now: int,
        progress: Progress,
        rest: Callable[[float], object],
    ) -> None:
        self._database = database
        self._classes = classes(keep, now)
        self._resolution = round(keep.resolution * 1e9)
        self._progress = progress
        self._rest = rest
        self._stopped = False
        self._exports = _exports(database)
        self._paths: set[int] = set()
        self.taken: dict[str, Pruned] = {}

    def run(self) -> dict[str, Pruned]:
        for one in self._classes:
            self._work_through(one, self.taken.setdefault(one.name, Pruned()))
        self._remove_paths()
        return self.taken

    def _work_through(self, one: Class, taken: Pruned) -> None:
        with self._database.read() as connection:
            whole, taken.waiting = _runs(connection, one)
        at_once = DOWNSAMPLED_BATCH_SIZE if one.name == "downsampled" else NODES_BATCH_SIZE
        for page in one.pages(self._database):
            with self._database.read() as connection:
                nodes = _nodes_of(connection, page)
            for unit in _units(page, nodes, at_once):
                if self._stopped:
                    return
                self._do(one, unit, taken)
                self._progress(f"runs, {one.name}", min(taken.runs, whole), whole)

    def _do(self, one: Class, unit: _Unit, taken: Pruned) -> None:
        downsampled = self._downsample(unit.nodes, taken) if one.name == "downsampled" else {}
        began = time.monotonic()
        with self._database.write() as transaction:
            transaction.lock("job", {run.lock for run in unit.runs.values()})
            # A record may have come meanwhile: then it waits for the next round.
            found = f"SELECT id FROM runs WHERE id IN (:keys) AND {one.where()}"
            due = {id for (id,) in transaction.look_up(found, _keys(unit.runs))}
            nodes = [id for id, run_id in unit.nodes if run_id in due]
            if one.name == "downsampled":
                _put(transaction, {id: downsampled[id] for id in nodes if id in downsampled}, taken)
            if one.name in ("series", "runs"):
                taken.rows += _remove_series(transaction, nodes, taken)
            if one.name in ("executables", "runs"):
                taken.rows += self._remove_executables(transaction, nodes)
            finished = [run.id for run in unit.finished if run.id in due]
            if one.name == "runs":
                _remove_runs(transaction, finished, self._exports)
            else:
                transaction.execute_rows(_MARK, [(one.bit, id) for id in finished])
        taken.runs += len(finished)
        self._pause(time.monotonic() - began)

    def _downsample(
        self, nodes: list[tuple[int, int]], taken: Pruned
    ) -> dict[int, tuple[list[int], list[Downsampled]]]:
        """The replacements of chunks, computed before the write lock is taken."""
        found = {}
        for node, _ in nodes:
            query = select(chunks.c.id, chunks.c.data).where(chunks.c.run_node_id == node)
            with self._database.read() as connection:
                rows = connection.execute(query.order_by(chunks.c.id)).all()
            try:
                made = downsample_chunks([data for _, data in rows], self._resolution)
            except ChunkError:
                taken.damaged += 1
                continue
            if made:
                found[node] = [id for id, _ in rows], made
        return found

    def _remove_executables(self, transaction: Transaction, nodes: list[int]) -> int:
        keys = _keys(nodes)
        found = [path for (path,) in transaction.look_up(_PATHS, keys)]
        steps: int = sum(count for (count,) in transaction.look_up(_STEPS, keys))
        self._paths.update(found)
        for statement in (_REMOVE_EXECUTABLES, _REMOVE_STEPS):
            transaction.execute_rows(statement, keys)
        return len(found) + steps

    def _remove_paths(self) -> None:
        """Remove the paths that nothing refers to any more."""
        waiting = sorted(self._paths)
        taken = self.taken["paths"] = Pruned()
        for place in range(0, len(waiting), PATHS_BATCH_SIZE):
            began = time.monotonic()
            taken.rows += remove_paths(self._database, waiting[place : place + PATHS_BATCH_SIZE])
            self._pause(time.monotonic() - began)

    def _pause(self, worked: float) -> None:
        self._stopped |= bool(self._rest(min(worked, MAX_PAUSE)))


def remove_paths(database: Database, ids: Iterable[int]) -> int:
    """Remove those of the paths that no executable has; how many."""
    with database.write() as transaction:
        # A batch that has looked a path up refers to it before its transaction ends.
        transaction.lock_out_writers()
        unused = list(transaction.look_up(_UNUSED_PATHS, _keys(ids)))
        transaction.execute_rows(_REMOVE_PATH, unused)
        return len(unused)


def preview(
    database: Database, keep: RetentionSettings, now: int | None = None
) -> dict[str, Pruned]:
    """How much :func:`prune` would take away now; nothing is changed."""
    result = {}
    for one in classes(keep, time.time_ns() if now is None else now):
        with database.read() as connection:
            runs, waiting = _runs(connection, one)
            of_nodes = f"run_nodes ON run_nodes.run_id = runs.id AND {one.where()}"
            series = f"FROM runs JOIN {of_nodes} JOIN chunks ON chunks.run_node_id = run_nodes.id"
            taken = result[one.name] = Pruned(runs=runs, waiting=waiting)
            if one.name != "executables":
                taken.bytes = _number(connection, f"SELECT sum(length(chunks.data)) {series}")
                taken.rows += _number(connection, f"SELECT count(*) {series}")
            for table in ("executables", "steps") if one.name in ("executables", "runs") else ():
                taken.rows += _number(
                    connection,
                    f"SELECT count(*) FROM runs JOIN {of_nodes} "
                    f"JOIN {table} ON {table}.run_node_id = run_nodes.id",
                )
    return result


def _number(connection: Connection, sql: str) -> int:
    return int(connection.scalar(text(sql)) or 0)


def _runs(connection: Connection, one: Class) -> tuple[int, int]:
    """How many runs are due, and how many would be but for a condition."""
    count = "SELECT count(*) FROM runs WHERE "
    due = _number(connection, count + one.where())
    return due, _number(connection, count + one._replace(condition="").where()) - due


def _nodes_of(connection: Connection, runs: list[Due]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {run.id: [] for run in runs}
    query = select(run_nodes.c.run_id, run_nodes.c.id).where(run_nodes.c.run_id.in_(found))
    for run_id, id in connection.execute(query):
        found[run_id].append(id)
    return found


def _units(runs: list[Due], nodes: dict[int, list[int]], at_once: int) -> Iterator[_Unit]:
    """Divide the work: many small runs in one transaction, a wide one over several."""
    unit = _Unit({}, [], [])
    for run in runs:
        for node in nodes[run.id]:
            if len(unit.nodes) >= at_once:
                yield unit
                unit = _Unit({}, [], [])
            unit.runs[run.id] = run
            unit.nodes.append((node, run.id))
        unit.runs[run.id] = run
        unit.finished.append(run)
    yield unit


def _keys(ids: Iterable[int]) -> list[tuple[int]]:
    return [(id,) for id in ids]


def _put(
    transaction: Transaction,
    downsampled: dict[int, tuple[list[int], list[Downsampled]]],
    taken: Pruned,
) -> None:
    for node, (ids, made) in downsampled.items():
        key = {"id": node}
        # A part that came in between is in none of them: the next round looks again.
        if [row[0] for row in transaction.execute(_CHUNK_IDS, key).fetchall()] != ids:
            continue
        taken.rows += _remove_series(transaction, [node], taken)
        rows = [{"run_node_id": node} | part._asdict() for part in made]
        transaction.execute_many(_INSERT_DOWNSAMPLED, rows)
        taken.bytes_left += sum(len(part.data) for part in made)


def _remove_series(transaction: Transaction, nodes: list[int], taken: Pruned) -> int:
    keys = _keys(nodes)
    removed = 0
    for count, size in transaction.look_up(_CHUNKS, keys):
        removed += count
        taken.bytes += int(size)
    for statement in (_REMOVE_CHUNKS, _NONE_OPEN):
        transaction.execute_rows(statement, keys)
    return removed


def _remove_runs(transaction: Transaction, ids: list[int], exports: list[str]) -> None:
    for statement in _REMOVE_RUN:
        transaction.execute_rows(statement, _keys(ids))
    for name in exports:
        transaction.execute_rows(_REMOVE_EXPORTED, [(name, id) for id in ids])


def _exports(database: Database) -> list[str]:
    """The names of the exports, each found by one step into the index."""
    names: list[str] = []
    query = text("SELECT min(name) FROM exported WHERE name > :after")
    with database.read() as connection:
        while True:
            after = names[-1] if names else ""
            found = connection.scalar(query, {"after": after})
            if found is None:
                return names
            names.append(found)


DAY = 86400 * SECOND

#: The bits of ``runs.pruned``: time series downsampled, time series deleted, executables deleted.
DOWNSAMPLED, SERIES, EXECUTABLES = 1, 2, 4
_ALL = range(8)

#: Runs that are read at once.
BATCH_SIZE = 200

#: Before any run.
_FAR = -(2**62)


class Due(NamedTuple):
    """A run from which something is to go."""

    id: int
    cluster: str
    job_id: int
    end: int

    @property
    def lock(self) -> str:
        """The name under which writers lock its job."""
        return f"{self.cluster} {self.job_id}"


class Class(NamedTuple):
    """One class of data, and the runs from which it goes: ended from ``since`` on and before
    ``until``."""

    name: str
    since: int
    until: int
    #: The values of ``runs.pruned`` that say it is still there; empty where that does not matter.
    states: tuple[int, ...]
    #: What must hold besides, as SQL.
    condition: str
    #: Set in ``runs.pruned`` once it is gone.
    bit: int = 0

    def pages(self, database: Database) -> Iterator[list[Due]]:
        """The runs, some at once, each once; every page is read in a transaction of its own."""
        for query in self.queries():
            values = {"end": self.since, "id": -1, "until": self.until}
            while True:
                with database.read() as connection:
                    found = [Due(*row) for row in connection.execute(text(query), values)]
                if found:
                    yield found
                if len(found) < BATCH_SIZE:
                    break
                values |= {"end": found[-1].end, "id": found[-1].id}

    def queries(self) -> list[str]:
        """What reads a page, for each state; an index leads to the first run that is due."""
        states = [f"pruned = {state}" for state in self.states] or ["true"]
        return [
            f'SELECT id, cluster, job_id, "end" FROM runs WHERE {state} '
            'AND "end" >= :end AND "end" < :until AND ("end" > :end OR id > :id) '
            f'{self.condition} ORDER BY "end", id LIMIT {BATCH_SIZE}'
            for state in states
        ]

    def where(self) -> str:
        """The condition on ``runs`` that holds for all of them."""
        states = f"pruned IN ({', '.join(map(str, self.states))})" if self.states else "true"
        return f'{states} AND "end" >= {self.since} AND "end" < {self.until} {self.condition}'


def classes(keep: RetentionSettings, now: int) -> list[Class]:
    """The classes in the order of work: nothing is downsampled that is deleted then."""
    runs, series = _cutoff(keep.runs, now), _cutoff(keep.downsampled, now)
    # As it is now: what changed since is archived again first.
    archived = "AND archived_updated = updated" if keep.only_archived else ""
    # What is not yet in the daily rollups would be missing there for ever.
    summed = f"{archived} AND NOT stale"
    found = [
        Class("runs", _FAR, runs, (), summed),
        Class("series", runs, series, _without(SERIES), archived, SERIES),
        Class(
            "executables",
            runs,
            _cutoff(keep.executables, now),
            _without(EXECUTABLES),
            summed,
            EXECUTABLES,
        ),
        Class(
            "downsampled",
            max(runs, series),
            _cutoff(keep.series, now),
            _without(SERIES | DOWNSAMPLED),
            archived,
            DOWNSAMPLED,
        ),
    ]
    return [one for one in found if one.since < one.until]


def _without(bits: int) -> tuple[int, ...]:
    return tuple(state for state in _ALL if not state & bits)


def _cutoff(days: float, now: int) -> int:
    return now - round(days * DAY) if days else _FAR


logger = logging.getLogger("jobsight.store")

#: Seconds from the start of a server to the first check whether retention is due, and between
#: checks.
FIRST_CHECK, CHECK_INTERVAL = 60.0, 600.0

_KNOWN = (
    "INSERT INTO checkpoints (name, value) VALUES ('retention', 0) ON CONFLICT (name) DO NOTHING"
)
_CLAIM = "UPDATE checkpoints SET value = :now WHERE name = 'retention' AND value <= :before"


def claim(database: Database, now: int) -> bool:
    """Whether retention is due and this process is the one to run it."""
    with database.write() as transaction:
        transaction.execute(_KNOWN)
        return transaction.execute(_CLAIM, {"now": now, "before": now - DAY}).rowcount == 1


def run_retention(
    database: Database,
    keep: RetentionSettings,
    stopped: threading.Event,
    first: float = FIRST_CHECK,
) -> None:
    """Prune once a day until stopped; after a failure again on the next day."""
    waited = first
    while not stopped.wait(waited):
        waited = CHECK_INTERVAL
        try:
            if claim(database, time.time_ns()):
                logger.info("retention started")
                taken = prune(database, keep, rest=stopped.wait)
                counts = [f"{name}: {part.runs} runs" for name, part in taken.items() if part.runs]
                logger.info("retention finished: %s", ", ".join(counts) or "nothing due")
        except JobsightError as error:
            logger.warning("retention failed: %s", error)
        except Exception:
            # A bug must end neither this thread nor the server.
            logger.exception("retention failed")


def retention_worker(
    store: Store, keep: RetentionSettings, first: float = FIRST_CHECK
) -> AbstractContextManager[None]:
    """Run retention in a background thread while the block runs."""
    return in_background(
        "prune", lambda stopped: run_retention(store.database, keep, stopped, first)
    )
