"""The daily rollups and by month as they stand, and worked out again."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from sqlalchemy import Table, select

from jobsight.software.naming import name_all_new
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.rollups import Round, sum_up_all
from jobsight.store.schema.tables import (
    contributions,
    software,
    software_by_day,
    software_by_month,
    usage_by_day,
    usage_by_month,
)
from jobsight.store.store import Store

#: The table by month of each table by day.
MONTHS = {usage_by_day: usage_by_month, software_by_day: software_by_month}


def rows(store: Store, table: Table) -> set[tuple[Any, ...]]:
    """All rows of a table. The months of one by day are those of its days, whatever a test did."""
    with store.database.read() as connection:
        found = {tuple(row) for row in connection.execute(select(table))}
        if table in MONTHS:
            months = [dict(row) for row in connection.execute(select(MONTHS[table])).mappings()]
            days = [dict(row) for row in connection.execute(select(table)).mappings()]
            assert by_key(table, months) == by_key(table, months_of(table, days))
    return found


def by_key(table: Table, months: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by month by their keys, each of which is there once."""
    names = ("month", *list(table.primary_key.columns.keys())[1:])
    result = {tuple(row[name] for name in names): row for row in months}
    assert len(result) == len(months)
    return result


def months_of(table: Table, days: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the rows by day come to by month."""
    keys = set(table.primary_key.columns.keys())
    result: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in days:
        when = date(1970, 1, 1) + timedelta(days=row["day"])
        month = {"month": when.year * 12 + when.month - 1 - 1970 * 12}
        owner = {name: row[name] for name in keys if name != "day"}
        figures = {name: value for name, value in row.items() if name not in keys}
        known = result.setdefault(
            (*month.values(), *sorted(owner.items())),
            {**month, **owner, **dict.fromkeys(figures, 0), "days": 0},
        )
        known["days"] |= 1 << when.day - 1
        for name, value in figures.items():
            known[name] += value
    return list(result.values())


def sums(store: Store) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """All rows of both tables."""
    return rows(store, usage_by_day), rows(store, software_by_day)


def from_scratch(
    store: Store, rules: RuleSet | None = None
) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """The same after everything derived was thrown away and worked out again."""
    with store.database.write() as transaction:
        for table in (*MONTHS.keys(), *MONTHS.values(), contributions):
            transaction.execute(f"DELETE FROM {table.name}")
        transaction.execute("UPDATE runs SET stale = true")
    sum_up_everything(store, rules)
    return sums(store)


def sum_up_everything(store: Store, rules: RuleSet | None = None) -> Round:
    """As the background work does; without rules all paths are undetermined."""
    name_all_new(store.database, rules or RuleSet([]))
    return sum_up_all(store.database)


def named(store: Store, sums_of_software: set[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """The rows with names in the place of the numbers that stand for them."""
    with store.database.read() as connection:
        names = {row.id: tuple(row)[1:] for row in connection.execute(select(software))}
    place = list(software_by_day.c.keys()).index("software_id")
    return {
        (*row[:place], names.get(row[place], row[place]), *row[place + 1 :])
        for row in sums_of_software
    }


def by_software(store: Store, figure: str = "cpu_time") -> dict[str, int]:
    """A figure by the name of the software, over all days and users."""
    with store.database.read() as connection:
        names = {row.id: row.name for row in connection.execute(select(software))}
        names |= {0: "undetermined", -1: "not attributed"}
        result: dict[str, int] = {}
        for row in connection.execute(select(software_by_day)).mappings():
            name = names[row["software_id"]]
            result[name] = result.get(name, 0) + row[figure]
    return result
