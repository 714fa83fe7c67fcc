"""Taking away what is too old, in short transactions: those who write are never held up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select, text

from jobsight.config.settings import KeepSettings
from jobsight.store.database import Database, Transaction
from jobsight.store.frames import ChunkError
from jobsight.store.progress import Progress, silent
from jobsight.store.retention import Class, Due, classes
from jobsight.store.tables import chunks, run_nodes
from jobsight.store.thinning import Thinned, thin_chunks

#: Nodes of runs in one transaction.
NODES_AT_ONCE = 128
#: Chunks that wait to be thinned are read whole: those of so many nodes.
THINNED_AT_ONCE = 32
PATHS_AT_ONCE = 500
#: Seconds of rest after each transaction, at most: as long as it took, so that writers of other
#: processes, which can only try again and again, have their turn.
LONGEST_PAUSE = 1.0

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
#: The sums by day keep the hours: the share of the run is forgotten, not marked to be taken out.
_REMOVE_RUN = (
    "DELETE FROM run_nodes WHERE run_id = :id",
    "DELETE FROM contributions WHERE run_id = :id AND NOT dropped",
    "DELETE FROM run_details WHERE run_id = :id",
    "DELETE FROM runs WHERE id = :id",
)
#: Of each export by its name, since its key begins with that.
_REMOVE_EXPORTED = "DELETE FROM exported WHERE name = :name AND run_id = :id"
_MARK = "UPDATE runs SET pruned = pruned | :bit WHERE id = :id"
_INSERT_THINNED = """
    INSERT INTO chunks (run_node_id, first, last, rows, level, data, summary, resolution)
    VALUES (:run_node_id, :first, :last, :rows, 2, :data, :summary, :resolution)
"""


class Taken(msgspec.Struct):
    """How much of one class went, or would go."""

    runs: int = 0
    #: Chunks, executables and steps, or nodes of runs.
    rows: int = 0
    #: Of series: compressed, as they were and as they are.
    bytes: int = 0
    bytes_left: int = 0
    #: Old enough, but neither archived nor in the sums by day yet.
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
    keep: KeepSettings,
    now: int | None = None,
    progress: Progress = silent,
    rest: Callable[[float], object] = time.sleep,
) -> dict[str, Taken]:
    """Thin and remove what the settings no longer keep; how much, by class.

    ``rest`` is called after each transaction; it ends the work where it gives a true value.
    """
    return Pruner(database, keep, time.time_ns() if now is None else now, progress, rest).run()


class Pruner:
    """One round over the store."""

    def __init__(
        self,
        database: Database,
        keep: KeepSettings,
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
        self.taken: dict[str, Taken] = {}

    def run(self) -> dict[str, Taken]:
        for one in self._classes:
            self._work_through(one, self.taken.setdefault(one.name, Taken()))
        self._remove_paths()
        return self.taken

    def _work_through(self, one: Class, taken: Taken) -> None:
        with self._database.read() as connection:
            whole, taken.waiting = _runs(connection, one)
        at_once = THINNED_AT_ONCE if one.name == "thinned" else NODES_AT_ONCE
        for page in one.pages(self._database):
            with self._database.read() as connection:
                nodes = _nodes_of(connection, page)
            for unit in _units(page, nodes, at_once):
                if self._stopped:
                    return
                self._do(one, unit, taken)
                self._progress(f"runs, {one.name}", min(taken.runs, whole), whole)

    def _do(self, one: Class, unit: _Unit, taken: Taken) -> None:
        thinned = self._thin(unit.nodes, taken) if one.name == "thinned" else {}
        began = time.monotonic()
        with self._database.write() as transaction:
            transaction.lock("job", {run.lock for run in unit.runs.values()})
            # A record may have come meanwhile: then it waits for the next round.
            found = f"SELECT id FROM runs WHERE id IN (:keys) AND {one.where()}"
            due = {id for (id,) in transaction.look_up(found, _keys(unit.runs))}
            nodes = [id for id, run_id in unit.nodes if run_id in due]
            if one.name == "thinned":
                _put(transaction, {id: thinned[id] for id in nodes if id in thinned}, taken)
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

    def _thin(
        self, nodes: list[tuple[int, int]], taken: Taken
    ) -> dict[int, tuple[list[int], list[Thinned]]]:
        """What takes the place of which chunks, worked out before the writer's lock is held."""
        found = {}
        for node, _ in nodes:
            query = select(chunks.c.id, chunks.c.data).where(chunks.c.run_node_id == node)
            with self._database.read() as connection:
                rows = connection.execute(query.order_by(chunks.c.id)).all()
            try:
                made = thin_chunks([data for _, data in rows], self._resolution)
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
        taken = self.taken["paths"] = Taken()
        for place in range(0, len(waiting), PATHS_AT_ONCE):
            began = time.monotonic()
            taken.rows += remove_paths(self._database, waiting[place : place + PATHS_AT_ONCE])
            self._pause(time.monotonic() - began)

    def _pause(self, worked: float) -> None:
        self._stopped |= bool(self._rest(min(worked, LONGEST_PAUSE)))


def remove_paths(database: Database, ids: Iterable[int]) -> int:
    """Remove those of the paths that no executable has; how many."""
    with database.write() as transaction:
        # A batch that has looked a path up refers to it before its transaction ends.
        transaction.lock_out_writers()
        unused = list(transaction.look_up(_UNUSED_PATHS, _keys(ids)))
        transaction.execute_rows(_REMOVE_PATH, unused)
        return len(unused)


def preview(database: Database, keep: KeepSettings, now: int | None = None) -> dict[str, Taken]:
    """How much :func:`prune` would take away now; nothing is changed."""
    result = {}
    for one in classes(keep, time.time_ns() if now is None else now):
        with database.read() as connection:
            runs, waiting = _runs(connection, one)
            of_nodes = f"run_nodes ON run_nodes.run_id = runs.id AND {one.where()}"
            series = f"FROM runs JOIN {of_nodes} JOIN chunks ON chunks.run_node_id = run_nodes.id"
            taken = result[one.name] = Taken(runs=runs, waiting=waiting)
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
    transaction: Transaction, thinned: dict[int, tuple[list[int], list[Thinned]]], taken: Taken
) -> None:
    for node, (ids, made) in thinned.items():
        key = {"id": node}
        # A part that came in between is in none of them: the next round looks again.
        if [row[0] for row in transaction.execute(_CHUNK_IDS, key).fetchall()] != ids:
            continue
        taken.rows += _remove_series(transaction, [node], taken)
        rows = [{"run_node_id": node} | part._asdict() for part in made]
        transaction.execute_many(_INSERT_THINNED, rows)
        taken.bytes_left += sum(len(part.data) for part in made)


def _remove_series(transaction: Transaction, nodes: list[int], taken: Taken) -> int:
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
