"""What was pruned of a run, asked of the archive that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, select

from jobsight.store.records import MetricSummary, StoredExecutable, StoredSeries, StoredStep
from jobsight.store.tables import runs


class ArchivedRun(NamedTuple):
    """Where the archive has a run: the file that stands for its part, and its key there."""

    file: str
    cluster: str
    job_id: int
    start: int


class Archive(Protocol):
    """What a store asks for runs that it no longer holds whole."""

    def executables(self, run: ArchivedRun) -> list[StoredExecutable]: ...
    def steps(self, run: ArchivedRun) -> list[StoredStep]: ...
    def summaries(self, run: ArchivedRun) -> list[MetricSummary]: ...
    def series(
        self,
        run: ArchivedRun,
        metrics: Sequence[str] | None,
        since: int | None,
        until: int | None,
    ) -> list[StoredSeries]: ...


def find_archived(connection: Connection, run_id: int) -> ArchivedRun | None:
    """Where a run of which something was pruned is archived."""
    query = select(runs.c.archived, runs.c.cluster, runs.c.job_id, runs.c.archived_start)
    found = connection.execute(
        query.where(runs.c.id == run_id, runs.c.pruned != 0, runs.c.archived.is_not(None))
    ).first()
    return None if found is None else ArchivedRun(*found)
