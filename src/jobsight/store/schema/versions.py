"""The version of a store: bring an older one up, refuse a newer one."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Connection, inspect, text

from jobsight.errors import StoreError
from jobsight.store.database import Database, open_database
from jobsight.store.schema.create import SCRIPT
from jobsight.store.schema.statements import VERSION

MIGRATIONS = Path(__file__).parent / "migrations"


def bring_up(database: Database) -> None:
    """Make the tables what this jobsight knows, or say why that cannot be."""
    with database.read() as connection:
        found = check(connection, database.where)
    # Only now: what is not ours must not be touched.
    database.choose_journal()
    if found != VERSION:
        migrate(database)


def version(connection: Connection) -> str | None:
    """The revision a store is at; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def check(connection: Connection, where: str) -> str | None:
    """The revision of a database that is a store or may become one; anything else is refused."""
    found = version(connection)
    if found is None:
        if inspect(connection).get_table_names():
            raise StoreError(
                f"the store {where} is a database with tables of something else; "
                "right would be a new file or an empty database"
            )
    elif not found.isdecimal() or int(found) > int(VERSION):
        raise StoreError(
            f"the store {where} was written by a newer jobsight (version {found} of its tables, "
            f"this one knows up to {VERSION}); upgrade jobsight, the store was left as it is"
        )
    return found


def migrate(database: Database, revision: str = "head") -> None:
    """Bring the tables to a revision, all of it or nothing."""
    with database.migration() as connection:
        # Another process may have been faster; Alembic looks again, behind the lock.
        upgrade(connection, revision)


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the tables to a revision inside a transaction that is under way."""
    # Imported here: opening a store that is up to date should not pay for Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def script() -> str:
    """The statements that make a new SQLite store: what all revisions come to."""
    with TemporaryDirectory() as folder:
        database = open_database(Path(folder) / "new.db")
        migrate(database)
        with database.alone() as connection:
            found = connection.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
            )
            statements = [sql for (sql,) in found]
        database.close()
    statements.append(f"INSERT INTO alembic_version VALUES ('{VERSION}')")
    return ";\n".join(statements) + "\n"


if __name__ == "__main__":
    SCRIPT.write_text(script())
