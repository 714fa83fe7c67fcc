"""What was shown, to whom and where; and what the next runs of the same work did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from jobsight.model import SECOND, RunReference
from jobsight.store.database import Database
from jobsight.store.findings.rows import SQL, StoredCost
from jobsight.store.read import pseudonyms, viewed
from jobsight.store.transaction import Transaction

Place: TypeAlias = Literal["report", "page", "api", "mail"]
#: Viewers of one finding that are recorded by name; the others are recorded together.
MAX_VIEWERS: Final = 20
#: Characters of the name of a viewer.
MAX_VIEWER: Final = 64
#: The viewer that stands for all further ones.
OTHERS: Final = "others"
#: Works that are compared, and runs of each.
MAX_WORKS: Final = 1000
MAX_RUNS: Final = 200


class Shown(NamedTuple):
    """One finding that somebody was shown."""

    run_id: int
    kind: str
    viewer: str
    place: Place


def record_shown(database: Database, shown: Mapping[Shown, int], now: int) -> None:
    """Count findings as shown, by how often."""
    if not shown:
        return
    with database.write() as transaction:
        viewers = _viewers(transaction, {each.run_id for each in shown})
        rows = []
        for each, count in sorted(shown.items()):
            viewer = each.viewer.replace("\0", "")[:MAX_VIEWER]
            key = (each.run_id, each.kind)
            if viewers.get(key, 0) >= MAX_VIEWERS:
                viewer = OTHERS
            rows.append(each._asdict() | {"viewer": viewer, "time": now, "count": count})
        transaction.execute_many(SQL["add_shown"], rows)


def _viewers(transaction: Transaction, run_ids: set[int]) -> dict[tuple[int, str], int]:
    rows = transaction.look_up(SQL["count_viewers"], [(id,) for id in sorted(run_ids)])
    return {(run_id, kind): count for run_id, kind, count in rows}


def was_shown(database: Database, run: str, kind: str, user: str) -> bool:
    """Whether a user was shown a finding of a run, anywhere."""
    found = RunReference.parse(run)
    start = (found.start or 0) // SECOND * SECOND
    values = {
        "cluster": found.cluster or "",
        "job_id": found.job_id,
        "first": start,
        "last": start + SECOND - 1,
        "kind": kind,
        "viewer": user[:MAX_VIEWER],
    }
    with database.query() as transaction:
        return transaction.execute(SQL["was_shown"], values).fetchone() is not None


class ShownWork(NamedTuple):
    """A work whose finding of a kind was shown."""

    work_id: int
    kind: str
    first: int
    #: How often.
    times: int


class WorkRun(NamedTuple):
    """One run of a work, and what a kind of finding cost it."""

    run_id: int
    start: int
    state: str
    cpus: int | None
    gpus: int | None
    memory: int | None
    time_limit: int | None
    #: The state of the finding; None without one.
    finding: str | None
    cost: StoredCost

    @property
    def request(self) -> tuple[int | None, ...]:
        return self.cpus, self.gpus, self.memory, self.time_limit


class WorkName(NamedTuple):
    """A work for people."""

    cluster: str
    user: str
    account: str
    kind: str
    name: str


class ShownTo(NamedTuple):
    """Whose works are meant; an empty name is anybody."""

    user: str = ""
    account: str = ""
    cluster: str = ""


ANYBODY: Final = ShownTo()


def shown_works(
    database: Database,
    kind: str | None,
    since: int,
    owner: ShownTo = ANYBODY,
    limit: int = MAX_WORKS,
) -> list[ShownWork]:
    """Works with shown findings, the latest first; not more than the limit."""
    values = {"kind": kind or "", "since": since, "limit": limit, **owner._asdict()}
    with database.query() as transaction:
        rows = transaction.execute(SQL["shown_works"], values).fetchall()
    return [ShownWork(work_id, kind, first, int(count)) for work_id, kind, first, count in rows]


def shown_kinds_of_work(database: Database, work_id: int) -> list[ShownWork]:
    """The kinds of findings of a work that were shown."""
    with database.query() as transaction:
        rows = transaction.execute(SQL["shown_kinds_of_work"], {"work_id": work_id}).fetchall()
    return [ShownWork(work_id, kind, first, int(count)) for kind, first, count in rows]


def runs_of_work(database: Database, work_id: int, kind: str) -> list[WorkRun]:
    """The latest ended runs of a work by start."""
    values = {"work_id": work_id, "kind": kind, "limit": MAX_RUNS}
    with database.query() as transaction:
        rows = transaction.execute(SQL["runs_of_work"], values).fetchall()
    return [_work_run(row) for row in reversed(rows)]


def runs_of_work_until(database: Database, work_id: int, run_id: int, kind: str) -> list[WorkRun]:
    """The latest ended runs of a work that were stored up to one of them, by start."""
    values = {"work_id": work_id, "run_id": run_id, "kind": kind, "limit": MAX_RUNS}
    with database.query() as transaction:
        rows = transaction.execute(SQL["runs_of_work_until"], values).fetchall()
    return sorted(map(_work_run, rows), key=lambda run: (run.start, run.run_id))


def _work_run(row: Sequence[Any]) -> WorkRun:
    id, start, state, cpus, gpus, memory, limit, finding, *cost = row
    return WorkRun(id, start, state, cpus, gpus, memory, limit, finding, StoredCost(*cost))


def describe_work(database: Database, work_id: int) -> WorkName:
    with database.query() as transaction:
        row = transaction.execute(SQL["describe_work"], {"id": work_id}).fetchone()
    if row is None:
        return WorkName("", "", "", "", "")
    found = WorkName(*row)
    viewed.note(found.user)
    return found._replace(
        user=pseudonyms.pseudonym("user", found.user) or "",
        account=pseudonyms.pseudonym("account", found.account) or "",
        name=pseudonyms.pseudonym("job", found.name) or "",
    )
