"""What was pruned of a run, asked of the archive that holds it.

Curves that another system keeps: what the store asks of it, and what it says of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, select

from jobsight.errors import StoreError
from jobsight.store.read.queries import (
    MetricSummary,
    StoredExecutable,
    StoredNode,
    StoredSeries,
    StoredStep,
)
from jobsight.store.schema.tables import runs
from jobsight.store.series.curves import SeriesBlock, combine, summarise


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


class RunSpan(NamedTuple):
    """A run as another system may know it: whose job, from when to when."""

    cluster: str
    job_id: int
    start: int
    #: None while it runs.
    end: int | None


class ExternalSeries(Protocol):
    """Keeps the curves of runs in place of the store's own chunks."""

    def series(
        self, run: RunSpan, metrics: Sequence[str] | None, since: int | None, until: int | None
    ) -> list[StoredSeries]: ...

    def nodes(self, run: RunSpan) -> list[StoredNode]:
        """The run on its nodes, worked out from the curves, where no agent has reported it."""
        ...


def find_span(connection: Connection, run_id: int) -> RunSpan:
    query = select(runs.c.cluster, runs.c.job_id, runs.c.start, runs.c.end)
    found = connection.execute(query.where(runs.c.id == run_id)).first()
    if found is None:
        raise StoreError(f"the store holds no run {run_id} any more")
    return RunSpan(*found)


def summaries_of(series: Sequence[StoredSeries]) -> list[MetricSummary]:
    """Minimum, mean, maximum and last of curves that are read as a whole."""
    made = []
    for one in series:
        for metric, summary in summarise(SeriesBlock(one.times, one.columns)).items():
            made.append(MetricSummary(one.node, metric, *combine([summary])))
    return sorted(made)
