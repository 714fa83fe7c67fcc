"""Dead letters: work that failed and is set aside, so that it stops nothing else.

Work that may end the process is marked before it begins (:func:`mark`) and resolved when it has
succeeded (:func:`resolve`). A process that is killed in between leaves the mark, and the next one
passes the work over. An operator lists the dead letters, and has each tried again or gives it up.
"""

from __future__ import annotations

import logging
import time
from typing import Final, NamedTuple

import msgspec

from jobsight.errors import JobsightError, StoreError
from jobsight.model import SECOND, Run
from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction
from jobsight.util.outer import Time

logger = logging.getLogger(__name__)

#: The kind of a run whose daily rollups cannot be computed or stored; its key is the id of the run.
ROLLUP: Final = "rollup"
#: The kind of a run that cannot be judged by the rules; its key is the id of the run.
FINDING: Final = "finding"
#: The kind of a day of a node whose time series cannot be joined or downsampled; its key is the id
#: of the row of ``node_days``.
NODE_DAY: Final = "node-day"
#: The reason of work that is still being done, or that ended the process.
INTERRUPTED: Final = "the process ended during this work"
#: Characters of a reason: it may quote what an agent sent.
MAX_REASON: Final = 500
#: A dead letter is tried again after this time, and this many times in all.
RETRY_DELAY: Final = 3600 * SECOND
MAX_TRIES: Final = 3

_SQL: Final = load_statements("dead_letters")
#: What giving up means beyond removing the dead letter, by kind.
_GIVE_UP: Final = {
    ROLLUP: _SQL["give_up_rollup"],
    FINDING: _SQL["give_up_finding"],
    NODE_DAY: _SQL["give_up_node_day"],
}


class DeadLetter(msgspec.Struct):
    """Work that was set aside."""

    kind: str
    #: What the work was for, unique among those of its kind.
    key: str
    cluster: str
    reason: str
    #: The first and the last failure.
    first: Time
    last: Time
    tries: int
    #: The run that the key names, if it names one.
    run: str | None = None

    @property
    def name(self) -> str:
        """The name that :func:`retry` and :func:`drop` take."""
        return f"{self.kind}:{self.key}"


class DeadLetterCount(NamedTuple):
    cluster: str
    kind: str
    letters: int


def reason_of(error: Exception) -> str:
    """What an error says, with its type if it is not a sentence for people."""
    if isinstance(error, JobsightError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def mark(
    transaction: Transaction,
    kind: str,
    key: str,
    cluster: str,
    reason: str = INTERRUPTED,
    now: int | None = None,
) -> None:
    """Set work aside, or count one more try of it."""
    logger.debug("dead letter %s:%s of cluster %s: %s", kind, key, cluster, reason[:MAX_REASON])
    values = {"kind": kind, "key": key, "cluster": cluster, "reason": reason[:MAX_REASON]}
    transaction.execute(_SQL["mark"], values | {"now": time.time_ns() if now is None else now})


def set_reason(
    transaction: Transaction, kind: str, key: str, reason: str, now: int | None = None
) -> None:
    """Say why marked work has failed."""
    logger.debug("dead letter %s:%s: %s", kind, key, reason[:MAX_REASON])
    values = {"kind": kind, "key": key, "reason": reason[:MAX_REASON]}
    transaction.execute(
        _SQL["set_reason"], values | {"now": time.time_ns() if now is None else now}
    )


def resolve(transaction: Transaction, kind: str, key: str) -> None:
    """Remove the mark of work that has succeeded."""
    transaction.execute(_SQL["resolve"], {"kind": kind, "key": key})


def due_keys(database: Database, kind: str, limit: int) -> list[str]:
    """The keys of those whose last try failed some time ago. One whose last try never returned
    would end this process too: only an operator has it tried again."""
    values = {
        "kind": kind,
        "tries": MAX_TRIES,
        "before": time.time_ns() - RETRY_DELAY,
        "interrupted": INTERRUPTED,
        "limit": limit,
    }
    with database.query() as transaction:
        return [key for (key,) in transaction.execute(_SQL["due"], values).fetchall()]


def list_dead_letters(database: Database, limit: int = 1000) -> list[DeadLetter]:
    """The dead letters, the last failure first."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["list"], {"limit": limit}).fetchall()
    letters = []
    for *columns, job_id, start in rows:
        letter = DeadLetter(*columns)
        if job_id is not None:
            letter.run = str(Run(letter.cluster, job_id, start))
        letters.append(letter)
    return letters


def count_dead_letters(database: Database) -> list[DeadLetterCount]:
    """The number of dead letters by cluster and kind."""
    with database.query() as transaction:
        return [DeadLetterCount(*row) for row in transaction.execute(_SQL["count"]).fetchall()]


def all_names(database: Database) -> list[str]:
    """The names of all dead letters."""
    with database.query() as transaction:
        rows = transaction.execute(_SQL["names"]).fetchall()
    return [f"{kind}:{key}" for kind, key in rows]


def retry(database: Database, name: str) -> None:
    """Have work tried again by the next round of its worker."""
    _remove(database, name, give_up=False)


def drop(database: Database, name: str) -> None:
    """Give work up: it is not tried again until its data changes."""
    _remove(database, name, give_up=True)


def _remove(database: Database, name: str, *, give_up: bool) -> None:
    kind, _, key = name.partition(":")
    values = {"kind": kind, "key": key}
    with database.write() as transaction:
        if transaction.execute(_SQL["find"], values).fetchone() is None:
            raise StoreError(
                f"there is no dead letter {name!r}; expected a name of "
                "`jobsight store dead-letters`, such as rollup:42"
            )
        resolve(transaction, kind, key)
        logger.debug("dead letter %s: %s", name, "given up" if give_up else "tried again")
        if give_up and kind in _GIVE_UP:
            transaction.execute(_GIVE_UP[kind], {"key": key})
