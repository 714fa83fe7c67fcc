"""Protocols for data that other systems hold: the archive, and external storage of time series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from jobsight.errors import StoreError
from jobsight.store.read.queries import (
    MetricSummary,
    StoredExecutable,
    StoredNode,
    StoredSeries,
    StoredStep,
)
from jobsight.store.sql.load import load_statements
from jobsight.store.transaction import Transaction

_SQL: Final = load_statements("read")


class ArchivedRun(NamedTuple):
    """Where the archive holds a run: the file of its part, and its key in that file."""

    file: str
    cluster: str
    job_id: int
    start: int


class Archive(Protocol):
    """Reads the data of runs that retention has removed from the store."""

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


def find_archived(transaction: Transaction, run_id: int) -> ArchivedRun | None:
    """Where a run is archived, if retention has removed some of its data."""
    rows = transaction.mappings(_SQL["archived_run"], {"run_id": run_id})
    return ArchivedRun(**rows[0]) if rows else None


class RunSpan(NamedTuple):
    """A run as another system identifies it: the job and its interval."""

    cluster: str
    job_id: int
    start: int
    #: None while it runs.
    end: int | None


class SeriesError(StoreError):
    """The system that holds the time series cannot be read."""


class ExternalSeries(Protocol):
    """Holds the time series of runs in place of the store's own chunks."""

    def series(
        self, run: RunSpan, metrics: Sequence[str] | None, since: int | None, until: int | None
    ) -> list[StoredSeries]: ...

    def nodes(self, run: RunSpan) -> list[StoredNode]:
        """The nodes of a run that no agent has reported, derived from the time series."""
        ...


def find_span(transaction: Transaction, run_id: int) -> RunSpan:
    """The job and the interval of a run, or :class:`StoreError`."""
    rows = transaction.mappings(_SQL["span_of_run"], {"run_id": run_id})
    if not rows:
        raise StoreError(f"the store holds no run {run_id} any more")
    return RunSpan(**rows[0])


def summaries_of(series: Sequence[StoredSeries]) -> list[MetricSummary]:
    """Minimum, mean, maximum and last value of time series that were read in full."""
    from jobsight.store.series.blocks import SeriesBlock, combine, summarise

    return sorted(
        MetricSummary(of_node.node, metric, *combine([summary]))
        for of_node in series
        for metric, summary in summarise(SeriesBlock(of_node.times, of_node.columns)).items()
    )
