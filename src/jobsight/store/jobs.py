"""What the scheduler says outside of batches: merged by the rules of a batch, and what is open."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from jobsight.model import Batch, JobInfo
from jobsight.store.bookings import Bookings
from jobsight.store.checks import check
from jobsight.store.database import Database
from jobsight.store.tables import runs

#: Records in one transaction: agents wait for the writer no longer than these take.
AT_ONCE = 500


class OpenRun(NamedTuple):
    """A run whose end is not known."""

    job_id: int
    #: None where no scheduler has given one.
    start: int | None
    state: str | None
    source: str
    name: str | None
    partition: str | None


def record_jobs(database: Database, infos: Sequence[JobInfo], now: int | None = None) -> int:
    """Merge records of a scheduler; how many of them changed or added something."""
    now = time.time_ns() if now is None else now
    for cluster in {info.cluster for info in infos}:
        # What may stand in a batch may stand here, and nothing else.
        check(
            Batch(
                cluster=cluster,
                node="scheduler",
                spool="scheduler",
                sequence=0,
                written=now,
                monotonic=0,
                agent="scheduler",
                jobs=[info for info in infos if info.cluster == cluster],
            )
        )
    changed = 0
    for place in range(0, len(infos), AT_ONCE):
        some = infos[place : place + AT_ONCE]
        with database.write() as transaction:
            transaction.lock("job", {f"{info.cluster} {info.job_id}" for info in some})
            bookings = Bookings(transaction, now)
            changed += bookings.record_all(some)
            bookings.flush()
    return changed


def open_runs(connection: Connection, cluster: str) -> list[OpenRun]:
    """The cluster's runs that have not ended, as far as the store knows."""
    query = (
        select(
            runs.c.job_id,
            runs.c.start,
            runs.c.provisional,
            runs.c.state,
            runs.c.source,
            runs.c.name,
            runs.c.partition,
        )
        # Not in their order: SQLite would take the index that has it, and read all runs.
        .where(runs.c.cluster == cluster, runs.c.end.is_(None))
    )
    return [
        OpenRun(job_id, None if provisional else start, *others)
        for job_id, start, provisional, *others in sorted(
            connection.execute(query), key=lambda row: (row.job_id, row.start)
        )
    ]
