"""Update of the daily rollups, by differences: the old share of a changed run is subtracted, the
new one added.

:func:`sum_up` processes some stale runs in one transaction, in which they also lose their stale
flag, so that a killed process leaves each run untouched or done. One process updates at a time;
batches are written concurrently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from jobsight.store.checkpoints import read_checkpoint, set_checkpoint
from jobsight.store.database import Database, Transaction
from jobsight.store.maintenance.retention import EXECUTABLES
from jobsight.store.rollups.shares import (
    UNDETERMINED,
    Contribution,
    NodeFacts,
    RowName,
    RunFacts,
    Use,
    contribution,
    with_day_boundaries,
)
from jobsight.store.schema.statements import quoted

COLUMNS = ", ".join(f'runs."{name}"' for name in RunFacts._fields)
#: The runs that wait in a stretch of ids, and one run.
WAITING = "runs.stale AND runs.id BETWEEN :first AND :last"
ONE = "runs.id = :id"

# Joined in this order and no other: few runs are chosen, whatever a planner takes their number
# to be.
_NODES = """
    SELECT run_nodes.run_id, run_nodes.id, run_nodes.cpu_time FROM runs CROSS JOIN run_nodes
    WHERE {chosen} AND run_nodes.run_id = runs.id ORDER BY run_nodes.id
"""
_USES = """
    SELECT run_nodes.run_id, executables.run_node_id, paths.digest, paths.software_id,
        executables.cpu_time, executables.executions
    FROM runs CROSS JOIN run_nodes CROSS JOIN executables CROSS JOIN paths
    WHERE {chosen} AND run_nodes.run_id = runs.id AND executables.run_node_id = run_nodes.id
        AND paths.id = executables.path_id
"""
_NAMES = """
    WITH wanted(id) AS (VALUES :keys)
    SELECT software.id, ignored, name, version, local_version, user_provided
    FROM wanted CROSS JOIN software WHERE software.id = wanted.id
"""


def read_run(transaction: Transaction, run_id: int) -> RunFacts | None:
    """One run, where it is still there."""
    found = transaction.execute(f"SELECT {COLUMNS} FROM runs WHERE {ONE}", {"id": run_id})
    row = found.fetchone()
    return None if row is None else RunFacts(*row)


class RunNodes(NamedTuple):
    #: By the ids of run and node.
    nodes: dict[int, dict[int, NodeFacts]]
    #: Runs with a path to which the rules were not applied yet.
    unnamed: set[int]
    #: The ids of their rows of software.
    software: set[int]


def read_nodes(transaction: Transaction, chosen: str, parameters: Mapping[str, int]) -> RunNodes:
    """The nodes of the chosen runs."""
    uses: dict[int, list[Use]] = {}
    unnamed, software = set(), set()
    found = transaction.execute(_USES.format(chosen=chosen), parameters).fetchall()
    for run_id, run_node_id, digest, software_id, *figures in found:
        # An agent that learned a better name has taken back the row of the first.
        if not any(figures):
            continue
        if software_id is None:
            unnamed.add(run_id)
        elif software_id != UNDETERMINED:
            software.add(software_id)
        use = Use(bytes(digest), software_id or UNDETERMINED, *figures)
        uses.setdefault(run_node_id, []).append(use)
    nodes: dict[int, dict[int, NodeFacts]] = {}
    found = transaction.execute(_NODES.format(chosen=chosen), parameters).fetchall()
    for run_id, run_node_id, cpu_time in found:
        facts = NodeFacts(cpu_time, uses.get(run_node_id, ()))
        nodes.setdefault(run_id, {})[run_node_id] = facts
    return RunNodes(nodes, unnamed, software)


def read_names(transaction: Transaction, ids: Collection[int]) -> dict[int, RowName]:
    """What rows of software are called."""
    found = transaction.look_up(_NAMES, [(id,) for id in ids])
    return {id: RowName(*columns) for id, *columns in found}


#: Runs, and nodes of runs, in one transaction: a batch waits no longer than these take.
BATCH_SIZE, NODES_BATCH_SIZE = 500, 2000
#: The same in seconds, for runs whose time series have to be read.
_LONGEST: Final = 0.2
#: Seconds in which batches that wait get their turn: a lock may come back to who just gave it up.
_PAUSE: Final = 0.02

_WAITING = f"""
    SELECT {COLUMNS}, (SELECT count(*) FROM run_nodes WHERE run_nodes.run_id = runs.id)
    FROM runs WHERE stale AND id > :after ORDER BY id LIMIT :limit
