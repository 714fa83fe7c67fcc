"""Open a database; transactions that read, and one at a time that writes.

:meth:`Database.write` and :meth:`Database.query` need the driver alone. :meth:`Database.read` gives
a connection of SQLAlchemy, which is imported on first use: a command that cron starts would spend
more time on that import than on its work.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jobsight.errors import StoreError
from jobsight.store.transaction import LOCK_CLASSES, Cursor, Transaction
from jobsight.util.mounts import file_system, is_network
from jobsight.util.urls import without_credentials

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

#: Other packages annotate with Connection of this module: SQLAlchemy is imported only in store/.
__all__ = ["LOCK_TIMEOUT", "Connection", "Cursor", "Database", "Transaction", "open_database"]

_MAGIC: Final = b"SQLite format 3\x00"
#: Seconds for which a writer waits for another process.
LOCK_TIMEOUT: Final = 30
#: Page cache of the writer in KiB. SQLite's default of 2 MiB is less than a group of batches
#: changes: pages would be read and written several times in one transaction.
_CACHE_SIZE: Final = 16_384
#: Page size of a new file. SQLite's default of 4 KiB needs twice as many writes for a group of
#: batches, and 5 % less disk.
_PAGE_SIZE: Final = 8192


class Database:
    """The database of a store: an SQLite file or a PostgreSQL URL."""

    def __init__(
        self,
        where: str,
        identity: object,
        make_engine: Callable[[], Engine],
        connect: Callable[[], sqlite3.Connection] | None = None,
    ) -> None:
        #: For messages: the path, or the URL without its credentials.
        self.where = where
        #: Equal for two locations of one store; contains credentials.
        self.identity = identity
        self.postgresql = connect is None
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._connect = connect
        #: Idle connections of :meth:`query` to SQLite.
        self._readers: deque[sqlite3.Connection] = deque()
        #: The connection that notices changes of an SQLite file, and a name for its numbers.
        self._watcher: sqlite3.Connection | None = None
        self._watch_name = secrets.token_hex(8)
        self._watching = threading.Lock()
        #: The one connection that writes to SQLite.
        self._writer: sqlite3.Connection | None = None
        self._writing = threading.Lock()
        self._opening = threading.Lock()
        #: Errors of the database itself; extended when SQLAlchemy is imported.
        self._errors: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError)

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine."""
        with self._opening:
            if self._engine is None:
                from jobsight.store.engines import ERRORS

                self._errors += ERRORS
                self._engine = self._make_engine()
            return self._engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the store, through SQLAlchemy."""
        with self._explained(), self.engine.connect() as connection:
            if self.postgresql:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def query(self) -> Iterator[Transaction]:
        """A consistent view of the store by the driver alone, without SQLAlchemy."""
        with self._explained():
            if self._connect is None:
                with self._raw() as connection, connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    yield Transaction(connection, True)
                return
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = self._connect()
            try:
                reader.execute("BEGIN")
                try:
                    yield Transaction(reader, False)
                finally:
                    reader.rollback()
            except self._errors:
                reader.close()
                raise
            except BaseException:
                self._readers.append(reader)
                raise
            self._readers.append(reader)

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """A transaction that changes the schema, exclusive on the store."""
        with self._explained(), self._writing, self.engine.connect() as connection:
            connection = connection.execution_options(immediate=True)
            with connection.begin():
                if self.postgresql:
                    connection.exec_driver_sql(
                        f"SELECT pg_advisory_xact_lock({LOCK_CLASSES['tables']}, 0)"
                    )
                yield connection

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction that writes."""
        with self._explained():
            if self.postgresql:
                with self._raw() as connection, connection.transaction():
                    yield Transaction(connection, True)
                return
            with self._writing, self._raw() as connection:
                # A deferred transaction that reads and then writes fails at once under load.
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield Transaction(connection, False)
                    connection.execute("COMMIT")
                except BaseException:
                    # Some errors, such as a full disk, have rolled back already.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def alone(self) -> Iterator[Any]:
        """The driver's connection outside a transaction, for statements that cannot be in one."""
        with self._explained(), self._writing, self._raw() as connection:
            if not self.postgresql:
                yield connection
                return
            connection.autocommit = True
            try:
                yield connection
            finally:
                connection.autocommit = False

    def analyze(self, sample: int) -> None:
        """Update the statistics of SQLite's query planner from some rows of each index."""
        with self.alone() as connection:
            connection.execute(f"PRAGMA analysis_limit = {sample}")
            try:
                connection.execute("ANALYZE")
            finally:
                connection.execute("PRAGMA analysis_limit = 0")
        # A connection reads the statistics when it is opened.
        while self._readers:
            try:
                self._readers.pop().close()
            except IndexError:
                break
        if self._engine is not None:
            self._engine.dispose()

    def revision(self) -> str:
        """A text that differs after each change of the store by any process. It reads no table.

        It may differ without a change: in PostgreSQL with each transaction of the server, in SQLite
        with each process that asks.
        """
        if self.postgresql:
            with self.query() as transaction:
                # Two equal snapshots see the same rows. Numbers of transactions may come again when
                # a server is restored, which restarts it.
                row = transaction.execute(
                    "SELECT CAST(pg_current_snapshot() AS TEXT), "
                    "extract(epoch FROM pg_postmaster_start_time())"
                ).fetchone()
            return f"{row[0]} {row[1]}"
        assert self._connect is not None
        with self._explained(), self._watching:
            if self._watcher is None:
                self._watcher = self._connect()
            # Counts the commits of all other connections.
            row = self._watcher.execute("PRAGMA data_version").fetchone()
        return f"{self._watch_name} {row[0]}"

    def choose_journal(self) -> None:
        """Choose the journal mode of an SQLite file, which the file records."""
        if self.postgresql:
            return
        # WAL lets readers and the writer work concurrently, but needs memory that all processes
        # share, which a network file system does not provide.
        mode = "DELETE" if is_network(file_system(Path(self.where))) else "WAL"
        with self.alone() as connection:
            # Without effect on a file that has pages already.
            connection.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
            _retry_while_busy(connection, f"PRAGMA journal_mode = {mode}")

    def close(self) -> None:
        """Close all connections."""
        with self._writing:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
        while self._readers:
            self._readers.pop().close()
        if self._engine is not None:
            self._engine.dispose()

    @staticmethod
    def rejected_values(error: StoreError) -> bool:
        """Whether the values of a statement made it fail, and not the state of the database."""
        from jobsight.store.engines import rejected_values

        return rejected_values(error.__cause__)

    @contextmanager
    def _raw(self) -> Iterator[Any]:
        if self._connect is not None:
            if self._writer is None:
                self._writer = self._connect()
                self._writer.execute(f"PRAGMA cache_size = -{_CACHE_SIZE}")
            yield self._writer
            return
        pooled = self.engine.raw_connection()
        try:
            yield pooled.driver_connection
        finally:
            pooled.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not isinstance(error, self._errors):
                raise
            from jobsight.store.engines import explain

            raise StoreError(explain(error, self.where)) from error


