"""The store: one object to write batches and to read runs.

SQLAlchemy and numpy are imported by the methods that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from jobsight.model import JobInfo, RunReference
from jobsight.store.database import Database
from jobsight.store.findings.read import findings_of_run
from jobsight.store.findings.rows import FindingRow
from jobsight.store.findings.works import StoredFigures, figures_of_runs
from jobsight.store.history import count_samples
from jobsight.store.properties import JobKey, read_short_properties
from jobsight.store.read import queries
from jobsight.store.read.external import (
    Archive,
    ArchivedRun,
    ExternalSeries,
    find_archived,
    find_span,
    summaries_of,
)
from jobsight.store.read.filters import LATEST, Filters, Position, Sort
from jobsight.store.read.queries import (
    Count,
    ExecutableSums,
    GroupKey,
    GroupSummary,
    MetricSummary,
    RunPage,
    RunRevision,
    StoredExecutable,
    StoredGpu,
    StoredNode,
    StoredRun,
    StoredSeries,
    StoredStep,
    StoreInfo,
)
from jobsight.store.read.visibility import EVERYTHING, Visibility
from jobsight.store.write.intake import Intake

if TYPE_CHECKING:
    from jobsight.store.chains import Dependency
    from jobsight.store.write.scheduler import OpenRun

_Row = TypeVar("_Row")
_Record = TypeVar("_Record", bound=msgspec.Struct)


class Store(Intake):
    """Runs with their nodes, time series, executables and steps, in SQLite or PostgreSQL.

    All methods are thread-safe: writers are serialised, readers do not wait for them.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        #: Returns the archive, which has what retention removed; set by jobsight.archive.
        self.archive: Callable[[], Archive] | None = None
        #: Holds the time series in place of the store's chunks; set by jobsight.server.promql.
        self.external_series: ExternalSeries | None = None

    def record_jobs(
        self,
        infos: Sequence[JobInfo],
        details: Sequence[msgspec.Struct] | None = None,
        *,
        completing: bool = False,
        now: int | None = None,
    ) -> int:
        """Merge job records of a scheduler as a batch would; returns how many changed a run."""
        from jobsight.store.write.scheduler import record_jobs

        return record_jobs(self.database, infos, details, now, completing=completing)

    def record_dependencies(self, dependencies: Iterable[Dependency], *, now: int) -> int:
        """Store which jobs depend on each other; returns how many dependencies were new."""
        from jobsight.store.chains import record_dependencies

        return record_dependencies(self.database, dependencies, now)

    def open_runs(self, cluster: str) -> list[OpenRun]:
        """The cluster's runs whose end is not known."""
        from jobsight.store.write.scheduler import open_runs

        with self.database.query() as transaction:
            return open_runs(transaction, cluster)

    def runs(
        self,
        *,
        limit: int = 50,
        offset: int = 0,
        after: Position | None = None,
        sort: Sort = LATEST,
        **filters: Unpack[Filters],
    ) -> list[StoredRun]:
        """Runs that pass the filters, by default the latest start first; ``after`` is a position of
        the list, which costs the same however far it is."""
        filter = queries.run_filter(**filters)
        with self.database.query() as transaction:
            return queries.list_runs(
                transaction, filter, limit, offset, after=after, sort=sort.shown
            )

    def count_runs(self, **filters: Unpack[Filters]) -> int:
        """How many runs pass the filters; more than ``queries.COUNT_LIMIT`` are not counted."""
        filter = queries.run_filter(**filters)
        with self.database.query() as transaction:
            return queries.count_runs(transaction, filter).number

    def count_states(self, newest: int, **filters: Unpack[Filters]) -> dict[str, int]:
        """The newest runs that pass the filters, counted by the state that is shown."""
        with self.database.query() as transaction:
            return queries.count_states(transaction, queries.run_filter(**filters), newest)

    def largest_runs(self, newest: int, limit: int, **filters: Unpack[Filters]) -> list[StoredRun]:
        """Of the newest runs that pass the filters, those that held the most core time."""
        with self.database.query() as transaction:
            filter = queries.run_filter(**filters)
            return queries.list_largest(transaction, filter, newest, limit)

    def page_of_runs(
        self,
        *,
        limit: int,
        offset: int = 0,
        after: Position | None = None,
        sort: Sort = LATEST,
        **filters: Unpack[Filters],
    ) -> tuple[RunPage, Count]:
        """Some runs that pass the filters, where the list continues, and how many there are, of one
        state of the store."""
        filter, sort = queries.run_filter(**filters), sort.shown
        with self.database.query() as transaction:
            found = queries.Found(transaction, filter, sort)
            page = queries.list_page_of_runs(
                transaction, filter, limit, sort=sort, after=after, offset=offset, found=found
            )
            count = queries.count_runs(transaction, filter, found=found)
            return page, count.at_least(len(page.runs))

    def page_of_groups(
        self,
        *,
        limit: int,
        after: Position | None = None,
        sort: Sort = LATEST,
        **filters: Unpack[Filters],
    ) -> tuple[RunPage, Count, dict[GroupKey, GroupSummary]]:
        """As :meth:`page_of_runs`, with one run of each chain, array and heterogeneous job; the
        third is what their runs are as a whole."""
        filter, sort = queries.run_filter(**filters), sort.shown
        with self.database.query() as transaction:
            found = queries.Found(transaction, filter, sort)
            page = queries.list_groups(
                transaction, filter, limit, sort=sort, after=after, found=found
            )
            chains = not filter.has_column("chain_job_id")
            groups = [
                group for run in page.runs if (group := queries.GroupKey.of(run, chains=chains))
            ]
            count = queries.count_runs(transaction, filter, found=found)
            visibility = filters.get("visibility", EVERYTHING)
            summaries = queries.summarize_groups(transaction, groups, visibility)
            return page, count.at_least(len(page.runs)), summaries

    def find(self, reference: RunReference, visibility: Visibility = EVERYTHING) -> StoredRun:
        """The run that a reference names; a bare id names the latest run of that job."""
        with self.database.query() as transaction:
            return queries.find_run(transaction, reference, self.database.where, visibility)

    def run_by_id(self, run_id: int) -> StoredRun | None:
        """A run by its row; None if it was deleted."""
        with self.database.query() as transaction:
            return queries.find_row(transaction, run_id)

    def revision_of(
        self, reference: RunReference, visibility: Visibility = EVERYTHING
    ) -> RunRevision:
        """The revision of the run that a reference names."""
        with self.database.query() as transaction:
            return queries.find_revision(transaction, reference, self.database.where, visibility)

    def latest(self, user: str) -> StoredRun | None:
        """The user's last run."""
        with self.database.query() as transaction:
            filter = queries.run_filter(user=user)
            return next(iter(queries.list_runs(transaction, filter, 1, complete=True)), None)

    def nodes(self, run_id: int) -> list[StoredNode]:
        """The run on each of its nodes."""
        with self.database.query() as transaction:
            found = queries.list_nodes(transaction, run_id)
            if found or self.external_series is None:
                return found
            span = find_span(transaction, run_id)
        return self.external_series.nodes(span)

    def executables(self, run_id: int) -> list[StoredExecutable]:
        """What the run executed, by node, the most CPU time first."""
        with self.database.query() as transaction:
            found = queries.list_executables(transaction, run_id)
        return found or self._archived(run_id, lambda archive, run: archive.executables(run))

    def largest_executables(self, run_id: int) -> ExecutableSums:
        """What the run executed, over all nodes: the largest, and the sum of the others."""
        with self.database.query() as transaction:
            found = queries.sum_largest_executables(transaction, run_id)
        if found.executables:
            return found
        archived = self._archived(run_id, lambda archive, run: archive.executables(run))
        return queries.ExecutableSums.of(archived)

    def steps(self, run_id: int) -> list[StoredStep]:
        """The steps of the run, by node, in the order in which they were first seen."""
        with self.database.query() as transaction:
            found = queries.list_steps(transaction, run_id)
        return found or self._archived(run_id, lambda archive, run: archive.steps(run))

    def gpus(self, run_id: int) -> list[StoredGpu]:
        """The GPUs that the run held, by node and key."""
        with self.database.query() as transaction:
            return queries.list_gpus(transaction, run_id)

    def properties(self, key: JobKey) -> dict[str, Any]:
        """What the user has stored with a job, without long values."""
        return read_short_properties(self.database, key)

    def findings(self, run_id: int) -> list[FindingRow]:
        """What the rules have found in the run, in every state, the worst first."""
        return findings_of_run(self.database, run_id)

    def software_of(self, run_id: int, limit: int = 20) -> list[str]:
        """The names of the software that the run used, the most CPU time first."""
        with self.database.query() as transaction:
            return queries.list_software(transaction, run_id, limit)

    def software_use_of(self, run_id: int, limit: int) -> list[queries.SoftwareUse]:
        """What the programs of a run used by software, the most CPU time first."""
        with self.database.query() as transaction:
            return queries.list_software_use(transaction, run_id, limit)

    def figures_of(self, run_id: int) -> StoredFigures | None:
        """The figures and the work of a run; None if it was not judged."""
        return figures_of_runs(self.database, [run_id]).get(run_id)

    def count_samples(self, run_id: int) -> int:
        """The samples of the time series of a run, in the archive if retention removed them."""
        stored = count_samples(self.database, [run_id])
        if stored:
            return stored

        def archived(archive: Archive, run: ArchivedRun) -> list[StoredSeries]:
            # One column has the times of all.
            return archive.series(run, ["cpu.time"], None, None)

        return sum(len(each.times) for each in self._archived(run_id, archived))

    def failures_of(self, path: bytes, limit: int) -> list[queries.PathUse]:
        """The newest uses of an executable in all runs."""
        with self.database.query() as transaction:
            return queries.list_path_failures(transaction, path, limit)

    def details(self, run_id: int, kind: type[_Record]) -> _Record | None:
        """What the scheduler recorded of the run beyond its columns."""
        from jobsight.store.snapshot import unpack

        with self.database.query() as transaction:
            data = queries.find_details(transaction, run_id)
        return None if data is None else unpack(data, kind)

    def series(
        self,
        run_id: int,
        metrics: Sequence[str] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[StoredSeries]:
        """The time series by node, sorted by time; all metrics if none are named."""
        with self.database.query() as transaction:
            if self.external_series is None:
                found = queries.list_series(transaction, run_id, metrics, since, until)
            else:
                span = find_span(transaction, run_id)
        if self.external_series is not None:
            return self.external_series.series(span, metrics, since, until)
        return found or self._archived(
            run_id, lambda archive, run: archive.series(run, metrics, since, until)
        )

    def series_by_node(self, run_id: int, metrics: Sequence[str]) -> Iterator[StoredSeries]:
        """The time series of some metrics, one node after the other: a run of many nodes has more
        values than :meth:`series` returns."""
        if self.external_series is not None:
            yield from self.series(run_id, metrics)
            return
        found = False
        with self.database.query() as transaction:
            for series in queries.iterate_series(transaction, run_id, metrics):
                found = True
                yield series
        if not found:
            yield from self._archived(
                run_id, lambda archive, run: archive.series(run, metrics, None, None)
            )

    def summaries(self, run_id: int) -> list[MetricSummary]:
        """Minimum, mean, maximum and last value of each time series."""
        if self.external_series is not None:
            return summaries_of(self.series(run_id))
        with self.database.query() as transaction:
            found = queries.list_summaries(transaction, run_id)
        return found or self._archived(run_id, lambda archive, run: archive.summaries(run))

    def _archived(
        self, run_id: int, query: Callable[[Archive, ArchivedRun], list[_Row]]
    ) -> list[_Row]:
        """Query the archive, if retention removed some of the run."""
        if self.archive is None:
            return []
        with self.database.query() as transaction:
            run = find_archived(transaction, run_id)
        return [] if run is None else query(self.archive(), run)

    def info(self) -> StoreInfo:
        """How much the store holds."""
        from jobsight.store.maintenance.inventory import summarize_store

        return summarize_store(self.database)
