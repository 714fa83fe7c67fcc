"""Backup, restore and copy of a store, between any engines.

A store is read as a stream of rows, table by table, from one snapshot, and loaded in one
transaction. :func:`back_up` writes the stream to a file and :func:`restore` reads it;
:func:`copy_store` passes it to another database. The file is

    zstd( ( length: u32 LE | message: msgpack )* )

with an opening, blocks of rows, and a closing with the digest of all messages before it. A file
without its closing was truncated.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeAlias

import msgspec
import psycopg
import zstandard
from sqlalchemy import Column, Connection, Table, func, inspect, select, text

import jobsight
from jobsight.errors import StoreError
from jobsight.store.database import Database, open_database
from jobsight.store.schema import search_index, tables, versions
from jobsight.store.schema.statements import VERSION, quoted
from jobsight.store.schema.tables import metadata
from jobsight.store.store import Store
from jobsight.util.durable import sync_directory

#: Called with the name of the work, the amount done and the total; the total is 0 if unknown.
Progress: TypeAlias = Callable[[str, int, int], None]


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


#: Rows and bytes after which a block ends.
ROWS = 1000
BYTES = 1 << 20
#: Rows that the driver fetches together, by table: a chunk of a series may be large.
FETCHED = {"chunks": 16, "node_chunks": 16}

#: Referenced tables before those that refer to them.
TABLES = metadata.sorted_tables

#: The level of zstd.
LEVEL = 3
#: Bytes of one read of a file; a message may be longer.
_READ_SIZE = 1 << 20
_LENGTH = struct.Struct("<I")

#: A store with rows in these tables only is empty.
_NO_CONTENT = frozenset((tables.checkpoints.name,))


class Opening(msgspec.Struct, array_like=True, tag="opening", kw_only=True):
    """The first message: the origin of the rows, and their number."""

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


class BackupError(StoreError):
    """A file that is not a backup, or is damaged."""


class Closing(msgspec.Struct, array_like=True, tag="closing"):
    """The last message."""

    rows: int
    digest: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Opening | Block | Closing).decode


def back_up(
    database: Database, file: Path, progress: Progress = no_progress, *, replace: bool = False
) -> Opening:
    """Write a store to a file, atomically, while others write to the store."""
    if file.exists() and not replace:
        raise BackupError(f"{file} exists already; choose another name or use --force")
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        # Jobs are private to their users: nobody else may read the file.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened, snapshot(database) as connection:
            opening, blocks = read(connection)
            _write(opened, opening, blocks, progress)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(partial, file)
        sync_directory(file.parent)
    except OSError as error:
        raise BackupError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return opening


def restore(
    location: str | os.PathLike[str],
    file: Path,
    progress: Progress = no_progress,
    *,
    replace: bool = False,
) -> Opening:
    """Create a store from a backup, which is verified before anything is changed."""
    opening = verify(file, progress)
    with closing(open_database(location)) as database:
        load(database, opening, _rows(file), progress, replace=replace)
    return opening


def copy_store(source: str, target: str, progress: Progress = no_progress) -> Opening:
    """Copy all rows of a store to an empty one, in one transaction."""
    with Store.open(source) as store, closing(open_database(target)) as database:
        if database.identity == store.database.identity:
            raise StoreError(f"{store.database.where} and {database.where} are the same store")
        with database.read() as connection:
            # Before the rows are read, which may take long.
            refuse_content(connection, database.where)
        with snapshot(store.database) as connection:
            opening, blocks = read(connection)
            load(database, opening, blocks, progress)
    return opening


@contextmanager
def snapshot(database: Database) -> Iterator[Connection]:
    """A consistent view of the store while others write to it."""
    with database.read() as connection:
        if database.postgresql or connection.scalar(text("PRAGMA journal_mode")) == "wal":
            yield connection
            return
    # Without WAL a reader blocks the writer: read a copy.
    with TemporaryDirectory(prefix="copy-", dir=Path(database.where).parent) as directory:
        copy = open_database(Path(directory) / "store.db")
        with closing(copy):
            with database.engine.connect() as source, copy.engine.connect() as target:
                driver = source.connection.driver_connection
                assert driver is not None
                driver.backup(target.connection.driver_connection)
            with copy.read() as connection:
                yield connection


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
        columns={
            str(table.name): [str(column.name) for column in stored_columns(table)]
            for table in TABLES
        },
        counts=counts,
    )
    return opening, _blocks(connection)


def stored_columns(table: Table) -> list[Column[Any]]:
    """The columns without those that the database computes from others."""
    return [column for column in table.columns if column.computed is None]


def _blocks(connection: Connection) -> Iterator[Block]:
    for table in TABLES:
        # SQLAlchemy has a text type of its own for some names.
        name = str(table.name)
        options = {"yield_per": FETCHED.get(name, ROWS)}
        query = select(*stored_columns(table)).order_by(*table.primary_key)
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
    progress: Progress = no_progress,
    *,
    replace: bool = False,
) -> None:
    """Create a store from the rows in one transaction; it must be empty, or is replaced."""
    versions.check_known(opening.version, "the backup")
    with database.read() as connection:
        versions.check_version(connection, database.where)
    database.choose_journal()
    with database.migration() as connection:
        if not replace:
            refuse_content(connection, database.where)
        _make_tables(connection, opening.version)
        _insert_all(connection, opening, blocks, progress)
        _compare(connection, opening.counts)
        if database.postgresql:
            _set_sequences(connection)
        versions.upgrade(connection)
        # Without statistics the planner reads whole tables, for hours in PostgreSQL.
        connection.execute(text("ANALYZE"))


def _make_tables(connection: Connection, version: str) -> None:
    """Create empty tables of a version, in place of existing ones."""
    if (
        connection.dialect.name == "postgresql"
        and versions.stored_version(connection) == version == VERSION
    ):
        # A site may have views and grants on the tables, which dropping would remove.
        names = ", ".join((*(table.name for table in TABLES), search_index.TABLE))
        connection.execute(text(f"TRUNCATE {names}"))
        return
    metadata.drop_all(connection)
    connection.execute(text(f"DROP TABLE IF EXISTS {search_index.TABLE}"))
    connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
    versions.upgrade(connection, version)


def refuse_content(connection: Connection, where: str) -> None:
    """Raise an error if a store is not empty."""
    existing = set(inspect(connection).get_table_names()) - _NO_CONTENT
    for table in TABLES:
        if table.name in existing and connection.scalar(
            text(f"SELECT 1 FROM {table.name} LIMIT 1")
        ):
            raise StoreError(
                f"the store {where} is not empty (there are rows in {table.name}); "
                "expected a new file or an empty database; nothing was changed"
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
    done, total = 0, sum(opening.counts.values())
    driver: Any = connection.connection.driver_connection
    for block in blocks:
        names = opening.columns.get(block.table, [])
        if block.table not in known or not names or not known[block.table].issuperset(names):
            raise StoreError(
                f"rows of {block.table} do not fit the tables of version {opening.version}"
            )
        _insert(driver, block, names)
        done += len(block.rows)
        progress("rows", done, total)


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
        loaded = connection.scalar(text(f"SELECT count(*) FROM {name}"))
        if loaded != rows:
            raise StoreError(f"{loaded} of {rows} rows of {name} were loaded; nothing was changed")


def _set_sequences(connection: Connection) -> None:
    """Let PostgreSQL continue the ids after those of the loaded rows."""
    for table in TABLES:
        if "id" in table.columns:
            connection.execute(
                text(
                    f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), "
                    f"coalesce(max(id), 0) + 1, false) FROM {table.name}"
                )
            )


def _write(file: BinaryIO, opening: Opening, blocks: Iterator[Block], progress: Progress) -> None:
    digest = hashlib.blake2b(digest_size=32)
    rows, total = 0, sum(opening.counts.values())
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:

        def put(message: Opening | Block | Closing) -> None:
            body = _encode(message)
            body = _LENGTH.pack(len(body)) + body
            digest.update(body)
            stream.write(body)

        put(opening)
        for block in blocks:
            put(block)
            rows += len(block.rows)
            progress("rows", rows, total)
        put(Closing(rows, digest.digest()))


def verify(file: Path, progress: Progress = no_progress) -> Opening:
    """Read all of a backup, or raise a :class:`BackupError`."""
    messages = _messages(file)
    opening = next(messages, None)
    if not isinstance(opening, Opening):
        raise BackupError(f"{file} is not a backup of jobsight")
    counts = dict.fromkeys(opening.counts, 0)
    rows, total = 0, sum(opening.counts.values())
    for message in messages:
        if isinstance(message, Block):
            counts[message.table] = counts.get(message.table, 0) + len(message.rows)
            rows += len(message.rows)
            progress("rows checked", rows, total)
    if counts != opening.counts:
        raise BackupError(f"{file} does not hold the rows that it announces")
    versions.check_known(opening.version, f"the backup {file}")
    return opening


def _rows(file: Path) -> Iterator[Block]:
    return (message for message in _messages(file) if isinstance(message, Block))


def _messages(file: Path) -> Iterator[Opening | Block | Closing]:
    """All messages; an error where the last is not the closing of exactly these."""
    digest = hashlib.blake2b(digest_size=32)
    try:
        with file.open("rb") as opened:
            reader = zstandard.ZstdDecompressor().stream_reader(opened, read_size=_READ_SIZE)
            while True:
                length = _read_exactly(reader, _LENGTH.size)
                body = _read_exactly(reader, *_LENGTH.unpack(length))
                message = _decode(body)
                if isinstance(message, Closing):
                    break
                yield message
                digest.update(length)
                digest.update(body)
            if message.digest != digest.digest() or reader.read(1) or opened.read(1):
                raise BackupError(f"{file} is damaged: its digest is not that of its rows")
            yield message
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, EOFError) as error:
        raise BackupError(
            f"{file} is not a backup of jobsight, is damaged or truncated ({error}); "
            "nothing was changed"
        ) from None
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror}") from None


def _read_exactly(reader: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    # In several reads: a damaged length must not allocate gigabytes.
    data = bytearray()
    while len(data) < size:
        part = reader.read(min(size - len(data), _READ_SIZE))
        if not part:
            raise EOFError("it is truncated")
        data += part
    return bytes(data)
