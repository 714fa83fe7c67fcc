"""A transaction that runs hand-written SQL on SQLite and PostgreSQL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, Protocol

#: Names of locks are hashed to this many numbers: a transaction can hold only some thousands.
_LOCK_COUNT: Final = 1024
#: First keys of the advisory locks, which no other user of the same database should have.
LOCK_CLASSES: Final = {
    "tables": 28519,
    "agent": 28520,
    "job": 28521,
    "sums": 28522,
    "sign-in": 28523,
}
#: Keys in one query. Few sizes: the drivers keep few statements prepared.
_KEY_COUNTS: Final = (256, 64, 16, 4, 1)
#: New ids that PostgreSQL allocates in one query, after the first.
_ID_BATCH_SIZE: Final = 64


class Cursor(Protocol):
    """The common part of the cursors of both drivers."""

    rowcount: int
    description: Any

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Transaction:
    """Runs statements with ``:name`` parameters."""

    def __init__(self, connection: Any, postgresql: bool) -> None:
        self._connection = connection
        self.postgresql = postgresql
        self._ids: dict[str, Iterator[int]] = {}

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Cursor:
        """Run one statement; both drivers cache it as a prepared statement."""
        if self.postgresql:
            sql = _percent_style(sql)
        cursor: Cursor = self._connection.execute(sql, parameters or {})
        return cursor

    def mappings(
        self, sql: str, parameters: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a query, each by its column names."""
        cursor = self.execute(sql, parameters)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def execute_many(self, sql: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run one statement for every row."""
        if self.postgresql:
            self._connection.cursor().executemany(_percent_style(sql), list(rows))
        else:
            self._connection.executemany(sql, rows)

    def execute_rows(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for every row of values, which are in the order of its parameters."""
        if not rows:
            return
        if self.postgresql:
            self._connection.cursor().executemany(_positional(sql, "%s"), rows)
        else:
            self._connection.executemany(_positional(sql, "?"), rows)

    def look_up(self, sql: str, keys: Sequence[Sequence[Any]]) -> Iterator[Any]:
        """The rows of many keys, queried in groups; ``:keys`` is replaced by the keys."""
        position = 0
        for size in _KEY_COUNTS:
            while len(keys) - position >= size:
                group = keys[position : position + size]
                expanded = _with_keys(sql, size, len(group[0]), self.postgresql)
                values = [value for key in group for value in key]
                yield from self._connection.execute(expanded, values).fetchall()
                position += size

    def new_id(self, table: str) -> int:
        """An id for a row that this transaction will insert.

        All rows that the transaction inserts into that table must then have such an id.
        """
        if table not in self._ids:
            self._ids[table] = self._sequence(table)
        return next(self._ids[table])

    def _sequence(self, table: str) -> Iterator[int]:
        if not self.postgresql:
            # There is no other writer until the end of the transaction.
            (last,) = self.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
            while True:
                last += 1
                yield last
        ids = f"SELECT nextval(pg_get_serial_sequence('{table}', 'id')) "
        count = 1
        while True:
            rows = self.execute(ids + "FROM generate_series(1, :count)", {"count": count})
            for (id,) in rows.fetchall():
                yield id
            count = _ID_BATCH_SIZE

    def lock(self, kind: Literal["agent", "job", "sums", "sign-in"], names: Iterable[str]) -> None:
        """Lock names against other writers until the end of the transaction."""
        # SQLite has one writer at a time.
        if self.postgresql:
            # Always in sorted order, to avoid deadlocks.
            for number in sorted({_lock_number(name) for name in names}):
                lock = f"SELECT pg_advisory_xact_lock({LOCK_CLASSES[kind]}, :number)"
                self.execute(lock, {"number": number})

    def expect_pages_in_memory(self) -> None:
        """Plan the following queries for pages that are in memory.

        PostgreSQL assumes that a page of a table costs four times as much by an index as in order.
        It then reads all runs in the order of their start rather than those of an owner or state by
        their index, for a query of more than a few rows.
        """
        if self.postgresql:
            self.execute("SET LOCAL random_page_cost = 1.1")

    def lock_out_writers(self) -> None:
        """Wait for all writers of batches and block new ones until the end of the transaction."""
        if self.postgresql:
            self.execute(
                f"SELECT pg_advisory_xact_lock({LOCK_CLASSES['job']}, number) "
                f"FROM generate_series(0, {_LOCK_COUNT - 1}) AS number"
            )


def _lock_number(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % _LOCK_COUNT


_NAME: Final = re.compile(r"(?<![:\w]):(\w+)")


@cache
def _percent_style(sql: str) -> str:
    return _NAME.sub(r"%(\1)s", sql)


@cache
def _positional(sql: str, placeholder: str) -> str:
    return _NAME.sub(placeholder, sql)


@cache
def _with_keys(sql: str, count: int, width: int, postgresql: bool) -> str:
    placeholder = "%s" if postgresql else "?"
    row = f"({', '.join([placeholder] * width)})"
    return sql.replace(":keys", ", ".join([row] * count))
