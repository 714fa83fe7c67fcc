"""All rows of a store as a stream, table by table: read from one, loaded into another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psycopg
from sqlalchemy import Connection, func, inspect, select, text

import jobsight
from jobsight.errors import StoreError
from jobsight.store import derived, schema
from jobsight.store.database import Database, open_database
from jobsight.store.progress import Progress, silent
from jobsight.store.statements import quoted
from jobsight.store.tables import VERSION, metadata

#: Rows of one block; a block ends sooner where its bytes are many.
ROWS = 1000
BYTES = 1 << 20
#: Rows that the driver fetches at once: a chunk of a series may be large.
FETCHED = {"chunks": 16}

#: Parents before their children, so that every reference is there when a row comes.
TABLES = metadata.sorted_tables

#: What says how far some work has come is no content: a store that has only that is empty.
_NO_CONTENT = frozenset((derived.marks.name,))


class Opening(msgspec.Struct, array_like=True, tag="opening", kw_only=True):
    """What comes first: whose rows these are, and how many."""

    #: The revision of the tables, and the release that read them.
    version: str
    jobsight: str
    engine: str
    created: int
    columns: dict[str, list[str]]
    counts: dict[str, int]


class Block(msgspec.Struct, array_like=True, tag="rows"):
    """Some rows of a table; the tables come in an order in which they can be loaded."""

    table: str
    rows: list[list[Any]]


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """A view of the whole store as it is now, while others go on writing."""
    with database.read() as connection:
        if database.postgresql or _has_log(connection):
            yield connection
            return
    # Without a write-ahead log whoever reads holds up the writer: read a copy.
    with TemporaryDirectory(prefix="copy-", dir=Path(database.where).parent) as folder:
        copy = open_database(Path(folder) / "store.db")
        with closing(copy):
            with database.engine.connect() as one, copy.engine.connect() as other:
                source, target = one.connection, other.connection
                assert source.driver_connection is not None
                source.driver_connection.backup(target.driver_connection)
            with copy.read() as connection:
                yield connection


def _has_log(connection: Connection) -> bool:
    return bool(connection.scalar(text("PRAGMA journal_mode")) == "wal")


def read(connection: Connection) -> tuple[Opening, Iterator[Block]]:
    """The rows of a snapshot of a store that is up to date."""
    counts = {
        str(table.name): connection.scalar(select(func.count()).select_from(table)) or 0
        for table in TABLES
    }
    opening = Opening(
        version=VERSION,
        jobsight=jobsight.__version__,
        engine=connection.dialect.name,
        created=time.time_ns(),
        columns={str(table.name): [*map(str, table.columns.keys())] for table in TABLES},
        counts=counts,
    )
    return opening, _blocks(connection)


def _blocks(connection: Connection) -> Iterator[Block]:
    for table in TABLES:
        # SQLAlchemy has a text type of its own for some names.
        name = str(table.name)
        options = {"yield_per": FETCHED.get(name, ROWS)}
        query = select(table).order_by(*table.primary_key)
        rows: list[list[Any]] = []
        size = 0
        for row in connection.execute(query, execution_options=options):
            rows.append(list(row))
            size += sum(len(value) for value in row if isinstance(value, bytes))
            if len(rows) >= ROWS or size >= BYTES:
                yield Block(name, rows)
                rows, size = [], 0
        if rows:
            yield Block(name, rows)


def load(
    database: Database,
    opening: Opening,
    blocks: Iterable[Block],
    progress: Progress = silent,
    *,
    replace: bool = False,
) -> None:
    """Make a store of the rows, in one transaction: all of them or nothing.

    The store must be empty, unless what it holds is to be replaced.
    """
    refuse_newer(opening)
    with database.read() as connection:
        schema.check(connection, database.where)
    database.choose_journal()
    with database.migration() as connection:
        if not replace:
            refuse_content(connection, database.where)
        _make_tables(connection, opening.version)
        _insert_all(connection, opening, blocks, progress)
        _compare(connection, opening.counts)
        if database.postgresql:
            _set_sequences(connection)
        schema.upgrade(connection)


def _make_tables(connection: Connection, version: str) -> None:
    """Empty tables of a version, in place of those that are there."""
    if connection.dialect.name == "postgresql" and schema.version(connection) == version == VERSION:
        # A site may have views on them, and rights, which would go with the tables.
        names = ", ".join(table.name for table in TABLES)
        connection.execute(text(f"TRUNCATE {names}"))
        return
    metadata.drop_all(connection)
    connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
    schema.upgrade(connection, version)


def refuse_newer(opening: Opening) -> None:
    """Raise an error where the rows are of tables that this release does not know."""
    if not opening.version.isdecimal() or int(opening.version) > int(VERSION):
        raise StoreError(
            f"the rows were written by a newer jobsight (version {opening.version} of its tables, "
            f"this one knows up to {VERSION}); upgrade jobsight, nothing was changed"
        )


def refuse_content(connection: Connection, where: str) -> None:
    """Raise an error where a store is not empty."""
    there = set(inspect(connection).get_table_names()) - _NO_CONTENT
    for table in TABLES:
        if table.name in there and connection.scalar(text(f"SELECT 1 FROM {table.name} LIMIT 1")):
            raise StoreError(
                f"the store {where} is not empty (there are rows in {table.name}); "
                "right would be a new file or an empty database, and nothing was changed"
            )


def _insert_all(
    connection: Connection, opening: Opening, blocks: Iterable[Block], progress: Progress
) -> None:
    inspector = inspect(connection)
    known = {
        table.name: {column["name"] for column in inspector.get_columns(table.name)}
        for table in TABLES
        if inspector.has_table(table.name)
    }
    done, whole = 0, sum(opening.counts.values())
    driver: Any = connection.connection.driver_connection
    for block in blocks:
        names = opening.columns.get(block.table, [])
        if block.table not in known or not names or not known[block.table].issuperset(names):
            raise StoreError(
                f"rows of {block.table} do not fit the tables of version {opening.version}"
            )
        _insert(driver, block, names)
        done += len(block.rows)
        progress("rows", done, whole)


def _insert(driver: Any, block: Block, names: list[str]) -> None:
    columns = ", ".join(map(quoted, names))
    if isinstance(driver, psycopg.Connection):
        into = f"COPY {block.table} ({columns}) FROM STDIN"
        with driver.cursor() as cursor, cursor.copy(into) as copy:
            for row in block.rows:
                copy.write_row(row)
        return
    marks = ", ".join("?" * len(names))
    driver.executemany(f"INSERT INTO {block.table} ({columns}) VALUES ({marks})", block.rows)


def _compare(connection: Connection, expected: dict[str, int]) -> None:
    for table in TABLES:
        name, rows = table.name, expected.get(table.name, 0)
        if not inspect(connection).has_table(name):
            continue
        found = connection.scalar(text(f"SELECT count(*) FROM {name}"))
        if found != rows:
            raise StoreError(f"{found} of {rows} rows of {name} have come; nothing was changed")


def _set_sequences(connection: Connection) -> None:
    """Let PostgreSQL number new rows behind those that came with a number."""
    for table in TABLES:
        if "id" in table.columns:
            connection.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "
                    f"coalesce(max(id), 0) + 1, false) FROM {table.name}"
                )
            )
