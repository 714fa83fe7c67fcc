"""Works, their scripts, and the stored figures of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jobsight.store.database import Database
from jobsight.store.findings.rows import SQL
from jobsight.store.read import pseudonyms
from jobsight.store.transaction import Transaction
from jobsight.util.batching import batched

#: Works that are removed in one transaction.
_BATCH_SIZE = 500


class WorkKey(NamedTuple):
    """What makes two runs the same work."""

    cluster: str
    user: str
    account: str
    kind: Literal["script", "name", "signature"]
    #: A digest of the script, the folded name or the set of programs.
    key: bytes
    #: For people.
    name: str


class StoredFigures(NamedTuple):
    """The encoded figures of a run."""

    run_id: int
    work_id: int | None
    data: bytes


def find_or_add_work(database: Database, work: WorkKey) -> int:
    """The id of a work, which is added if it is new."""
    # A work under a pseudonym would be nobody's.
    assert not pseudonyms.is_active()
    values = work._asdict()
    with database.query() as transaction:
        row = transaction.execute(SQL["find_work"], values).fetchone()
    if row is None:
        with database.write() as transaction:
            transaction.execute(SQL["insert_work"], values)
            row = transaction.execute(SQL["find_work"], values).fetchone()
    return int(row[0])


def add_script(database: Database, key: bytes, text: str) -> None:
    """Store the text of a script, once."""
    with database.write() as transaction:
        transaction.execute(SQL["insert_script"], {"key": key, "text": text.replace("\0", "")})


def find_script(database: Database, key: bytes) -> str | None:
    """The text of a script; a viewer of pseudonyms gets none."""
    if pseudonyms.is_active():
        return None
    with database.query() as transaction:
        row = transaction.execute(SQL["find_script"], {"key": key}).fetchone()
    return None if row is None else str(row[0])


def figures_of_runs(database: Database, run_ids: Sequence[int]) -> dict[int, StoredFigures]:
    """The figures of some runs by their ids."""
    with database.query() as transaction:
        rows = transaction.look_up(SQL["figures_of_runs"], [(id,) for id in run_ids])
        return {row[0]: StoredFigures(row[0], row[1], bytes(row[2])) for row in rows}


def figures_of_work(
    database: Database, work_id: int, before: int, limit: int
) -> list[StoredFigures]:
    """The figures of the latest runs of a work that started before a time, the latest first."""
    values = {"work_id": work_id, "before": before, "limit": limit}
    with database.query() as transaction:
        rows = transaction.execute(SQL["figures_of_work"], values).fetchall()
    return [StoredFigures(run_id, work_id, bytes(data)) for run_id, data in rows]


def remove_unused_works(database: Database) -> int:
    """Remove works without runs, and scripts without works; returns how many works."""
    removed, after = 0, 0
    while True:
        with database.query() as transaction:
            values = {"after": after, "limit": _BATCH_SIZE}
            ids = [id for (id,) in transaction.execute(SQL["unused_works"], values).fetchall()]
        if not ids:
            break
        for some in batched(ids, _BATCH_SIZE):
            with database.write() as transaction:
                _remove(transaction, some)
        removed, after = removed + len(ids), ids[-1]
    if removed:
        with database.write() as transaction:
            transaction.execute(SQL["delete_unused_scripts"])
    return removed


def _remove(transaction: Transaction, ids: Sequence[int]) -> None:
    transaction.execute_rows(SQL["delete_work"], [(id,) for id in ids])
