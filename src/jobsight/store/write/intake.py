"""The writing side of a store, for programs that read nothing from it.

:class:`Intake` needs the database driver alone; SQLAlchemy and numpy are imported by what reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Self

from jobsight.model import SECOND, Batch, JobInfo, JobPart, Sighting
from jobsight.store.database import Database, Transaction, open_database
from jobsight.store.schema import create, statements
from jobsight.store.write.batch import Written, lock_jobs, store_parts, write, write_all
from jobsight.store.write.parts import PartStamp
from jobsight.store.write.validation import check_jobs


class Intake:
    """Writes to SQLite or PostgreSQL; safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Self:
        """Open or create the store at a path or a ``postgresql://`` URL."""
        database = open_database(location)
        try:
            create.create_or_open(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def writes_in_parallel(self) -> bool:
        """Whether several writing threads are faster than one."""
        return self.database.postgresql

    def close(self) -> None:
        """Close the connections. Everything written before is already committed."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, batch: Batch, received: int | None = None) -> bool:
        """Store a batch durably and atomically; False if it had been stored before."""
        return write(self.database, batch, received)

    def write_all(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        """Store several batches with few commits; the outcome of each, or its error."""
        return write_all(self.database, batches)

    def record_finished(
        self,
        cluster: str,
        jobs: Sequence[JobInfo],
        parts: Sequence[JobPart],
        key: str,
        *,
        completions: Sequence[tuple[Sighting, JobInfo]] = (),
        validated: bool = False,
    ) -> bool:
        """Store finished runs that no agent of this store has measured, durably and atomically.

        ``key`` identifies the content: a repeated key changes nothing and returns False. A run
        whose end comes from another source keeps it; an end from the same source only moves to a
        later time. ``completions`` are records without a start, each with the sighting that finds
        its run. Parts carry no series. ``validated`` skips the check of values that the caller
        has validated.
        """
        if not validated:
            check_jobs(cluster, [*jobs, *(info for _, info in completions)], parts)
        now = time.time_ns()
        with self.database.write() as transaction:
            imported = {"name": f"imported {key}", "received": now}
            if not transaction.execute(statements.INSERT_IMPORT, imported).rowcount:
                return False
            lock_jobs(transaction, cluster, jobs, parts)
            store_parts(
                transaction,
                PartStamp(cluster, written=now, received=now),
                _with_known_ends(transaction, cluster, jobs),
                parts,
                [None] * len(parts),
                completions,
            )
        return True


def _with_known_ends(
    transaction: Transaction, cluster: str, jobs: Sequence[JobInfo]
) -> Sequence[JobInfo]:
    keys = [(cluster, job_id) for job_id in sorted({info.job_id for info in jobs})]
    # Schedulers record whole seconds.
    known = {
        (job_id, start // SECOND): (end, source)
        for job_id, start, end, source in transaction.look_up(statements.ENDS_OF_JOBS, keys)
        if end is not None
    }
    for info in jobs:
        if known and info.start is not None and info.end is not None:
            end, source = known.get((info.job_id, info.start // SECOND), (0, info.source))
            info.end = max(info.end, end) if source == info.source else None
    return jobs
