"""Which statements a store sends, and which of them would read a whole table of SQLite."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from jobsight.store.store import Store


@contextmanager
def traced(store: Store) -> Iterator[set[str]]:
    """Everything that is sent meanwhile, with its values."""
    seen: set[str] = set()

    def listen(connection: Any, *_: object) -> None:
        connection.set_trace_callback(seen.add)

    engine = store.database.engine
    event.listen(engine, "connect", listen)
    # Connections that are open already would not tell.
    engine.dispose()
    with store.database.alone() as writer:
        writer.set_trace_callback(seen.add)
    connect = store.database._connect
    assert connect is not None

    def traced_connect() -> sqlite3.Connection:
        connection = connect()
        connection.set_trace_callback(seen.add)
        return connection

    store.database._readers.clear()
    store.database._connect = traced_connect
    try:
        yield seen
    finally:
        writer.set_trace_callback(None)
        store.database._readers.clear()
        store.database._connect = connect
        event.remove(engine, "connect", listen)
        engine.dispose()


def scans(file: str, statements: Iterable[str]) -> list[str]:
    """The plans that read a whole table or index which grows."""
    connection = sqlite3.connect(file)
    found = []
    for statement in statements:
        if statement.split()[0] not in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE"):
            continue
        plans = [plan for *_, plan in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        # A part of the statement is no table; how it is read has a plan of its own.
        parts = {
            plan.split()[1] for plan in plans if plan.startswith(("CO-ROUTINE", "MATERIALIZE"))
        }
        for plan in plans:
            if plan.split()[:2] not in [["SCAN", part] for part in parts] and _reads_all(plan):
                found.append(f"{plan}: {' '.join(statement.split())[:100]}")
    connection.close()
    return found


def _reads_all(plan: str) -> bool:
    if plan.startswith("SCAN"):
        # The full-text index reads its own settings, one row; json_each the values of a statement.
        harmless = ("CONSTANT ROW", "wanted", "run_search_config", "json_each VIRTUAL TABLE")
        return not any(text in plan for text in harmless)
    # All runs of a cluster are as good as all runs, but for those that have not ended.
    return plan.endswith("(cluster=?)") and "ix_runs_open" not in plan
