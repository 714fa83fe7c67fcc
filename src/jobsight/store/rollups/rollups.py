"""Update of the rollups by differences: the old contribution of a changed run is subtracted, the
new one added, to the day and to its month.

:func:`sum_up` processes a group of stale runs. Contributions are computed outside of transactions,
because users and nodes choose how much work a run is; a transaction only stores finished rows, and
few enough that writers of batches do not wait. A run that changed meanwhile stays stale, and a
contribution that another process has changed is left alone, so that a killed process leaves each
run either unchanged or complete.

:func:`sum_up_all` takes a group of each cluster in turn, of bounded work: the runs of one cluster,
however many and large its nodes make them, do not keep those of another waiting.

No run stops the others. A run that fails becomes a dead letter. A group is marked in the store
before the work and unmarked after it; a process that finds the mark of another that was killed
processes the runs of that group one by one, each a dead letter until it is done.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from jobsight.errors import StoreError
from jobsight.store import dead_letters
from jobsight.store.checkpoints import (
    is_at_work,
    list_checkpoints,
    read_checkpoint,
    remove_checkpoint,
    set_checkpoint,
)
from jobsight.store.database import Database, Transaction
from jobsight.store.dead_letters import MAX_TRIES, RETRY_DELAY, ROLLUP, reason_of
from jobsight.store.maintenance.retention import EXECUTABLES
from jobsight.store.rollups.shares import (
    MAX_PATHS,
    MAX_SHARES,
    OTHER,
    UNDETERMINED,
    Contribution,
    NodeFacts,
    PathUse,
    PathUses,
    RowName,
    RunFacts,
    Use,
    contribution,
    first_day,
    month_of,
    with_day_boundaries,
)
from jobsight.store.schema.statements import quoted
from jobsight.store.sql.load import load_statements

logger = logging.getLogger(__name__)

#: Runs, nodes of runs, and executables of runs that are in memory at once.
BATCH_SIZE, NODES_BATCH_SIZE, USES_BATCH_SIZE = 500, 2000, 50_000
#: Executables, and their rows in the rollups, of a group of runs: some seconds of work.
WORK_BATCH_SIZE: Final = 20_000
#: Runs whose executables are counted at once: of large runs a group has few.
_COUNTED_RUNS: Final = 16
#: Rows of the rollups in one transaction, for which a writer of batches may have to wait.
ROWS_BATCH_SIZE: Final = 5000
#: Bytes of contributions in memory at once.
_MAX_BYTES: Final = 2**22
#: Bytes of contributions of deleted runs in one transaction, some thousand rows.
_MAX_DROPPED_BYTES: Final = 2**17
#: Seconds between transactions: without a pause the same process may get the lock again.
_PAUSE: Final = 0.02

_SQL: Final = load_statements("rollups")
_COLUMNS: Final = ", ".join(f'runs."{name}"' for name in RunFacts._fields)
_STALE_RUNS: Final = _SQL["stale_runs"].replace(":columns", _COLUMNS)
_RUN_BY_ID: Final = _SQL["run_by_id"].replace(":columns", _COLUMNS)
_LAST_ID: Final = 2**63 - 1
#: The checkpoint with the last revision.
_REVISION: Final = "contributions"
#: Followed by the first id of a group that is being processed; its value is the last id.
_IN_PROGRESS: Final = "rollups in progress: "

_KEY = ("day", "cluster", "user", "account", "partition")
_FIGURES = (
    *("runs", "executions", "cpu_time", "core_time", "gpu_time"),
    *("gpu_measured_time", "gpu_profiled_time", "gpu_used_time", "gpu_energy"),
)
_TABLES: Final = {
    "usage_by_day": (_KEY, (*_FIGURES, "memory_time")),
    "software_by_day": (
        (*_KEY, "software_id"),
        (*_FIGURES, "name_runs", "version_runs", "local_version_runs"),
    ),
}
#: The table by month of each table by day.
MONTHS: Final = {"usage_by_day": "usage_by_month", "software_by_day": "software_by_month"}
_NOTHING: Final = Contribution("", "", "", "", [])

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Contribution).decode


class Round(NamedTuple):
    """How many runs were processed, and of how many the contribution changed."""

    runs: int
    changed: int
    #: The id of the run after which to continue; None at the end.
    after: int | None


class _StaleRun(NamedTuple):
    """A stale run, its number of nodes, and its number of executables up to a limit."""

    run: RunFacts
    nodes: int
    uses: int

    @property
    def is_large(self) -> bool:
        return self.uses > USES_BATCH_SIZE

    @property
    def work(self) -> int:
        """At most how many rows are read of its executables and stored in the rollups."""
        return self.uses + min(min(self.uses, MAX_PATHS) * len(self.run.midnights()), MAX_SHARES)


class _Change(NamedTuple):
    """A run whose contribution was computed."""

    run_id: int
    cluster: str
    #: Of the run when it was read.
    changes: int
    #: The stored contribution and its revision when it was read; 0 if there was none.
    before: Contribution | None
    revision: int
    #: None leaves the stored contribution.
    after: Contribution | None

    def rows(self) -> int:
        """At most how many rows of the rollups it changes."""
        return sum(len(day.software) + 1 for each in self._both() for day in each.days)

    def _both(self) -> Iterator[Contribution]:
        if self.after is not None:
            yield self.after
            if self.before is not None:
                yield self.before


class _Failure(NamedTuple):
    run_id: int
    cluster: str
    reason: str


def _never() -> bool:
    return False


def sum_up(
    database: Database,
    cluster: str,
    after: int = 0,
    limit: int = BATCH_SIZE,
    *,
    last: int = _LAST_ID,
    stopped: Callable[[], bool] = _never,
) -> Round:
    """Process a group of stale runs of a cluster, from the lowest id above ``after``."""
    stale = _stale_runs(database, cluster, after, limit, last)
    if not stale:
        return Round(0, 0, None)
    group = _Group(cluster, stale[0].run.id, stale[-1].run.id)
    with database.write() as transaction:
        owner = f"{os.uname().nodename} {os.getpid()} {cluster}"
        set_checkpoint(transaction, group.mark, group.last, owner)
    try:
        done, changed, failures = _process(database, stale, stopped)
        _set_aside(database, failures)
    finally:
        # Not reached by a process that is killed.
        with database.write() as transaction:
            remove_checkpoint(transaction, group.mark)
    return Round(done, changed, group.last)


def sum_up_all(
    database: Database,
    progress: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = _never,
    *,
    before_turn: Callable[[], object] = lambda: None,
    interval: float = math.inf,
) -> Round:
    """Process all stale runs once; a run that changes meanwhile may be stale again.

    In each turn every cluster has one group processed, after ``before_turn``. A cluster whose runs
    are done gets another pass after ``interval`` seconds, while those of others are not done.
    """
    queues: dict[str | None, Iterator[Round]] = {None: _subtract_all_dropped(database)}
    #: When the last pass of each queue ended.
    finished: dict[str | None, float] = {}
    done = changed = 0
    while not stopped():
        before_turn()
        now = time.monotonic()
        for cluster in _clusters_with_work(database):
            if cluster not in queues and now - finished.get(cluster, -math.inf) >= interval:
                queues[cluster] = _pass(database, cluster, stopped)
        if queues.keys() <= finished.keys():
            return Round(done, changed, None)
        for name in list(queues):
            if stopped():
                break
            group = next(queues[name], None)
            if group is None:
                del queues[name]
                finished[name] = time.monotonic()
                continue
            done, changed = done + group.runs, changed + group.changed
            progress(done)
            time.sleep(_PAUSE)
    return Round(done, changed, 0)


def _pass(database: Database, cluster: str, stopped: Callable[[], bool]) -> Iterator[Round]:
    """Process the runs of a cluster that are stale now, group by group.

    Those that may end the process come first, so that no group has one of them.
    """
    for run_id in _due_dead_letters(database, cluster):
        yield _sum_up_alone(database, run_id, stopped)
    yield from _sum_up_interrupted(database, cluster, stopped)
    with database.query() as transaction:
        values = {"cluster": cluster}
        (last,) = transaction.execute(_SQL["last_stale_run"], values).fetchone()
    after: int | None = 0
    # Without an end, new runs would make the pass endless.
    while after is not None and last is not None:
        group = sum_up(database, cluster, after, last=last, stopped=stopped)
        after = group.after
        if after is not None:
            yield group


def _clusters_with_work(database: Database) -> list[str]:
    """The clusters with stale runs, or with groups in which a process was killed."""
    with database.query() as transaction:
        clusters = {group.cluster for group in _interrupted_groups(transaction)}
        (cluster,) = transaction.execute(_SQL["first_stale_cluster"]).fetchone()
        # One entry of the index is read for each cluster, not one for each run.
        while cluster is not None:
            clusters.add(cluster)
            values = {"after": cluster}
            (cluster,) = transaction.execute(_SQL["next_stale_cluster"], values).fetchone()
    return sorted(clusters)


def rollup_revision(database: Database) -> str:
    """A text that differs after each change of the rollups, or of the number of stale runs."""
    with database.query() as transaction:
        checkpoint = read_checkpoint(transaction, _REVISION)
        stale = transaction.execute(_SQL["count_stale"]).fetchall()
        (aside,) = transaction.execute(_SQL["count_set_aside"]).fetchone()
    return f"{checkpoint.value if checkpoint is not None else 0} {stale} {aside}"


def decode_contribution(data: bytes) -> Contribution:
    """Decode the data of a row of ``contributions``."""
    return _decode(data)


def _due_dead_letters(database: Database, cluster: str) -> list[int]:
    """Those whose last try failed some time ago. One whose last try never returned would end this
    process too: only an operator has it tried again."""
    values = {
        "cluster": cluster,
        "tries": MAX_TRIES,
        "before": time.time_ns() - RETRY_DELAY,
        "interrupted": dead_letters.INTERRUPTED,
        "limit": BATCH_SIZE,
    }
    with database.query() as transaction:
        rows = transaction.execute(_SQL["due_dead_letters"], values).fetchall()
    return [int(key) for (key,) in rows]


class _Group(NamedTuple):
    """The first and last id of the runs of a group that a process has marked."""

    cluster: str
    first: int
    last: int

    @property
    def mark(self) -> str:
        return f"{_IN_PROGRESS}{self.first}"


def _interrupted_groups(transaction: Transaction) -> list[_Group]:
    """The groups in which a process was killed. The mark of a process on another host counts as
    one: its runs are then only processed twice."""
    groups = []
    for first, checkpoint in list_checkpoints(transaction, _IN_PROGRESS).items():
        host, _, owner = (checkpoint.text or "").partition(" ")
        pid, _, cluster = owner.partition(" ")
        if not is_at_work(host, int(pid)):
            groups.append(_Group(cluster, int(first), checkpoint.value))
    return groups


def _sum_up_interrupted(
    database: Database, cluster: str, stopped: Callable[[], bool]
) -> Iterator[Round]:
    """Process the stale runs of interrupted groups one by one, in turns of the work of a group."""
    with database.query() as transaction:
        groups = [each for each in _interrupted_groups(transaction) if each.cluster == cluster]
    done = changed = work = 0
    for group in groups:
        after = group.first - 1
        while not stopped() and (stale := _stale_runs(database, cluster, after, 1, group.last)):
            after = stale[0].run.id
            alone = _sum_up_alone(database, after, stopped)
            done, changed = done + alone.runs, changed + alone.changed
            work += stale[0].work
            if work > WORK_BATCH_SIZE:
                yield Round(done, changed, after)
                done = changed = work = 0
        if stopped():
            # The mark stays for the runs that are left.
            return
        with database.write() as transaction:
            remove_checkpoint(transaction, group.mark)
    if done:
        yield Round(done, changed, 0)


def _sum_up_alone(database: Database, run_id: int, stopped: Callable[[], bool]) -> Round:
    """Process one run that may end the process: it is a dead letter until it is done."""
    with database.write() as transaction:
        row = transaction.execute(_RUN_BY_ID, {"id": run_id}).fetchone()
        if row is None:
            dead_letters.resolve(transaction, ROLLUP, str(run_id))
            return Round(0, 0, run_id)
        dead_letters.mark(transaction, ROLLUP, str(run_id), RunFacts(*row).cluster)
    try:
        with database.query() as transaction:
            row = transaction.execute(_RUN_BY_ID, {"id": run_id}).fetchone()
            stale = [] if row is None else list(_counted(transaction, [RunFacts(*row)]))
        done, changed, failures = _process(database, stale, stopped)
    except BaseException:
        # The store failed, or the process is to end: not the fault of the run.
        with database.write() as transaction:
            dead_letters.resolve(transaction, ROLLUP, str(run_id))
        raise
    with database.write() as transaction:
        for failure in failures:
            dead_letters.set_reason(transaction, ROLLUP, str(run_id), failure.reason)
        if not failures:
            dead_letters.resolve(transaction, ROLLUP, str(run_id))
    return Round(done, changed, run_id)


def _set_aside(database: Database, failures: Sequence[_Failure]) -> None:
    if not failures:
        return
    with database.write() as transaction:
        for failure in failures:
            dead_letters.mark(
                transaction, ROLLUP, str(failure.run_id), failure.cluster, failure.reason
            )
    for failure in failures:
        logger.warning(
            "cluster %s: run %d is not in the daily rollups and is set aside: %s",
            *(failure.cluster, failure.run_id, failure.reason),
        )


def _stale_runs(
    database: Database, cluster: str, after: int, limit: int, last: int
) -> list[_StaleRun]:
    """The next stale runs of a cluster, up to the nodes and executables that may be in memory and
    the work of a group; a large run alone."""
    values = {"cluster": cluster, "after": after, "last": last, "limit": limit}
    result: list[_StaleRun] = []
    nodes = work = 0
    with database.query() as transaction:
        rows = transaction.execute(_STALE_RUNS, values).fetchall()
        for each in _counted(transaction, [RunFacts(*row) for row in rows]):
            nodes, work = nodes + each.nodes, work + each.work
            if result and (nodes > NODES_BATCH_SIZE or work > WORK_BATCH_SIZE):
                break
            result.append(each)
    return result


def _counted(transaction: Transaction, runs: Sequence[RunFacts]) -> Iterator[_StaleRun]:
    """Runs with their numbers of nodes and executables."""
    sql = _SQL["sizes_of_runs"].replace(":many", str(USES_BATCH_SIZE + 1))
    for first in range(0, len(runs), _COUNTED_RUNS):
        some = runs[first : first + _COUNTED_RUNS]
        rows = transaction.look_up(sql, [(run.id,) for run in some])
        sizes = {run_id: (nodes, uses) for run_id, nodes, uses in rows}
        for run in some:
            yield _StaleRun(run, *sizes[run.id])


def _process(
    database: Database, stale: Sequence[_StaleRun], stopped: Callable[[], bool]
) -> tuple[int, int, list[_Failure]]:
    """Compute and store the contributions of some runs; returns how many were processed and
    changed, and the runs that failed."""
    failures: list[_Failure] = []
    waiting: list[_Change] = []
    done = changed = rows = 0
    for change in _compute(database, stale, failures):
        if stopped():
            # A process that does not end in time is killed, as if a run had done it.
            break
        waiting.append(change)
        rows += change.rows()
        if rows > ROWS_BATCH_SIZE:
            stored = _store_bisecting(database, waiting, failures, stopped)
            done, changed = done + stored[0], changed + stored[1]
            waiting, rows = [], 0
    stored = _store_bisecting(database, waiting, failures, stopped)
    return done + stored[0], changed + stored[1], failures


def _compute(
    database: Database, stale: Sequence[_StaleRun], failures: list[_Failure]
) -> Iterator[_Change]:
    """The contribution of each run whose paths all have names."""
    ids = [each.run.id for each in stale]
    with database.query() as transaction:
        nodes, unnamed, software = read_nodes(
            transaction, [each.run.id for each in stale if not each.is_large]
        )
        names = read_names(transaction, software)
    for some in _in_bytes(database, ids):
        with database.query() as transaction:
            rows = transaction.look_up(_SQL["contributions_of_runs"], [(id,) for id in some])
            stored = {run_id: (revision, bytes(data)) for run_id, revision, data in rows}
        for each in stale:
            run = each.run
            # A new path gets its name before the next call.
            if run.id not in some or run.id in unnamed:
                continue
            try:
                revision, data = stored.get(run.id, (0, None))
                before = None if data is None else _decode(data)
                if run.pruned & EXECUTABLES and before is not None:
                    # The executables were deleted: the contribution from before is the better one.
                    new: Contribution | None = before
                elif each.is_large:
                    new = _contribution_of_large(database, run)
                    if new is None:
                        continue
                else:
                    facts = _facts(database, run, nodes.get(run.id, {}))
                    new = contribution(run, facts, names)
            except StoreError:
                raise
            except Exception as error:
                logger.debug("the rollups of run %d failed", run.id, exc_info=True)
                failures.append(_Failure(run.id, run.cluster, reason_of(error)))
                continue
            # A job that turned out not to have started keeps an empty contribution, for exports.
            if new is None and before is not None:
                new = _NOTHING
            if new == before:
                new = None
            yield _Change(run.id, run.cluster, run.changes, before, revision, new)


def _facts(database: Database, run: RunFacts, nodes: dict[int, NodeFacts]) -> list[NodeFacts]:
    if not run.midnights():
        return list(nodes.values())
    with database.query() as transaction:
        return with_day_boundaries(transaction, run, nodes)


def _in_bytes(database: Database, ids: Sequence[int]) -> Iterator[set[int]]:
    """Divide runs so that the stored contributions of each part are of bounded size."""
    with database.query() as transaction:
        keys = [(id,) for id in ids]
        sizes = dict(transaction.look_up(_SQL["sizes_of_contributions"], keys))
    part: set[int] = set()
    size = 0
    for id in ids:
        size += sizes.get(id, 0)
        if part and size > _MAX_BYTES:
            yield part
            part, size = set(), sizes.get(id, 0)
        part.add(id)
    if part:
        yield part


def _contribution_of_large(database: Database, run: RunFacts) -> Contribution | None:
    """The contribution of a run with too many executables to be read: the database sums them by
    path. None if a path has no name yet."""
    with database.query() as transaction:
        rows = transaction.look_up(_SQL["nodes_of_runs"], [(run.id,)])
        nodes = {id: NodeFacts(cpu_time, ()) for _, id, cpu_time in rows}
        totals = transaction.execute(_SQL["total_uses_of_run"], {"id": run.id}).fetchall()
        values = {"id": run.id, "limit": MAX_PATHS}
        largest = transaction.execute(_SQL["largest_uses_of_run"], values).fetchall()
        software = {software_id for _, software_id, *_ in largest if software_id}
        names = read_names(transaction, software)
        facts = with_day_boundaries(transaction, run, nodes)
    if any(unnamed for *_, unnamed in totals):
        return None
    used, uncounted, executions, gpu_time = 0, 0, 0, 0
    for without_counter, high, low, count, gpu_high, gpu_low, _ in totals:
        used += _joined(high, low)
        uncounted += _joined(high, low) if without_counter else 0
        executions += int(count)
        gpu_time += _joined(gpu_high, gpu_low)
    paths = [
        PathUse(
            bytes(digest), software_id, _joined(high, low), int(count), _joined(gpu_high, gpu_low)
        )
        for digest, software_id, high, low, count, gpu_high, gpu_low in largest
    ]
    rest = used - sum(path.cpu_time for path in paths)
    executions -= sum(path.executions for path in paths)
    gpu_time -= sum(path.gpu_time for path in paths)
    if rest or executions or gpu_time:
        paths.append(PathUse(b"", OTHER, rest, executions, gpu_time))
    # Without a counter the sum of the executables counts, as on nodes that are read completely.
    facts.append(NodeFacts(uncounted, ()))
    counted = sum(node.counted() for node in facts)
    return contribution(run, facts, names, PathUses(paths, max(counted - used, 0)))


def _joined(high: int, low: int) -> int:
    return (int(high) << 32) + int(low)


def read_run(transaction: Transaction, run_id: int) -> RunFacts | None:
    """One run; None if it was deleted."""
    row = transaction.execute(_RUN_BY_ID, {"id": run_id}).fetchone()
    return None if row is None else RunFacts(*row)


class RunNodes(NamedTuple):
    """The nodes of some runs."""

    #: By the ids of run and node.
    nodes: dict[int, dict[int, NodeFacts]]
    #: Runs with a path to which the rules were not yet applied.
    unnamed: set[int]
    #: The ids of their rows of software.
    software: set[int]


def read_nodes(transaction: Transaction, run_ids: Iterable[int]) -> RunNodes:
    """The nodes of some runs."""
    keys = [(id,) for id in run_ids]
    uses: dict[int, list[Use]] = {}
    unnamed, software = set(), set()
    for run_id, run_node_id, digest, software_id, *figures in transaction.look_up(
        _SQL["uses_of_runs"], keys
    ):
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
    for run_id, run_node_id, cpu_time in transaction.look_up(_SQL["nodes_of_runs"], keys):
        facts = NodeFacts(cpu_time, uses.get(run_node_id, ()))
        nodes.setdefault(run_id, {})[run_node_id] = facts
    return RunNodes(nodes, unnamed, software)


def read_names(transaction: Transaction, ids: Collection[int]) -> dict[int, RowName]:
    """The names of rows of software."""
    rows = transaction.look_up(_SQL["software_names"], [(id,) for id in ids])
    return {id: RowName(*columns) for id, *columns in rows}


def _store_bisecting(
    database: Database,
    changes: Sequence[_Change],
    failures: list[_Failure],
    stopped: Callable[[], bool],
) -> tuple[int, int]:
    """Store contributions; a group that fails by its values is halved, down to the run at fault.

    Returns how many runs were processed and changed.
    """
    if not changes:
        return 0, 0
    try:
        if len(changes) == 1 and changes[0].rows() > ROWS_BATCH_SIZE:
            return _store_in_pieces(database, changes[0], stopped)
        return _store(database, changes)
    except (StoreError, OverflowError) as error:
        if isinstance(error, StoreError) and not database.rejected_values(error):
            raise
        if len(changes) == 1:
            failures.append(_Failure(changes[0].run_id, changes[0].cluster, reason_of(error)))
            return 0, 0
    middle = len(changes) // 2
    done, changed = _store_bisecting(database, changes[:middle], failures, stopped)
    more = _store_bisecting(database, changes[middle:], failures, stopped)
    return done + more[0], changed + more[1]


def _store(database: Database, changes: Sequence[_Change]) -> tuple[int, int]:
    """Store contributions in one transaction, without runs that a writer has locked."""
    with database.write() as transaction:
        transaction.lock("sums", ["sums"])
        sums = _Sums(transaction)
        changes = _unlocked(transaction, changes)
        for change in changes:
            sums.replace(change)
        sums.store()
    return len(changes), sums.changed


def _store_in_pieces(
    database: Database, change: _Change, stopped: Callable[[], bool]
) -> tuple[int, int]:
    """Store a contribution of many rows in several transactions, some days in each.

    The stored contribution is at any time exactly what the rollups contain, so that the next
    process continues where this one stopped or was killed.
    """
    assert change.after is not None
    for piece in _pieces(change.before or _NOTHING, change.after):
        if stopped() or _store(database, [change._replace(after=piece, changes=-1)]) != (1, 1):
            return 0, 0
        with database.query() as transaction:
            rows = transaction.look_up(_SQL["revisions_of_runs"], [(change.run_id,)])
            revision = dict(rows).get(change.run_id, 0)
        change = change._replace(before=piece, revision=revision)
        time.sleep(_PAUSE)
    _store(database, [change._replace(after=None)])
    return 1, 1


def _pieces(before: Contribution, after: Contribution) -> Iterator[Contribution]:
    """The contributions on the way from one to another, each with the changes of some days."""
    if before.owner() != after.owner() and before.days and after.days:
        yield from _pieces(before, before.with_days([]))
        yield from _pieces(after.with_days([]), after)
        return
    old, new = ({day.day: day for day in each.days} for each in (before, after))
    owner = after if after.days else before
    current, rows = dict(old), 0
    for number in sorted(old.keys() | new.keys()):
        size = sum(len(each[number].software) + 1 for each in (old, new) if number in each)
        if rows and rows + size > ROWS_BATCH_SIZE:
            yield owner.with_days(current[day] for day in sorted(current))
            rows = 0
        rows += size
        if number in new:
            current[number] = new[number]
        else:
            current.pop(number)
    yield after


def _skip_locked(transaction: Transaction, sql: str, table: str) -> str:
    """Lock the rows of a query, without those that a writer has locked; they stay stale.

    Nothing waits here, so that no deadlock with a writer is possible.
    """
    lock = f" FOR NO KEY UPDATE OF {table} SKIP LOCKED" if transaction.postgresql else ""
    return sql + lock


def _unlocked(transaction: Transaction, changes: Sequence[_Change]) -> list[_Change]:
    """The changes whose runs still exist, are not locked by a writer, and have the contribution
    from which the change was computed."""
    keys = [(change.run_id,) for change in changes]
    sql = _skip_locked(transaction, _SQL["changes_of_runs"], "runs")
    runs = dict(transaction.look_up(sql, keys))
    revisions = dict(transaction.look_up(_SQL["revisions_of_runs"], keys))
    unlocked = revisions
    if transaction.postgresql:
        # A process that deletes a run locks its contribution first, and then waits for the run.
        sql = _skip_locked(transaction, _SQL["revisions_of_runs"], "contributions")
        unlocked = dict(transaction.look_up(sql, keys))
    return [
        change
        for change in changes
        if change.run_id in runs
        and revisions.get(change.run_id, 0) == change.revision
        and (change.run_id in unlocked or change.run_id not in revisions)
    ]


def _subtract_all_dropped(database: Database) -> Iterator[Round]:
    while _subtract_dropped(database, BATCH_SIZE) == BATCH_SIZE:
        yield Round(0, 0, 0)


def _subtract_dropped(database: Database, limit: int) -> int:
    """Subtract the contributions of deleted runs; returns how many were found."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["dropped_contributions"], {"limit": limit}).fetchall()
    group: list[int] = []
    size = 0
    for run_id, length in rows:
        if group and size + length > _MAX_DROPPED_BYTES:
            _subtract(database, group)
            group, size = [], 0
        group.append(run_id)
        size += length
    if group:
        _subtract(database, group)
    return len(rows)


