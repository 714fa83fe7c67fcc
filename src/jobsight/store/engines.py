"""SQLAlchemy's engines on a store's database, and what its errors mean in one sentence."""

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
from jobsight.store.database import PATIENCE

#: What the parts that are imported here raise when the database fails.
ERRORS: tuple[type[Exception], ...] = (SQLAlchemyError, psycopg.Error)


def postgresql_url(text: str) -> URL:
    """The address, as SQLAlchemy has it; :class:`StoreError` where it is none."""
    try:
        return make_url(re.sub(r"^postgres(ql)?(\+\w+)?:", "postgresql+psycopg:", text))
    except (ArgumentError, ValueError):
        raise StoreError(
            "the address of the store cannot be read; right would be "
            "postgresql://user:password@host:5432/database"
        ) from None


def postgresql_engine(url: URL) -> Engine:
    """Connections to a PostgreSQL, for those who read and those who write."""
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
        connection.execute(f"SET lock_timeout = '{PATIENCE}s'")
        connection.autocommit = False

    return engine


def sqlite_engine(path: Path, connect: Callable[[], sqlite3.Connection]) -> Engine:
    """Connections to an SQLite file, for those who read it and for migrations."""
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
    """What has happened to the store, and what helps."""
    text = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
    if "disk is full" in text or isinstance(error, psycopg.errors.DiskFull):
        return f"the store {where} is full: the batch was not stored; free some space on its disk"
    if "readonly" in text or isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return f"the store {where} may only be read; give this user the right to write to it"
    if "is locked" in text or isinstance(error, psycopg.errors.LockNotAvailable):
        return f"the store {where} is held by another process for more than {PATIENCE} s"
    # SQLite names damaged tables with the damage in the name.
    if "malformed" in text or "not a database" in text or isinstance(error, UnicodeDecodeError):
        return f"the store {where} is damaged: {text}; restore it from a copy"
    if "disk I/O error" in text:
        return f"the disk of the store {where} refuses to read or write; the kernel's log says why"
    if isinstance(error, PoolTimeout):
        return f"the store {where} is asked for more at once than it has connections"
    return f"the store {where} failed: {text}"
