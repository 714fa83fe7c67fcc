"""One transaction: statements written by hand, for SQLite and PostgreSQL alike."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import count
from typing import Any, Final, Literal, Protocol

#: Locks of jobs are folded into so many, since a transaction may hold only some thousands.
_LOCKS: Final = 1024
#: Sets our advisory locks apart from those of other users of the same database.
FAMILY: Final = {"tables": 28519, "agent": 28520, "job": 28521, "sums": 28522}
#: Keys in one question. Few sizes: the drivers keep few statements prepared.
_SIZES: Final = (256, 64, 16, 4, 1)
#: From so many rows on, a statement that is made for them is worth it.
_MANY_ROWS: Final = 200
_SIMPLE: Final = frozenset((int, bool, type(None)))
#: New ids that PostgreSQL is asked for at once, after the first.
_IDS: Final = 64


class Cursor(Protocol):
    """What SQLite's and PostgreSQL's cursors have in common."""

    rowcount: int
    description: Any

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Transaction:
    """Runs statements written by hand, with ``:name`` for each parameter."""

    def __init__(self, connection: Any, postgresql: bool) -> None:
        self._connection = connection
        self.postgresql = postgresql
        self._ids: dict[str, Iterator[int]] = {}

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Cursor:
        """Run one statement; both drivers keep it prepared."""
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
        """The same with values in the order of the statement's names, which is faster."""
        if not rows:
            return
        if self.postgresql:
            self._connection.cursor().executemany(_positional(sql, "%s"), rows)
        elif len(rows) < _MANY_ROWS:
            self._connection.executemany(_positional(sql, "?"), rows)
        else:
            self._connection.executemany(*_without_constants(sql, rows))

    def look_up(self, sql: str, keys: Sequence[Sequence[Any]]) -> Iterator[Any]:
        """The rows of many keys by few statements; the keys stand where ``:keys`` is."""
        place = 0
        for size in _SIZES:
            while len(keys) - place >= size:
                some = keys[place : place + size]
                expanded = _with_keys(sql, size, len(some[0]), self.postgresql)
                values = [value for key in some for value in key]
                yield from self._connection.execute(expanded, values).fetchall()
                place += size

    def new_id(self, table: str) -> int:
        """An id for a row that this transaction will insert.

        Who takes one inserts every row of that table in this transaction in the same way.
        """
        if table not in self._ids:
            self._ids[table] = self._sequence(table)
        return next(self._ids[table])

    def _sequence(self, table: str) -> Iterator[int]:
        if not self.postgresql:
            # Nobody else writes until the end of the transaction.
            (last,) = self.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
            while True:
                last += 1
                yield last
        ids = f"SELECT nextval(pg_get_serial_sequence('{table}', 'id')) "
        count = 1
        while True:
            taken = self.execute(ids + "FROM generate_series(1, :count)", {"count": count})
            for (id,) in taken.fetchall():
                yield id
            count = _IDS

    def lock(self, kind: Literal["agent", "job", "sums"], names: Iterable[str]) -> None:
        """Keep other writers off what has these names, until the end of the transaction."""
        # SQLite has one writer at a time anyway.
        if self.postgresql:
            # In one order for all writers, so that none waits for one that waits for it.
            for number in sorted({_lock_number(name) for name in names}):
                family = FAMILY[kind]
                self.execute(f"SELECT pg_advisory_xact_lock({family}, :number)", {"number": number})

    def lock_out_writers(self) -> None:
        """Wait until nobody writes a batch, and keep all off until the end of the transaction."""
        if self.postgresql:
            self.execute(
                f"SELECT pg_advisory_xact_lock({FAMILY['job']}, number) "
                f"FROM generate_series(0, {_LOCKS - 1}) AS number"
            )


def _lock_number(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % _LOCKS


_NAME: Final = re.compile(r"(?<![:\w]):(\w+)")


@cache
def _percent_style(sql: str) -> str:
    return _NAME.sub(r"%(\1)s", sql)


@cache
def _positional(sql: str, mark: str) -> str:
    return _NAME.sub(mark, sql)


def _without_constants(sql: str, rows: Sequence[Sequence[Any]]) -> tuple[str, Iterable[Any]]:
    """Write into the statement what is the same simple value in all of many rows.

    SQLite's driver takes some 80 ns to hand over a number and 230 for None or a truth value, and
    most columns of a run that others have booked are empty.
    """
    columns = list(zip(*rows, strict=True))
    constants = tuple(
        (place, column[0])
        for place, column in enumerate(columns)
        if type(column[0]) in _SIMPLE and not column[0] and column.count(column[0]) == len(rows)
    )
    if not constants or len(constants) == len(columns):
        return _positional(sql, "?"), rows
    statement, others = _with_constants(sql, constants, len(columns))
    return statement, zip(*[columns[place] for place in others], strict=True)


@lru_cache(maxsize=64)
def _with_constants(
    sql: str, constants: tuple[tuple[int, Any], ...], width: int
) -> tuple[str, list[int]]:
    texts = {place: "NULL" if value is None else "0" for place, value in constants}
    places = count()
    statement = _NAME.sub(lambda _: texts.get(next(places), "?"), sql)
    return statement, [place for place in range(width) if place not in texts]


@cache
def _with_keys(sql: str, count: int, width: int, postgresql: bool) -> str:
    mark = "%s" if postgresql else "?"
    row = f"({', '.join([mark] * width)})"
    return sql.replace(":keys", ", ".join([row] * count))