"""
_BEFORE = f"""
    SELECT contributions.run_id, contributions.data FROM runs CROSS JOIN contributions
    WHERE {WAITING} AND contributions.run_id = runs.id
"""
_DROPPED = "SELECT run_id, data FROM contributions WHERE dropped ORDER BY run_id LIMIT :limit"
_KEEP = """
    INSERT INTO contributions (run_id, revision, dropped, data)
    VALUES (:run_id, :revision, false, :data)
    ON CONFLICT (run_id) DO UPDATE SET revision = excluded.revision, dropped = false,
        data = excluded.data
"""
_FORGET = "DELETE FROM contributions WHERE run_id = :run_id"
_DONE = "UPDATE runs SET stale = false WHERE id = :id"
#: The mark that holds the last revision.
_REVISION: Final = "contributions"

_KEY = ("day", "cluster", "user", "account", "partition")
_FIGURES = ("runs", "executions", "cpu_time", "core_time", "gpu_time")
_TABLES: Final = {
    "usage_by_day": (_KEY, (*_FIGURES, "memory_time")),
    "software_by_day": (
        (*_KEY, "software_id"),
        (*_FIGURES, "name_runs", "version_runs", "local_version_runs"),
    ),
}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Contribution).decode


class Round(NamedTuple):
    """What was summed up, and how many of the runs had changed their share."""

    runs: int
    changed: int
    #: Go on behind this run; None where nothing is left.
    after: int | None


def sum_up(database: Database, after: int = 0, limit: int = BATCH_SIZE) -> Round:
    """Sum up some of the runs that wait, from the lowest id above ``after``, in one transaction."""
    begun = time.monotonic()
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        sums = _Sums(transaction)
        more = _take_out_dropped(transaction, sums, limit) == limit
        waiting = _waiting(transaction, after, limit)
        reached, done = after, 0
        for run, nodes, names, before in _read(transaction, waiting):
            if run.pruned & EXECUTABLES and before is not None:
                # What ran is not known any more; what was summed up when it was known stands.
                sums.leave(run.id)
            else:
                new = contribution(run, with_day_boundaries(transaction, run, nodes), names)
                sums.replace(run.id, before, new)
            reached, done = run.id, done + 1
            if time.monotonic() - begun > _LONGEST:
                break
        else:
            reached = waiting[-1].id if waiting else after
        sums.store()
    return Round(done, sums.changed, reached if waiting or more else None)


def sum_up_all(
    database: Database,
    progress: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Round:
    """Go once through all runs that wait; one that changes meanwhile may wait again."""
    done = changed = 0
    after: int | None = 0
    while after is not None and not stopped():
        one = sum_up(database, after)
        done, changed, after = done + one.runs, changed + one.changed, one.after
        progress(done)
        if after is not None:
            time.sleep(_PAUSE)
    return Round(done, changed, after)


def decode_contribution(data: bytes) -> Contribution:
    """Read a row's data."""
    return _decode(data)


def _held_apart(transaction: Transaction, sql: str, table: str) -> str:
    """The same, without rows that a batch holds and is about to change: they wait on.

    Nothing is waited for here, so no batch can wait for us while we wait for it.
    """
    lock = f" FOR NO KEY UPDATE OF {table} SKIP LOCKED" if transaction.postgresql else ""
    return sql + lock


def _take_out_dropped(transaction: Transaction, sums: _Sums, limit: int) -> int:
    sql = _held_apart(transaction, _DROPPED, "contributions")
    found = transaction.execute(sql, {"limit": limit}).fetchall()
    for run_id, data in found:
        sums.take_out(run_id, data)
    return len(found)


def _waiting(transaction: Transaction, after: int, limit: int) -> list[RunFacts]:
    """Runs that wait, as many as have no more nodes together than one transaction should read."""
    sql = _held_apart(transaction, _WAITING, "runs")
    result: list[RunFacts] = []
    whole = 0
    for *columns, nodes in transaction.execute(sql, {"after": after, "limit": limit}).fetchall():
        whole += nodes
        if result and whole > NODES_BATCH_SIZE:
            break
        result.append(RunFacts(*columns))
    return result


