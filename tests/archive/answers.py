"""Answers of DuckDB and Spark to the same query, in one form, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from jobsight.archive.schema import views
from jobsight.config.settings import ArchiveSettings

Row = Sequence[Any]
#: Relative and absolute difference of two numbers that count as equal: the order in which an engine
#: adds up is its own.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12


def of_duckdb(settings: ArchiveSettings, query: str, **options: Any) -> list[list[Any]]:
    """The rows, times as nanoseconds: Python has none of them."""
    with duckdb.connect(config=options) as connection:
        connection.execute(views(settings))
        table = connection.sql(query).to_arrow_table()
    for place, field in enumerate(table.schema):
        if str(field.type).startswith("timestamp"):
            column = table.column(place).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
            table = table.set_column(place, field.name, column)
    columns = [[plain(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def adapted(settings: ArchiveSettings, query: str) -> str:
    """A query of docs/archive.md; where it requests one job, for the first of this archive."""
    query = query.strip().rstrip(";")
    if "job_id = 2" in query:
        found = of_duckdb(
            settings, "SELECT cluster, month, job_id FROM series ORDER BY ALL LIMIT 1"
        )
        cluster, month, job_id = found[0]
        query = query.replace("'c1'", f"'{cluster}'").replace("'2026-10'", f"'{month}'")
        query = query.replace("job_id = 2", f"job_id = {job_id:.0f}")
    return query


def plain(value: Any) -> Any:
    """Numbers as floats."""
    if hasattr(value, "as_tuple") or (isinstance(value, int) and not isinstance(value, bool)):
        return float(value)
    return value


def difference(expected: Sequence[Row], got: Sequence[Row]) -> str | None:
    """The first difference between two answers, row by row; None if they are equal."""
    expected, got = ([[plain(value) for value in row] for row in rows] for rows in (expected, got))
    if len(expected) != len(got):
        return f"{len(expected)} rows and {len(got)} rows"
    for one, other in zip(*_in_order(expected, got), strict=True):
        if len(one) != len(other) or not all(map(_same, one, other)):
            return f"{list(one)} and {list(other)}"
    return None


def _in_order(*answers: Sequence[Row]) -> list[list[Row]]:
    """Each answer sorted by the columns that no engine computes in its own way: texts and whole
    numbers."""
    columns = range(min((len(row) for rows in answers for row in rows), default=0))
    exact = [
        column
        for column in columns
        if all(_is_exact(row[column]) for rows in answers for row in rows)
    ]
    return [
        sorted(rows, key=lambda row: [(row[column] is not None, row[column]) for column in exact])
        for rows in answers
    ]


def _is_exact(value: Any) -> bool:
    return not isinstance(value, float) or value.is_integer()


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(one == other)
