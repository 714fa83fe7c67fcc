"""Opening the database, and the two kinds of transaction: many that read, one that writes."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from jobsight.errors import StoreError
from jobsight.store.mounts import file_system, is_network
from jobsight.store.transaction import FAMILY, Cursor, Transaction

__all__ = ["Cursor", "Database", "Transaction", "open_database"]

_MAGIC = b"SQLite format 3\x00"
#: How long one writer waits for another process before it gives up, in seconds.
_PATIENCE = 30
#: Locks of jobs are folded into so many, since a transaction may hold only some thousands.
_LOCKS = 1024
#: Sets our advisory locks apart from those of other users of the same database.
_FAMILY = {"tables": 28519, "agent": 28520, "job": 28521, "sums": 28522}


class Database:
    """One store's database: an SQLite file or a PostgreSQL address."""

    def __init__(self, engine: Engine, where: str) -> None:
        self.engine = engine
        #: For messages: the path, or the address without its password.
        self.where = where
        self.postgresql = engine.dialect.name == "postgresql"
        self._writing = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the store for a few queries."""
        with self._explained(), self.engine.connect() as connection:
            if self.postgresql:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """A transaction for changing the tables, alone on the store."""
        with self._explained(), self._writing, self.engine.connect() as connection:
            connection = connection.execution_options(immediate=True)
            with connection.begin():
                if self.postgresql:
                    connection.exec_driver_sql(
                        f"SELECT pg_advisory_xact_lock({FAMILY['tables']}, 0)"
                    )
                yield connection

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction that is stored whole or not at all."""
        with self._explained():
            if self.postgresql:
                with self._raw() as connection, connection.transaction():
                    yield Transaction(connection, True)
                return
            with self._writing, self._raw() as connection:
                # A transaction that reads first and writes then fails at once under load.
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield Transaction(connection, False)
                    connection.execute("COMMIT")
                except BaseException:
                    # Some errors (a full disk) have rolled back already.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def alone(self) -> Iterator[Any]:
        """The driver's connection outside of a transaction, for what cannot be part of one."""
        with self._explained(), self._writing, self._raw() as connection:
            if not self.postgresql:
                yield connection
                return
            connection.autocommit = True
            try:
                yield connection
            finally:
                connection.autocommit = False

    def choose_journal(self) -> None:
        """Let readers and the writer work side by side; the choice stays in the file."""
        if self.postgresql:
            return
        # Write-ahead logging needs memory shared by all users of the file, which a network file
        # system does not give.
        mode = "DELETE" if is_network(file_system(Path(self.where))) else "WAL"
        with self._explained(), self._raw() as connection:
            connection.execute(f"PRAGMA journal_mode = {mode}")

    def close(self) -> None:
        """Give up all connections."""
        self.engine.dispose()

    @contextmanager
    def _raw(self) -> Iterator[Any]:
        pooled = self.engine.raw_connection()
        try:
            yield pooled.driver_connection
        finally:
            pooled.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, psycopg.Error, SQLAlchemyError, UnicodeDecodeError) as error:
            raise StoreError(_sentence(error, self.where)) from error


def open_database(location: str | os.PathLike[str]) -> Database:
    """Open (or create) the database at a path or a ``postgresql://`` address."""
    text = os.fspath(location)
    if re.match(r"postgres(ql)?(\+\w+)?://", text):
        return _open_postgresql(text)
    if "://" in text and not text.startswith("sqlite:"):
        raise StoreError(
            f"{text.split('://')[0]}:// is no store; right would be a path of a file or an "
            "address such as postgresql://user@host/database"
        )
    if text.startswith("sqlite:"):
        text = make_url(text).database or ""
    return _open_sqlite(Path(text).expanduser())


def _open_postgresql(text: str) -> Database:
    try:
        url = make_url(re.sub(r"^postgres(ql)?(\+\w+)?:", "postgresql+psycopg:", text))
    except (ArgumentError, ValueError):
        raise StoreError(
            "the address of the store cannot be read; right would be "
            "postgresql://user:password@host:5432/database"
        ) from None
    engine = create_engine(
        url,
        pool_size=8,
        max_overflow=24,
        pool_use_lifo=True,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10, "application_name": "jobsight"},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.autocommit = True
        connection.execute(f"SET lock_timeout = '{_PATIENCE}s'")
        connection.autocommit = False

    shown = url.set(drivername="postgresql").render_as_string(hide_password=True)
    return Database(engine, shown)


def _open_sqlite(path: Path) -> Database:
    _check_file(path)
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        pool_size=8,
        max_overflow=24,
        pool_use_lifo=True,
        connect_args={"timeout": _PATIENCE, "cached_statements": 256},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        # The driver must not open transactions of its own: ours begin in a way of their own.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")
        # A batch is acknowledged once it is stored, so it has to outlive a power cut.
        connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("immediate")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return Database(engine, str(path))


def _check_file(path: Path) -> None:
    """Look before SQLite does: it would write to an empty file and name errors by number."""
    try:
        if path.is_dir():
            raise StoreError(f"the store {path} is a folder; right would be the path of a file")
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True)
        # Jobs are their users' own business: nobody else reads the file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be opened for writing: {error.strerror}"
        ) from None
    if start and start != _MAGIC:
        raise StoreError(f"the store {path} is not a database; it was left as it is")


def _sentence(error: Exception, where: str) -> str:
    text = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    if "disk is full" in text or isinstance(error, psycopg.errors.DiskFull):
        return f"the store {where} is full: the batch was not stored; free some space on its disk"
    if "readonly" in text or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return f"the store {where} may only be read; give this user the right to write to it"
    if "is locked" in text or isinstance(error, psycopg.errors.LockNotAvailable):
        return f"the store {where} is held by another process for more than {_PATIENCE} s"
    # SQLite names damaged tables with the damage in the name.
    if "malformed" in text or "not a database" in text or isinstance(error, UnicodeDecodeError):
        return f"the store {where} is damaged: {text}; restore it from a copy"
    if isinstance(error, PoolTimeout):
        return f"the store {where} is asked for more at once than it has connections"
    return f"the store {where} failed: {text}"
