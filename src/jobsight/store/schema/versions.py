"""The schema version of a store: migrate an older store, refuse one of an unknown version."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Connection, inspect, text

from jobsight.errors import StoreError
from jobsight.store.database import Database, open_database
from jobsight.store.schema import search_index
from jobsight.store.schema.create import SCRIPT
from jobsight.store.schema.statements import VERSION

logger = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"


def prepare(database: Database) -> None:
    """Create or migrate the tables; :class:`StoreError` if the database is not a known store."""
    with database.read() as connection:
        version = check_version(connection, database.where)
    # Only after the check: a database of another program must not be changed.
    database.choose_journal()
    if version != VERSION:
        migrate(database)
        logger.info("store %s: schema %s migrated to %s", database.where, version or "-", VERSION)


def check_version(connection: Connection, where: str) -> str | None:
    """The schema version of a store, None for an empty database; anything else is refused."""
    version = stored_version(connection)
    if version is None and inspect(connection).get_table_names():
        raise StoreError(
            f"the database {where} has tables of another program; expected a store of jobsight, a "
            "new file or an empty database"
        )
    if version is not None:
        check_known(version, f"the store {where}")
    return version


def check_known(version: str, what: str) -> None:
    """Raise :class:`StoreError` for a schema version that this release cannot migrate."""
    known = sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))
    if version not in known:
        raise StoreError(
            f"{what} has schema version {version}, expected {' or '.join(known)}; nothing was "
            "changed, use the release of jobsight that wrote it"
        )


def stored_version(connection: Connection) -> str | None:
    """The schema version that a database records; None if it records none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return version


def migrate(database: Database, revision: str = "head") -> None:
    """Migrate the tables to a revision in one transaction."""
    with database.migration() as connection:
        # Another process may have migrated meanwhile; Alembic reads the version under the lock.
        upgrade(connection, revision)


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Migrate the tables to a revision inside the caller's transaction."""
    # Imported late: opening a store of the current version must not pay for Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def script() -> str:
    """The statements that create a new SQLite store, as the revisions create it."""
    with TemporaryDirectory() as directory:
        database = open_database(Path(directory) / "new.db")
        migrate(database)
        with database.alone() as connection:
            rows = connection.execute(
                # Without the tables that the full-text index creates itself.
                f"SELECT sql FROM sqlite_master WHERE sql IS NOT NULL "
                f"AND NOT (type = 'table' AND name GLOB '{search_index.TABLE}_*') ORDER BY rowid"
            )
            statements = [sql for (sql,) in rows]
        database.close()
    statements.append(f"INSERT INTO alembic_version VALUES ('{VERSION}')")
    return ";\n".join(statements) + "\n"


if __name__ == "__main__":
    SCRIPT.write_text(script())
