"""Update of the daily rollups by differences: the old contribution of a changed run is subtracted,
the new one added.

:func:`sum_up` processes some stale runs in one transaction and clears their stale flag, so that
a killed process leaves each run either unchanged or complete. One process updates at a time;
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
from jobsight.store.sql.load import load_statements

#: Conditions of the readers below: the stale runs in an interval of ids, and one run.
STALE_BETWEEN: Final = "runs.stale AND runs.id BETWEEN :first AND :last"
SINGLE_RUN: Final = "runs.id = :id"

#: Runs, and nodes of runs, in one transaction, for which a writer of batches may have to wait.
BATCH_SIZE, NODES_BATCH_SIZE = 500, 2000
#: Seconds after which a transaction ends early: some runs need their time series.
_MAX_DURATION: Final = 0.2
#: Seconds between transactions: without a pause the same process may get the lock again.
_PAUSE: Final = 0.02

_SQL: Final = load_statements("rollups")
_COLUMNS: Final = ", ".join(f'runs."{name}"' for name in RunFacts._fields)
_STALE_RUNS: Final = f"""
    SELECT {_COLUMNS}, (SELECT count(*) FROM run_nodes WHERE run_nodes.run_id = runs.id)
    FROM runs WHERE stale AND id > :after ORDER BY id LIMIT :limit
"""
# CROSS JOIN fixes the order of the joins: the runs are few, whatever a planner estimates.
_NODES: Final = """
    SELECT run_nodes.run_id, run_nodes.id, run_nodes.cpu_time FROM runs CROSS JOIN run_nodes
    WHERE {condition} AND run_nodes.run_id = runs.id ORDER BY run_nodes.id
"""
_USES: Final = """
    SELECT run_nodes.run_id, executables.run_node_id, paths.digest, paths.software_id,
        executables.cpu_time, executables.executions
    FROM runs CROSS JOIN run_nodes CROSS JOIN executables CROSS JOIN paths
    WHERE {condition} AND run_nodes.run_id = runs.id AND executables.run_node_id = run_nodes.id
        AND paths.id = executables.path_id