def _subtract(database: Database, run_ids: Sequence[int]) -> None:
    """Subtract the contributions of some deleted runs; one of many rows in several transactions."""
    left = list(run_ids)
    while left:
        with database.write() as transaction:
            transaction.lock("sums", ["sums"])
            sums = _Sums(transaction)
            left = [run_id for run_id in left if _subtract_some(transaction, sums, run_id)]
            sums.store()


def _subtract_some(transaction: Transaction, sums: _Sums, run_id: int) -> bool:
    """Subtract some days of a deleted run; True if there are more."""
    sql = _skip_locked(transaction, _SQL["dropped_contribution"], "contributions")
    row = transaction.execute(sql, {"run_id": run_id}).fetchone()
    if row is None:
        return False
    before = _decode(bytes(row[0]))
    after = next(_pieces(before, _NOTHING))
    sums.subtract(run_id, before, after)
    return bool(after.days)


class _Sums:
    """The differences of one transaction, collected so that each row is updated once."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._rows: dict[str, dict[tuple[Any, ...], list[int]]] = {table: {} for table in _TABLES}
        self._changed: list[tuple[int, bytes, bool]] = []
        self._processed: list[dict[str, int]] = []
        #: Contributions that were deleted, each of which is a revision without a row.
        self._deleted = 0

    @property
    def changed(self) -> int:
        """The number of runs with a changed contribution."""
        return len(self._changed)

    def replace(self, change: _Change) -> None:
        """Replace the old contribution of a run by the new one, and clear its stale flag unless it
        has changed again."""
        self._processed.append({"id": change.run_id, "changes": change.changes})
        if change.after is None:
            return
        if change.before is not None:
            self._add(-1, change.before)
        self._add(1, change.after)
        self._changed.append((change.run_id, _encode(change.after), False))

    def subtract(self, run_id: int, before: Contribution, after: Contribution) -> None:
        """Reduce the contribution of a run that was deleted, and remove it at the end."""
        self._add(-1, before)
        self._add(1, after)
        if after.days:
            self._changed.append((run_id, _encode(after), True))
        else:
            self._transaction.execute(_SQL["delete_contribution"], {"run_id": run_id})
            self._deleted += 1

    def store(self) -> None:
        """Write the differences."""
        for table, rows in self._rows.items():
            names, _ = _TABLES[table]
            changes = sorted((key, values) for key, values in rows.items() if any(values))
            self._transaction.execute_rows(
                _ADD[table], [(*key, *values) for key, values in changes]
            )
            # A row of zeros would count as a user or as software.
            reduced = [
                dict(zip(names, key, strict=True)) for key, values in changes if min(values) < 0
            ]
            self._transaction.execute_many(_REMOVE_EMPTY[table], reduced)
            self._store_months(table, changes, reduced)
        self._store_contributions()
        self._transaction.execute_many(_SQL["clear_stale"], self._processed)

    def _store_months(
        self,
        table: str,
        changes: Sequence[tuple[tuple[Any, ...], list[int]]],
        reduced: Sequence[dict[str, Any]],
    ) -> None:
        """Write the differences of the days to their months; ``reduced`` are the days that may have
        no row any more."""
        months: dict[tuple[Any, ...], list[int]] = {}
        for (day, *rest), values in changes:
            month, bit = _month_and_bit(day)
            key = (month, *rest)
            row = months.get(key)
            if row is None:
                months[key] = [*values, bit]
                continue
            row[-1] |= bit
            for index, value in enumerate(values):
                row[index] += value
        self._transaction.execute_rows(
            _ADD_MONTH[table], [(*key, *values) for key, values in sorted(months.items())]
        )
        for cleared in reduced:
            cleared["month"], bit = _month_and_bit(cleared["day"])
            cleared["others"] = _ALL_DAYS ^ bit
        self._transaction.execute_many(_CLEAR_DAY[table], reduced)
        self._transaction.execute_many(_REMOVE_MONTH[table], reduced)

    def _store_contributions(self) -> None:
        if not self._changed and not self._deleted:
            return
        checkpoint = read_checkpoint(self._transaction, _REVISION)
        last = checkpoint.value if checkpoint is not None else 0
        rows = [
            {"run_id": run_id, "revision": last + number, "data": data, "dropped": dropped}
            for number, (run_id, data, dropped) in enumerate(self._changed, 1)
        ]
        self._transaction.execute_many(_SQL["set_contribution"], rows)
        set_checkpoint(self._transaction, _REVISION, last + len(rows) + self._deleted)

    def _add(self, sign: int, contribution: Contribution) -> None:
        usage, software = self._rows["usage_by_day"], self._rows["software_by_day"]
        owner = contribution.owner()
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


#: Bits of the days of a month.
_ALL_DAYS: Final = 2**31 - 1


@lru_cache(maxsize=4096)
def _month_and_bit(day: int) -> tuple[int, int]:
    """The month of a day, and the bit of the day in it."""
    month = month_of(day)
    return month, 1 << (day - first_day(month))


def _add_sql(table: str, names: Sequence[str], figures: Sequence[str], *flags: str) -> str:
    """Add to the figures of a row, and set the bits of its flags."""
    every = (*names, *figures, *flags)
    columns = ", ".join(map(quoted, every))
    values = ", ".join(f":{name}" for name in every)
    added = [f"{name} = {table}.{name} + excluded.{name}" for name in figures]
    added += [f"{name} = {table}.{name} | excluded.{name}" for name in flags]
    return (
        f"INSERT INTO {table} ({columns}) VALUES ({values}) "
        f"ON CONFLICT ({', '.join(map(quoted, names))}) DO UPDATE SET {', '.join(added)}"
    )


def _same(names: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(name)} = :{name}" for name in names)


def _remove_empty_sql(table: str) -> str:
    names, figures = _TABLES[table]
    nothing = " AND ".join(f"{name} = 0" for name in figures)
    return f"DELETE FROM {table} WHERE {_same(names)} AND {nothing}"


def _clear_day_sql(table: str) -> str:
    """Clear the bit of a day that has no row."""
    names, _ = _TABLES[table]
    return (
        f"UPDATE {MONTHS[table]} SET days = days & :others WHERE {_same(_month_key(table))} "
        f"AND NOT EXISTS (SELECT 1 FROM {table} WHERE {_same(names)})"
    )


def _month_key(table: str) -> tuple[str, ...]:
    return ("month", *_TABLES[table][0][1:])


_ADD = {table: _add_sql(table, *names_and_figures) for table, names_and_figures in _TABLES.items()}
_ADD_MONTH = {
    table: _add_sql(month, _month_key(table), _TABLES[table][1], "days")
    for table, month in MONTHS.items()
}
_REMOVE_EMPTY = {table: _remove_empty_sql(table) for table in _TABLES}
_CLEAR_DAY = {table: _clear_day_sql(table) for table in _TABLES}
_REMOVE_MONTH = {
    table: f"DELETE FROM {month} WHERE {_same(_month_key(table))} AND days = 0"
    for table, month in MONTHS.items()
}


def month_differences(by_day: str) -> str:
    """A query of the number of rows of a ``:month`` that are not the sums of its days, which are
    those from ``:first`` to before ``:following``."""
    names, figures = _TABLES[by_day]
    owner = ", ".join(map(quoted, names[1:]))
    negative = ", ".join(f"-{name} AS {name}" for name in figures)
    differs = " OR ".join(f"sum({name}) <> 0" for name in (*figures, "days"))
    return (
        f"SELECT count(*) FROM (SELECT {owner} FROM ("
        f"SELECT {owner}, {', '.join(figures)}, 1 << (day - :first) AS days FROM {by_day} "
        f"WHERE day >= :first AND day < :following "
        f"UNION ALL SELECT {owner}, {negative}, -days FROM {MONTHS[by_day]} WHERE month = :month"
        f") AS parts GROUP BY {owner} HAVING {differs}) AS different"
    )


def month_rebuild(by_day: str) -> tuple[str, str]:
    """The statements that replace the rows of a month, with the parameters of
    :func:`month_differences`."""
    names, figures = _TABLES[by_day]
    owner = ", ".join(map(quoted, names[1:]))
    sums = ", ".join(f"sum({name})" for name in figures)
    table = MONTHS[by_day]
    return (
        f"DELETE FROM {table} WHERE month = :month",
        f"INSERT INTO {table} (month, {owner}, {', '.join(figures)}, days) "
        f"SELECT :month, {owner}, {sums}, sum(1 << (day - :first)) FROM {by_day} "
        f"WHERE day >= :first AND day < :following GROUP BY {owner}",
    )
