"""SQLAlchemy engines, and error messages for database errors."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from jobsight.errors import StoreError
from jobsight.store.database import LOCK_TIMEOUT

#: Base classes of the errors of the libraries that are imported here.
ERRORS: tuple[type[Exception], ...] = (SQLAlchemyError, psycopg.Error)


def postgresql_url(text: str) -> URL:
    """The parsed URL, or :class:`StoreError`."""
    try:
        return make_url(re.sub(r"^postgres(ql)?(\+\w+)?:", "postgresql+psycopg:", text))
    except (ArgumentError, ValueError):
        raise StoreError(
            "the URL of the store is not valid; expected "
            "postgresql://user:password@host:5432/database"
        ) from None


def postgresql_engine(url: URL) -> Engine:
    """Connections to PostgreSQL, for reading and writing."""
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
        connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}s'")
        connection.autocommit = False

    return engine


def sqlite_engine(path: Path, connect: Callable[[], sqlite3.Connection]) -> Engine:
    """Connections to an SQLite file, for reading and migrations."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=connect,
        pool_size=8,
        max_overflow=24,
        pool_use_lifo=True,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("immediate")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def explain(error: Exception, where: str) -> str:
    """An error message with the failure and its remedy."""
    text = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    if "disk is full" in text or isinstance(error, psycopg.errors.DiskFull):
        return f"the store {where} is full: the batch was not stored; free some space on its disk"
    if "readonly" in text or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return f"the store {where} is read-only; give this user write permission"
    if "is locked" in text or isinstance(error, psycopg.errors.LockNotAvailable):
        return f"the store {where} is locked by another process for more than {LOCK_TIMEOUT} s"
    # SQLite reports the damaged name of a table, which may not be UTF-8.
    if "malformed" in text or "not a database" in text or isinstance(error, UnicodeDecodeError):
        return f"the store {where} is damaged: {text}; restore it from a backup"
    if "disk I/O error" in text:
        return f"the disk of the store {where} has an I/O error; see the kernel log"
    if isinstance(error, PoolTimeout):
        return f"the store {where} has no free connection; too many requests at once"
    return f"the store {where} failed: {text}"


#: SQLSTATE classes of values: out of range, against a constraint, beyond a limit of the program.
_VALUE_STATES = ("22", "23", "54")


def rejected_values(error: BaseException | None) -> bool:
    """Whether the values of a statement made it fail, and not the state of the database."""
    error = getattr(error, "orig", None) or error
    if isinstance(error, psycopg.Error):
        return (error.sqlstate or "")[:2] in _VALUE_STATES
    return isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError))