def _retry_while_busy(connection: sqlite3.Connection, pragma: str) -> None:
    """Retry while another process locks the file; SQLite has no timeout for this statement."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            connection.execute(pragma)
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def open_database(location: str | os.PathLike[str]) -> Database:
    """Open or create the database at a path or a ``postgresql://`` URL."""
    text = os.fspath(location)
    if re.match(r"postgres(ql)?(\+\w+)?://", text):
        return _open_postgresql(text)
    if "://" in text and not text.startswith("sqlite:"):
        raise StoreError(
            f"{without_credentials(text).split('://')[0]}:// is not supported; "
            "expected the path of a file or a URL such as postgresql://user@host/database"
        )
    if text.startswith("sqlite:"):
        from sqlalchemy import make_url

        text = make_url(text).database or ""
    return _open_sqlite(Path(text).expanduser())


def _open_postgresql(text: str) -> Database:
    from jobsight.store.engines import postgresql_engine, postgresql_url

    url = postgresql_url(text)
    return Database(without_credentials(text), url, lambda: postgresql_engine(url))


def _open_sqlite(path: Path) -> Database:
    def make_engine() -> Engine:
        from jobsight.store.engines import sqlite_engine

        return sqlite_engine(path, connect)

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            path,
            timeout=LOCK_TIMEOUT,
            cached_statements=256,
            # The driver must not begin transactions itself.
            isolation_level=None,
            # Only one thread at a time uses it.
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        # An acknowledged batch has to survive a power failure.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    _check_file(path)
    return Database(str(path), str(path), make_engine, connect)


def _check_file(path: Path) -> None:
    """Check the file before SQLite does, which reports errors by number only."""
    try:
        if path.is_dir():
            raise StoreError(f"the store {path} is a directory; expected the path of a file")
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True)
        # Jobs are private to their users: nobody else may read the file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb") as file:
            start = file.read(len(_MAGIC))
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be opened for writing: {error.strerror}"
        ) from None
    if start and start != _MAGIC:
        raise StoreError(f"the store {path} is not a database; it was left unchanged")
