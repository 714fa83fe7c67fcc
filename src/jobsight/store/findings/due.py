"""Which runs are to be judged, and which of several servers does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jobsight.model import SECOND
from jobsight.store import dead_letters
from jobsight.store.checkpoints import (
    is_at_work,
    read_checkpoint,
    remove_checkpoint,
    set_checkpoint,
)
from jobsight.store.database import Database
from jobsight.store.dead_letters import FINDING
from jobsight.store.findings.rows import SQL, Owner, owner_of
from jobsight.store.schema.statements import quoted

#: A server that has not renewed its lease for this long has ended.
LEASE: Final = 120 * SECOND
#: A running run of which nothing was heard for this long is judged again only after a change.
_SILENT: Final = 3600 * SECOND
#: Before any run.
_DISTANT_PAST: Final = -(2**62)
#: The run up to which the rules in use were applied, and their digest.
_RULES: Final = "findings rules"
#: The runs that are being judged, and by whom.
_IN_PROGRESS: Final = "findings in progress"
#: The value of the checkpoint when all runs were judged.
_ALL: Final = 2**63 - 1


class DueRun(NamedTuple):
    """A run that is to be judged."""

    id: int
    cluster: str
    user: str | None
    account: str | None
    partition: str | None
    start: int
    changes: int
    #: What retention has removed, as bits of jobsight.store.maintenance.retention.
    pruned: int

    @property
    def owner(self) -> Owner:
        """The key of its sums."""
        return owner_of(self.cluster, self.user, self.account, self.partition, self.start)


_COLUMNS: Final = ", ".join(f"runs.{quoted(name)}" for name in DueRun._fields)


def _query(database: Database, name: str, **values: int) -> list[DueRun]:
    with database.query() as transaction:
        rows = transaction.execute(SQL[name].replace(":columns", _COLUMNS), values).fetchall()
    return [DueRun(*row) for row in rows]


def unjudged_runs(
    database: Database, limit: int, after: int = 0, since: int = _DISTANT_PAST
) -> list[DueRun]:
    """Runs that ended since a time and changed since they were judged, by id."""
    return _query(database, "unjudged_runs", limit=limit, after=after, since=since)


def running_runs(database: Database, limit: int, now: int, after: int = 0) -> list[DueRun]:
    """Running runs, by id."""
    return _query(database, "running_runs", limit=limit, after=after, seen=now - _SILENT)


def runs_with_figures(database: Database, limit: int, after: int) -> list[DueRun]:
    """Runs whose figures are stored, by id."""
    return _query(database, "runs_with_figures", limit=limit, after=after)


def due_run(database: Database, run_id: int) -> DueRun | None:
    return next(iter(_query(database, "run_to_judge", id=run_id)), None)


class Array(NamedTuple):
    """A job array."""

    cluster: str
    array_job_id: int


def arrays_of_runs(database: Database, run_ids: Sequence[int]) -> set[Array]:
    """The arrays that some runs are tasks of."""
    with database.query() as transaction:
        rows = transaction.look_up(SQL["arrays_of_runs"], [(id,) for id in run_ids])
        return {Array(*row) for row in rows}


def recent_arrays(database: Database, since: int, limit: int) -> set[Array]:
    """Arrays of which a task has ended since a time."""
    with database.query() as transaction:
        values = {"since": since, "limit": limit}
        rows = transaction.execute(SQL["recent_arrays"], values).fetchall()
    return {Array(*row) for row in rows}


def is_open(database: Database, array: Array) -> bool:
    """Whether a task of an array is pending, runs or is to be judged."""
    name = str(array.array_job_id)
    values = {**array._asdict(), "name": name, "tasks": f"{name}!_[%"}
    with database.query() as transaction:
        return bool(transaction.execute(SQL["is_array_open"], values).fetchone()[0])


def is_judged(database: Database, cluster: str, job_id: int) -> bool:
    """Whether all runs of a job, array or heterogeneous job were judged since they changed."""
    values = {"cluster": cluster, "job_id": job_id}
    with database.query() as transaction:
        return not transaction.execute(SQL["is_job_unjudged"], values).fetchone()[0]


def judged_tasks(database: Database, array: Array, limit: int) -> list[tuple[DueRun, bytes]]:
    """The ended tasks of an array with their encoded figures, by id."""
    statement = SQL["judged_tasks"].replace(":columns", _COLUMNS)
    with database.query() as transaction:
        rows = transaction.execute(statement, {**array._asdict(), "limit": limit}).fetchall()
    return [(DueRun(*row[:-1]), bytes(row[-1])) for row in rows]


def count_unjudged(database: Database) -> int:
    with database.query() as transaction:
        return int(transaction.execute(SQL["count_unjudged"]).fetchone()[0])


def count_with_figures(database: Database, after: int) -> int:
    with database.query() as transaction:
        row = transaction.execute(SQL["count_runs_with_figures"], {"after": after}).fetchone()
    return int(row[0])


def due_dead_letters(database: Database, limit: int) -> list[int]:
    """Runs whose last try failed some time ago."""
    return [int(key) for key in dead_letters.due_keys(database, FINDING, limit)]


class Failure(NamedTuple):
    """A run that could not be judged."""

    run_id: int
    cluster: str
    reason: str


def set_aside(database: Database, failures: Sequence[Failure], *, marked: bool = False) -> None:
    """Make runs that failed dead letters, or say why those failed that were marked before."""
    if not failures:
        return
    with database.write() as transaction:
        for each in failures:
            key = str(each.run_id)
            if marked:
                dead_letters.set_reason(transaction, FINDING, key, each.reason)
            else:
                dead_letters.mark(transaction, FINDING, key, each.cluster, each.reason)


def mark(database: Database, run: DueRun) -> None:
    """Make a run that may end the process a dead letter before it is judged."""
    with database.write() as transaction:
        dead_letters.mark(transaction, FINDING, str(run.id), run.cluster)


def resolve(database: Database, run_id: int) -> None:
    """The end of such a judgement."""
    with database.write() as transaction:
        dead_letters.resolve(transaction, FINDING, str(run_id))


def take_lease(database: Database, owner: str, now: int) -> bool:
    """Whether this process, given by host name and PID, is the one that judges; for some time."""
    with database.query() as transaction:
        row = transaction.execute(SQL["read_lease"]).fetchone()
    until, holder = (0, "") if row is None else (row[0], row[1] or "")
    if until > now and holder != owner and _may_live(holder, owner):
        return False
    with database.write() as transaction:
        transaction.execute(SQL["insert_lease"])
        values = {"until": now + LEASE, "owner": owner, "value": until, "before": holder}
        return transaction.execute(SQL["take_lease"], values).rowcount == 1


def _may_live(holder: str, owner: str) -> bool:
    """Whether another process holds the lease; of another host nothing is known."""
    if holder.rpartition(" ")[0] != owner.rpartition(" ")[0]:
        return bool(holder)
    host, _, pid = holder.rpartition(" ")
    return is_at_work(host, int(pid))


def release_lease(database: Database, owner: str, now: int) -> None:
    """Let another process judge at once."""
    with database.write() as transaction:
        row = transaction.execute(SQL["read_lease"]).fetchone()
        if row is not None and row[1] == owner:
            values = {"until": 0, "owner": "", "value": row[0], "before": owner}
            transaction.execute(SQL["take_lease"], values)


def begin(database: Database, runs: Sequence[DueRun]) -> None:
    """Record a group before it is judged: a process that is killed leaves the record."""
    with database.write() as transaction:
        ids = " ".join(str(run.id) for run in runs)
        set_checkpoint(transaction, _IN_PROGRESS, len(runs), ids)


def end(database: Database) -> None:
    with database.write() as transaction:
        remove_checkpoint(transaction, _IN_PROGRESS)


def interrupted(database: Database) -> list[int]:
    """The runs that were being judged when the process with the lease was killed, without those
    that were judged alone then: only an operator has them tried again."""
    with database.query() as transaction:
        checkpoint = read_checkpoint(transaction, _IN_PROGRESS)
        ids = (checkpoint.text or "").split() if checkpoint else []
        rows = transaction.look_up(SQL["dead_letters_of_runs"], [(id,) for id in ids])
        set_aside = {key for (key,) in rows}
    return [int(id) for id in ids if id not in set_aside]


class Progress(NamedTuple):
    """How far the rules in use were applied to runs that were judged before."""

    digest: str
    #: The last run; None at the end.
    after: int | None


def read_progress(database: Database) -> Progress | None:
    """None before any rules were adopted."""
    with database.query() as transaction:
        checkpoint = read_checkpoint(transaction, _RULES)
    if checkpoint is None:
        return None
    after = None if checkpoint.value == _ALL else checkpoint.value
    return Progress(checkpoint.text or "", after)


def set_progress(database: Database, digest: str, after: int | None) -> bool:
    """Record how far rules were applied; False if another process has adopted other ones."""
    with database.write() as transaction:
        checkpoint = read_checkpoint(transaction, _RULES)
        if checkpoint is None or checkpoint.text != digest:
            return False
        set_checkpoint(transaction, _RULES, _ALL if after is None else after, digest)
    return True


def adopt(database: Database, digest: str) -> bool:
    """Make rules those in use; True if others were in use before, so that all runs are due."""
    with database.write() as transaction:
        checkpoint = read_checkpoint(transaction, _RULES)
        if checkpoint is not None and checkpoint.text == digest:
            return False
        # Without rules before, no run was judged by others.
        set_checkpoint(transaction, _RULES, _ALL if checkpoint is None else 0, digest)
    return checkpoint is not None
