"""Open or create a store. An SQLite file that is new or of the current version needs neither
Alembic nor SQLAlchemy.

A new file gets its tables from ``new_store.sql``, which ``make docs`` generates from the
revisions; a test compares the two.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from jobsight.store.database import Database
from jobsight.store.schema.statements import VERSION

logger = logging.getLogger(__name__)

SCRIPT: Final = Path(__file__).parent / "new_store.sql"


def create_or_open(database: Database) -> None:
    """Make sure that the tables have the current version, or raise a :class:`StoreError`."""
    if not database.postgresql:
        with database.alone() as connection:
            new = _is_empty(connection)
            current = new or _version(connection) == VERSION
        if current:
            database.choose_journal()
            if not new or _create(database):
                return
    from jobsight.store.schema import versions

    versions.prepare(database)


def _create(database: Database) -> bool:
    """Create all tables in one transaction; False if another process was faster."""
    with database.write() as transaction:
        if not _is_empty(transaction):
            return False
        for statement in SCRIPT.read_text().split(";\n"):
            transaction.execute(statement)
    logger.info("store %s created, schema %s", database.where, VERSION)
    return True


def _is_empty(connection: Any) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _version(connection: Any) -> str | None:
    table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    if connection.execute(table).fetchone() is None:
        return None
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])
