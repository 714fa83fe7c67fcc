"""The sums by day as they stand, and worked out anew."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, select

from jobsight.software.naming import name_all_new
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.rollups import Round, sum_up_all
from jobsight.store.schema.tables import contributions, software, software_by_day, usage_by_day
from jobsight.store.store import Store


def rows(store: Store, table: Table) -> set[tuple[Any, ...]]:
    with store.database.read() as connection:
        return {tuple(row) for row in connection.execute(select(table))}


def sums(store: Store) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """All rows of both tables."""
    return rows(store, usage_by_day), rows(store, software_by_day)


def from_scratch(
    store: Store, rules: RuleSet | None = None
) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """The same after everything derived was thrown away and worked out again."""
    with store.database.write() as transaction:
        for table in (usage_by_day, software_by_day, contributions):
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
