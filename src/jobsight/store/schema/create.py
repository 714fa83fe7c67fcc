"""Opening a store: a file of SQLite that is new or up to date needs neither Alembic nor SQLAlchemy.

A new file gets its tables by ``new_store.sql``, which is what all revisions come to; a test holds
both equal to the letter, and ``make docs`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jobsight.store.database import Database
from jobsight.store.schema.statements import VERSION

SCRIPT: Final = Path(__file__).parent / "new_store.sql"


def create_or_open(database: Database) -> None:
    """Make the tables what this jobsight knows, or say why that cannot be."""
    if not database.postgresql:
        with database.alone() as connection:
            new = _is_empty(connection)
            ready = new or _revision(connection) == VERSION
        if ready:
            database.choose_journal()
            if not new or _found(database):
                return
    # Older, newer, none of ours, or PostgreSQL.
    from jobsight.store.schema import versions

    versions.bring_up(database)


def _found(database: Database) -> bool:
    """Make the tables, all or none; False where somebody else was faster."""
    with database.write() as transaction:
        if not _is_empty(transaction):
            return False
        for statement in SCRIPT.read_text().split(";\n"):
            transaction.execute(statement)
    return True


def _is_empty(connection: Any) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _revision(connection: Any) -> str | None:
    table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if connection.execute(table).fetchone() is None:
        return None
    found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if found is None else str(found[0])