def _read(
    transaction: Transaction, waiting: Sequence[RunFacts]
) -> Iterator[tuple[RunFacts, dict[int, NodeFacts], dict[int, RowName], bytes | None]]:
    """Each run with its nodes, the names of their software, and what it added before."""
    if not waiting:
        return
    between = {"first": waiting[0].id, "last": waiting[-1].id}
    before: dict[int, bytes] = dict(transaction.execute(_BEFORE, between).fetchall())
    free = before.keys()
    if transaction.postgresql:
        # Who removes a run holds its contribution first and would then wait for our run.
        sql = _held_apart(transaction, _BEFORE, "contributions")
        free = dict(transaction.execute(sql, between).fetchall()).keys()
    nodes, unnamed, software = read_nodes(transaction, WAITING, between)
    names = read_names(transaction, software)
    for run in waiting:
        # A path that came a moment ago is named before the next round.
        if run.id not in unnamed and (run.id in free or run.id not in before):
            yield run, nodes.get(run.id, {}), names, before.get(run.id)


class _Sums:
    """The differences that one transaction makes, gathered so that each row is touched once."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._rows: dict[str, dict[tuple[object, ...], list[int]]] = {
            table: {} for table in _TABLES
        }
        self._kept: list[tuple[int, bytes]] = []
        self._done: list[dict[str, int]] = []

    @property
    def changed(self) -> int:
        """How many runs have another share than before."""
        return len(self._kept)

    def leave(self, run_id: int) -> None:
        """Leave a run's share as it is."""
        self._done.append({"id": run_id})

    def replace(self, run_id: int, before: bytes | None, new: Contribution | None) -> None:
        """Put a run's new share in the place of the old one."""
        self.leave(run_id)
        if new is None and before is None:
            return
        # A job that is taken to have never begun keeps an empty share: an export has to see it.
        new = new or Contribution("", "", "", "", [])
        data = _encode(new)
        if data == before:
            return
        if before is not None:
            self._book(-1, _decode(before))
        self._book(1, new)
        self._kept.append((run_id, data))

    def take_out(self, run_id: int, before: bytes) -> None:
        """Take the share of a run that is gone out of the sums."""
        self._book(-1, _decode(before))
        self._transaction.execute(_FORGET, {"run_id": run_id})

    def store(self) -> None:
        """Write what was gathered."""
        for table, rows in self._rows.items():
            names, figures = _TABLES[table]
            columns = (*names, *figures)
            moved = sorted((key, values) for key, values in rows.items() if any(values))
            self._transaction.execute_many(
                _ADD[table],
                [dict(zip(columns, (*key, *values), strict=True)) for key, values in moved],
            )
            # A row of nothing would make a user or a software of somebody who has none left.
            self._transaction.execute_many(
                _REMOVE_EMPTY[table],
                [dict(zip(names, key, strict=True)) for key, values in moved if min(values) < 0],
            )
        self._keep()
        self._transaction.execute_many(_DONE, self._done)

    def _keep(self) -> None:
        if not self._kept:
            return
        mark = read_checkpoint(self._transaction, _REVISION)
        last = mark.value if mark is not None else 0
        kept = [
            {"run_id": run_id, "revision": last + number, "data": data}
            for number, (run_id, data) in enumerate(self._kept, 1)
        ]
        self._transaction.execute_many(_KEEP, kept)
        set_checkpoint(self._transaction, _REVISION, last + len(kept))

    def _book(self, sign: int, share: Contribution) -> None:
        usage, software = self._rows["usage_by_day"], self._rows["software_by_day"]
        who = (share.cluster, share.user, share.account, share.partition)
        for day, *figures, parts in map(msgspec.structs.astuple, share.days):
            _add(usage, (day, *who), sign, figures)
            for software_id, *figures in map(msgspec.structs.astuple, parts):
                _add(software, (day, *who, software_id), sign, figures)


def _add(
    rows: dict[tuple[object, ...], list[int]],
    key: tuple[object, ...],
    sign: int,
    figures: Sequence[int],
) -> None:
    row = rows.setdefault(key, [0] * len(figures))
    for place, figure in enumerate(figures):
        row[place] += sign * figure


def _add_sql(table: str) -> str:
    names, figures = _TABLES[table]
    columns = ", ".join(map(quoted, (*names, *figures)))
    values = ", ".join(f":{name}" for name in (*names, *figures))
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in figures)
    return (
        f"INSERT INTO {table} ({columns}) VALUES ({values}) "
        f"ON CONFLICT ({', '.join(map(quoted, names))}) DO UPDATE SET {added}"
    )


def _remove_empty_sql(table: str) -> str:
    names, figures = _TABLES[table]
    same = [f"{quoted(name)} = :{name}" for name in names]
    nothing = [f"{name} = 0" for name in figures]
    return f"DELETE FROM {table} WHERE {' AND '.join(same + nothing)}"


_ADD = {table: _add_sql(table) for table in _TABLES}
_REMOVE_EMPTY = {table: _remove_empty_sql(table) for table in _TABLES}
