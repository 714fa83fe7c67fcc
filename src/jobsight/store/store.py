"""The store: one object for those who write batches and those who read runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import func, select, text

from jobsight.model import JobInfo, RunReference
from jobsight.store.database import Database
from jobsight.store.maintenance.inventory import size_of
from jobsight.store.read import queries
from jobsight.store.read.external import (
    Archive,
    ArchivedRun,
    ExternalSeries,
    find_archived,
    find_span,
    summaries_of,
)
from jobsight.store.read.queries import (
    MetricSummary,
    StoredExecutable,
    StoredNode,
    StoredRun,
    StoredSeries,
    StoredStep,
    StoreInfo,
)
from jobsight.store.schema import versions
from jobsight.store.schema.tables import agents, chunks, executables, paths, run_nodes, runs, steps
from jobsight.store.write import scheduler
from jobsight.store.write.intake import Intake
from jobsight.store.write.scheduler import OpenRun

_Row = TypeVar("_Row")


class Store(Intake):
    """Runs with their nodes, curves, executables and steps, in SQLite or PostgreSQL.

    All methods may be called from any thread: writers take turns, readers do not wait for them.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        #: Gives the archive where what was pruned can still be read; jobsight.archive sets it.
        self.archive: Callable[[], Archive] | None = None
        #: Keeps the curves in place of our own chunks; jobsight.server.promql sets it.
        self.curves: ExternalSeries | None = None

    def record_jobs(self, infos: Sequence[JobInfo]) -> int:
        """Merge what a scheduler says of jobs, as a batch would; how many records were news."""
        return scheduler.record_jobs(self.database, infos)

    def open_runs(self, cluster: str) -> list[OpenRun]:
        """The cluster's runs whose end is not known."""
        with self.database.read() as connection:
            return scheduler.open_runs(connection, cluster)

    def runs(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        user: str | None = None,
        account: str | None = None,
        state: str | None = None,
        search: str | None = None,
        since: int | None = None,
    ) -> list[StoredRun]:
        """Runs that pass the filters, the latest start first."""
        filters = queries.run_filters(
            user=user, account=account, state=state, search=search, since=since
        )
        with self.database.read() as connection:
            return queries.list_runs(connection, filters, limit, offset)

    def count_runs(
        self,
        *,
        user: str | None = None,
        account: str | None = None,
        state: str | None = None,
        search: str | None = None,
        since: int | None = None,
    ) -> int:
        """How many runs pass the filters."""
        filters = queries.run_filters(
            user=user, account=account, state=state, search=search, since=since
        )
        with self.database.read() as connection:
            return queries.count_runs(connection, filters)

    def find(self, reference: RunReference) -> StoredRun:
        """The run that a reference means; a bare id means the latest run of that job."""
        with self.database.read() as connection:
            return queries.find_run(connection, reference, self.database.where)

    def latest(self, user: str) -> StoredRun | None:
        """The user's last run."""
        return next(iter(self.runs(limit=1, user=user)), None)

    def nodes(self, run_id: int) -> list[StoredNode]:
        """The run on each of its nodes."""
        with self.database.read() as connection:
            found = queries.list_nodes(connection, run_id)
            if found or self.curves is None:
                return found
            span = find_span(connection, run_id)
        return self.curves.nodes(span)

    def executables(self, run_id: int) -> list[StoredExecutable]:
        """What the run executed, by node, the most CPU time first."""
        with self.database.read() as connection:
            found = queries.list_executables(connection, run_id)
        return found or self._archived(run_id, lambda archive, run: archive.executables(run))

    def steps(self, run_id: int) -> list[StoredStep]:
        """The steps of the run, by node, in the order in which they were first seen."""
        with self.database.read() as connection:
            found = queries.list_steps(connection, run_id)
        return found or self._archived(run_id, lambda archive, run: archive.steps(run))

    def series(
        self,
        run_id: int,
        metrics: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[StoredSeries]:
        """The run's curves by node, sorted by time; all metrics where none are named."""
        with self.database.read() as connection:
            if self.curves is None:
                found = queries.list_series(connection, run_id, metrics, since, until)
            else:
                span = find_span(connection, run_id)
        if self.curves is not None:
            return self.curves.series(span, metrics, since, until)
        return found or self._archived(
            run_id, lambda archive, run: archive.series(run, metrics, since, until)
        )

    def summaries(self, run_id: int) -> list[MetricSummary]:
        """Minimum, mean, maximum and last of each curve."""
        if self.curves is not None:
            return summaries_of(self.series(run_id))
        with self.database.read() as connection:
            found = queries.list_summaries(connection, run_id)
        return found or self._archived(run_id, lambda archive, run: archive.summaries(run))

    def _archived(
        self, run_id: int, ask: Callable[[Archive, ArchivedRun], list[_Row]]
    ) -> list[_Row]:
        """Ask the archive, where something of the run was pruned."""
        if self.archive is None:
            return []
        with self.database.read() as connection:
            run = find_archived(connection, run_id)
        return [] if run is None else ask(self.archive(), run)

    def info(self) -> StoreInfo:
        """How much the store holds."""
        with self.database.read() as connection:

            def count(table: str) -> int:
                return connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0

            rows, series_size = connection.execute(
                select(func.sum(chunks.c.rows), func.sum(func.length(chunks.c.data)))
            ).one()
            oldest, newest = connection.execute(
                select(func.min(runs.c.start), func.max(runs.c.start))
            ).one()
            return StoreInfo(
                location=self.database.where,
                engine=self.database.engine.dialect.name,
                version=versions.stored_version(connection) or "",
                runs=count(runs.name),
                nodes=count(run_nodes.name),
                chunks=count(chunks.name),
                rows=int(rows or 0),
                executables=count(executables.name),
                steps=count(steps.name),
                paths=count(paths.name),
                agents=count(agents.name),
                series_size=int(series_size or 0),
                size=size_of(connection),
                oldest=oldest,
                newest=newest,
            )
