"""The clusters that a store knows."""

from __future__ import annotations

from typing import Final

from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements

_SQL: Final = load_statements("read")


def known_clusters(database: Database) -> list[str]:
    """The clusters that have agents or were scraped, by name."""
    with database.query() as transaction:
        return [cluster for (cluster,) in transaction.execute(_SQL["known_clusters"]).fetchall()]