"""
#: The checkpoint with the last revision.
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
    """How many runs were processed, and of how many the contribution changed."""

    runs: int
    changed: int
    #: The id of the run after which to continue; None at the end.
    after: int | None


def sum_up(database: Database, after: int = 0, limit: int = BATCH_SIZE) -> Round:
    """Process some stale runs, from the lowest id above ``after``, in one transaction."""
    begun = time.monotonic()
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        sums = _Sums(transaction)
        more = _subtract_dropped(transaction, sums, limit) == limit
        stale = _stale_runs(transaction, after, limit)
        reached, done = after, 0
        for run, nodes, names, before in _read(transaction, stale):
            if run.pruned & EXECUTABLES and before is not None:
                # The executables were deleted: the contribution from before is the better one.
                sums.clear_stale(run.id)
            else:
                new = contribution(run, with_day_boundaries(transaction, run, nodes), names)
                sums.replace(run.id, before, new)
            reached, done = run.id, done + 1
            if time.monotonic() - begun > _MAX_DURATION:
                break
        else:
            reached = stale[-1].id if stale else after
        sums.store()
    return Round(done, sums.changed, reached if stale or more else None)


def sum_up_all(
    database: Database,
    progress: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Round:
    """Process all stale runs once; a run that changes meanwhile may be stale again."""
    done = changed = 0
    after: int | None = 0
    while after is not None and not stopped():
        batch = sum_up(database, after)
        done, changed, after = done + batch.runs, changed + batch.changed, batch.after
        progress(done)
        if after is not None:
            time.sleep(_PAUSE)
    return Round(done, changed, after)


def decode_contribution(data: bytes) -> Contribution:
    """Decode the data of a row of ``contributions``."""
    return _decode(data)


def _skip_locked(transaction: Transaction, sql: str, table: str) -> str:
    """Lock the rows of a query, without those that a writer has locked; they stay stale.

    Nothing waits here, so that no deadlock with a writer is possible.
    """
    lock = f" FOR NO KEY UPDATE OF {table} SKIP LOCKED" if transaction.postgresql else ""
    return sql + lock


def _subtract_dropped(transaction: Transaction, sums: _Sums, limit: int) -> int:
    sql = _skip_locked(transaction, _SQL["dropped_contributions"], "contributions")
    rows = transaction.execute(sql, {"limit": limit}).fetchall()
    for run_id, data in rows:
        sums.remove(run_id, data)
    return len(rows)


def _stale_runs(transaction: Transaction, after: int, limit: int) -> list[RunFacts]:
    """The next stale runs, up to the number of nodes for one transaction."""
    sql = _skip_locked(transaction, _STALE_RUNS, "runs")
    result: list[RunFacts] = []
    total = 0
    for *columns, nodes in transaction.execute(sql, {"after": after, "limit": limit}).fetchall():
        total += nodes
        if result and total > NODES_BATCH_SIZE:
            break
        result.append(RunFacts(*columns))
    return result


def _read(
    transaction: Transaction, stale: Sequence[RunFacts]
) -> Iterator[tuple[RunFacts, dict[int, NodeFacts], dict[int, RowName], bytes | None]]:
    """Each run with its nodes, the names of their software, and its old contribution."""
    if not stale:
        return
    interval = {"first": stale[0].id, "last": stale[-1].id}
    query = _SQL["contributions_of_stale_runs"]
    before: dict[int, bytes] = dict(transaction.execute(query, interval).fetchall())
    unlocked = before.keys()
    if transaction.postgresql:
        # A process that deletes a run locks its contribution first, and then waits for the run.
        sql = _skip_locked(transaction, query, "contributions")
        unlocked = dict(transaction.execute(sql, interval).fetchall()).keys()
    nodes, unnamed, software = read_nodes(transaction, STALE_BETWEEN, interval)
    names = read_names(transaction, software)
    for run in stale:
        # A new path gets its name before the next call.
        if run.id not in unnamed and (run.id in unlocked or run.id not in before):
            yield run, nodes.get(run.id, {}), names, before.get(run.id)


def read_run(transaction: Transaction, run_id: int) -> RunFacts | None:
    """One run; None if it was deleted."""
    query = f"SELECT {_COLUMNS} FROM runs WHERE {SINGLE_RUN}"
    row = transaction.execute(query, {"id": run_id}).fetchone()
    return None if row is None else RunFacts(*row)


class RunNodes(NamedTuple):
    """The nodes of some runs."""

    #: By the ids of run and node.
    nodes: dict[int, dict[int, NodeFacts]]
    #: Runs with a path to which the rules were not yet applied.
    unnamed: set[int]
    #: The ids of their rows of software.
    software: set[int]


def read_nodes(transaction: Transaction, condition: str, parameters: Mapping[str, int]) -> RunNodes:
    """The nodes of the runs that meet the condition."""
    uses: dict[int, list[Use]] = {}
    unnamed, software = set(), set()
    rows = transaction.execute(_USES.format(condition=condition), parameters).fetchall()
    for run_id, run_node_id, digest, software_id, *figures in rows:
        # An agent that found a better name sends the row of the first name with zeros.
        if not any(figures):
            continue
        if software_id is None:
            unnamed.add(run_id)
        elif software_id != UNDETERMINED:
            software.add(software_id)
        use = Use(bytes(digest), software_id or UNDETERMINED, *figures)
        uses.setdefault(run_node_id, []).append(use)
    nodes: dict[int, dict[int, NodeFacts]] = {}
    rows = transaction.execute(_NODES.format(condition=condition), parameters).fetchall()
    for run_id, run_node_id, cpu_time in rows:
        facts = NodeFacts(cpu_time, uses.get(run_node_id, ()))
        nodes.setdefault(run_id, {})[run_node_id] = facts
    return RunNodes(nodes, unnamed, software)


def read_names(transaction: Transaction, ids: Collection[int]) -> dict[int, RowName]:
    """The names of rows of software."""
    rows = transaction.look_up(_SQL["software_names"], [(id,) for id in ids])
    return {id: RowName(*columns) for id, *columns in rows}


class _Sums:
    """The differences of one transaction, collected so that each row is updated once."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._rows: dict[str, dict[tuple[object, ...], list[int]]] = {
            table: {} for table in _TABLES
        }
        self._changed: list[tuple[int, bytes]] = []
        self._processed: list[dict[str, int]] = []

    @property
    def changed(self) -> int:
        """The number of runs with a changed contribution."""
        return len(self._changed)

    def clear_stale(self, run_id: int) -> None:
        """Clear the stale flag of a run and leave its contribution unchanged."""
        self._processed.append({"id": run_id})

    def replace(self, run_id: int, before: bytes | None, new: Contribution | None) -> None:
        """Replace the old contribution of a run by the new one."""
        self.clear_stale(run_id)
        if new is None and before is None:
            return
        # A job that turned out not to have started keeps an empty contribution, for exports.
        new = new or Contribution("", "", "", "", [])
        data = _encode(new)
        if data == before:
            return
        if before is not None:
            self._add(-1, _decode(before))
        self._add(1, new)
        self._changed.append((run_id, data))

    def remove(self, run_id: int, before: bytes) -> None:
        """Subtract the contribution of a run that was deleted."""
        self._add(-1, _decode(before))
        self._transaction.execute(_SQL["delete_contribution"], {"run_id": run_id})

    def store(self) -> None:
        """Write the differences."""
        for table, rows in self._rows.items():
            names, figures = _TABLES[table]
            columns = (*names, *figures)
            changes = sorted((key, values) for key, values in rows.items() if any(values))
            self._transaction.execute_many(
                _ADD[table],
                [dict(zip(columns, (*key, *values), strict=True)) for key, values in changes],
            )
            # A row of zeros would count as a user or as software.
            self._transaction.execute_many(
                _REMOVE_EMPTY[table],
                [dict(zip(names, key, strict=True)) for key, values in changes if min(values) < 0],
            )
        self._store_contributions()
        self._transaction.execute_many(_SQL["clear_stale"], self._processed)

    def _store_contributions(self) -> None:
        if not self._changed:
            return
        checkpoint = read_checkpoint(self._transaction, _REVISION)
        last = checkpoint.value if checkpoint is not None else 0
        rows = [
            {"run_id": run_id, "revision": last + number, "data": data}
            for number, (run_id, data) in enumerate(self._changed, 1)
        ]
        self._transaction.execute_many(_SQL["set_contribution"], rows)
        set_checkpoint(self._transaction, _REVISION, last + len(rows))

    def _add(self, sign: int, contribution: Contribution) -> None:
        usage, software = self._rows["usage_by_day"], self._rows["software_by_day"]
        owner = (
            contribution.cluster,
            contribution.user,
            contribution.account,
            contribution.partition,
        )
        for day, *figures, parts in map(msgspec.structs.astuple, contribution.days):
            _add_figures(usage, (day, *owner), sign, figures)
            for software_id, *figures in map(msgspec.structs.astuple, parts):
                _add_figures(software, (day, *owner, software_id), sign, figures)


def _add_figures(
    rows: dict[tuple[object, ...], list[int]],
    key: tuple[object, ...],
    sign: int,
    figures: Sequence[int],
) -> None:
    row = rows.setdefault(key, [0] * len(figures))
    for index, figure in enumerate(figures):
        row[index] += sign * figure


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
