"""The statistics of SQLite's query planner, updated while a store grows.

A new store has none, and those of a small store mislead the planner in a large one.
:func:`statistics_worker` compares them with the number of runs from time to time. PostgreSQL
updates its own statistics.
"""

from __future__ import annotations

import logging
from typing import Final

from jobsight.store.database import Database
from jobsight.store.sql.load import load_statements
from jobsight.store.store import Store
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

#: Seconds from the start of a server to the first check, and between checks.
FIRST_CHECK, CHECK_INTERVAL = 30.0, 600.0
#: Runs below which any plan is fast.
FEW_RUNS: Final = 1000
#: Growth of the number of runs after which the statistics are updated.
GROWTH: Final = 2
#: Rows of each index that are read: the writer waits for tenths of a second, however large the
#: store is.
_SAMPLE: Final = 1000

_SQL: Final = load_statements("maintenance")


def statistics_worker(store: Store, first_delay: float = FIRST_CHECK) -> PeriodicWorker:
    """Updates the statistics in a background thread."""
    return PeriodicWorker(
        "statistics",
        lambda stopped: update_statistics(store.database),
        CHECK_INTERVAL,
        logger=logger,
        failure="the statistics of the query planner were not updated",
        first_delay=first_delay,
    )


def update_statistics(database: Database) -> bool:
    """Update the statistics of an SQLite store that has grown since the last time; returns whether
    it had."""
    if database.postgresql:
        return False
    with database.query() as transaction:
        # Ids are given in order: their range is the number of runs, or more after retention.
        first, last = transaction.execute(_SQL["range_of_runs"]).fetchone()
        known = transaction.execute(_SQL["find_statistics"]).fetchone()
        counted = 0
        if known is not None:
            row = transaction.execute(_SQL["statistics_of_runs"]).fetchone()
            # The rows of an index, then those with the same first column, and so on.
            counted = 0 if row is None else int(row[0].split()[0])
    current = 0 if first is None else last - first + 1
    if current < FEW_RUNS or current < GROWTH * counted:
        return False
    database.analyze(_SAMPLE)
    logger.info("statistics of the query planner updated for %d runs, before %d", current, counted)
    return True
