"""Which batches of agents the store has received, and the runs of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("read")
_PAGE: Final = 5000


def received_batches(
    database: Database, cluster: str
) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """The intervals of received sequence numbers of each spool, by node and UUID of the spool."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    with database.query() as transaction:
        rows = transaction.execute(_SQL["received_batches"], {"cluster": cluster}).fetchall()
    for node, spool, first, last in rows:
        found.setdefault((node, spool), []).append((first, last))
    return found


def runs_of_cluster(database: Database, cluster: str) -> Iterator[tuple[int, int]]:
    """The id and the job id of all runs of a cluster."""
    after = 0
    while True:
        values = {"cluster": cluster, "after": after, "limit": _PAGE}
        with database.query() as transaction:
            rows = transaction.execute(_SQL["runs_of_cluster"], values).fetchall()
        yield from ((row[0], row[1]) for row in rows)
        if len(rows) < _PAGE:
            return
        after = rows[-1][0]
