"""The writing end of a store, for programs that book and look at nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from jobsight.model import SECOND, Batch
from jobsight.store.database import Database, open_database
from jobsight.store.schema import create, statements
from jobsight.store.write.batch import write, write_all


class KnownEnd(NamedTuple):
    """The end of a stored run and who said so."""

    end: int | None
    source: str


#: By job id and start in whole seconds, which is what schedulers book.
KnownEnds = dict[tuple[int, int], KnownEnd]


class Intake:
    """Takes batches into SQLite or PostgreSQL; from any thread, writers take turns."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Self:
        """Open or create the store at a path or a ``postgresql://`` address."""
        database = open_database(location)
        try:
            create.create_or_open(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def writes_in_parallel(self) -> bool:
        """Whether several threads that write get on faster than one."""
        return self.database.postgresql

    def close(self) -> None:
        """Give up the connections; nothing is left to be written."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, batch: Batch, received: int | None = None, *, checked: bool = False) -> bool:
        """Store a batch durably, whole or not at all; False where it had been stored before.

        ``checked`` is said by who made the batch of values that are known to be storable.
        """
        return write(self.database, batch, received, checked=checked)

    def write_all(self, batches: Sequence[Batch]) -> list[bool | Exception]:
        """Store several batches with few commits; gives what :meth:`write` gives or raises."""
        return write_all(self.database, batches)

    def known_ends(self, cluster: str, job_ids: Iterable[int]) -> KnownEnds:
        """Until when the runs of these jobs were, and who said so."""
        keys = [(cluster, job_id) for job_id in sorted(set(job_ids))]
        # Who asks is about to write, so it waits for its turn here as well as later.
        with self.database.write() as transaction:
            return {
                (job_id, start // SECOND): KnownEnd(end, source)
                for job_id, start, end, source in transaction.look_up(statements.ENDS_OF_JOBS, keys)
            }
