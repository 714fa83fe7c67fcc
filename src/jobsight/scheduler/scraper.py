"""Scrapes Slurm into the store.

Each round of a :class:`Scraper` queries the controller once, and the accounting for the time since
the last round with some overlap; after a longer absence in windows of bounded length. Then it
queries by id every run that is open in the store and that the controller does not show as
running, so that no end is missed. Jobs that never ran are not runs: pending jobs are kept in the
snapshot of the cluster only.

Read :meth:`Scraper.once` first; :class:`Queue` and :func:`combine` merge the controller's and the
accounting's record of a run. :func:`scraping` runs the scrapers of a server in threads.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.model import LAUNCHER_SOURCE, SECOND, JobInfo, RunReference
from jobsight.scheduler.adapters.policy import ReservationInfo, mark_reserved
from jobsight.scheduler.cluster_metrics import count_cluster
from jobsight.scheduler.cluster_name import with_cluster_name
from jobsight.scheduler.dependencies import dependencies_of
from jobsight.scheduler.fields import ENDED
from jobsight.scheduler.records import (
    JobDetails,
    JobRecord,
    Jobs,
    Problem,
    SchedulerError,
    SourceError,
)
from jobsight.scheduler.scripts import ScriptKeeper
from jobsight.scheduler.sinks.feeder import feeding
from jobsight.scheduler.sources.base import Choice, Source, open_source
from jobsight.scheduler.state import ScrapeState, read_state, write_state
from jobsight.store.accounts.coordinators import record_coordinators
from jobsight.store.read.queries import RunNotFound
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from jobsight.store.write.bounds import limit_details, limit_info
from jobsight.store.write.scheduler import OpenRun, drop_unrecorded_runs
from jobsight.store.write.validation import BatchError
from jobsight.util.backoff import Backoff
from jobsight.util.batching import batched
from jobsight.util.log_once import MAX_CAUSES, LogOnce
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

_DAY = 86400 * SECOND
#: Records in memory at a time, however many a reply has.
_BATCH_SIZE = 1000
_POLICY_INTERVAL = 3600 * SECOND
#: Job ids in one query.
_MAX_IDS = 200
#: Seconds between two queries for an open run that the accounting does not know.
_FIRST_DELAY, _MAX_DELAY = 60.0, 6 * 3600.0
#: After so long without a change, a run that the accounting does not have never happened.
_MAX_ACCOUNTING_DELAY = 6 * 3600 * SECOND
_MAX_CLOCK_DIFFERENCE = 300 * SECOND
#: Seconds between two rounds while they fail, unless the interval is longer.
_MAX_FAILURE_DELAY = 300.0


class Scraper:
    """Scrapes one cluster into one store."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        choose: Callable[[Settings], Choice] = open_source,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.state = read_state(store.database, settings.cluster)
        self._store = store
        self._settings = settings
        self._choose = choose
        self._clock = clock
        self._choice: Choice | None = None
        #: By job id, for open runs that were queried by id.
        self._backoffs: dict[int, Backoff] = {}
        #: Runs of this round that both the accounting and the controller reported.
        self._combined: set[Key] = set()
        self._policy_due = 0
        self._reservations: list[ReservationInfo] = []
        self._log = LogOnce(logger)
        self._snapshot = Snapshot(store.database, settings.cluster, clock)
        self._scripts = ScriptKeeper(store.database, settings.cluster, self._log)

    def once(self) -> ScrapeState:
        """One round. A failure is in the reason of the state, and the store stays as it is."""
        state = self.state
        begin = time.monotonic()
        state.attempted = self._clock()
        state.reason, state.seen, state.changed, state.problems = "", 0, 0, 0
        try:
            nodes = self._round(state)
            state.succeeded = self._clock()
            logger.info(
                "scraped cluster %s from source %s: %d jobs, %d changed, %d nodes in %.1f s",
                state.cluster,
                self._choice.source.name if self._choice else "",
                state.seen,
                state.changed,
                nodes,
                time.monotonic() - begin,
            )
        except Exception as error:
            state.reason = self._reason(error)
            # Another source may answer in the next round.
            self._choice = None
        try:
            write_state(self._store.database, state)
        except JobsightError as error:
            state.reason = state.reason or str(error)
        return state

    def _reason(self, error: Exception) -> str:
        """Why a round failed, as text that can be stored."""
        if isinstance(error, JobsightError):
            reason = str(error)
        else:
            reason = f"internal error: {type(error).__name__}: {error}"[:500]
            # The caller reports the reason; the log has the traceback.
            logger.error("cluster %s: internal error", self.state.cluster, exc_info=error)
        return reason.encode("utf-8", "backslashreplace").decode()

    def _round(self, state: ScrapeState) -> int:
        """Returns the number of nodes."""
        if self._choice is None:
            state.source = ""
            self._choice = self._choose(self._settings)
            state.source = self._choice.reason
            logger.debug("cluster %s: source %s", state.cluster, state.source)
        source = self._choice.source
        now = self._clock()
        nodes = 0
        failures: list[str] = []
        queue = Queue()
        self._combined.clear()
        # The accounting may answer while the controller is unreachable, and vice versa.
        with _collected(failures):
            jobs = source.queue()
            queue = Queue(jobs)
            self._report(jobs.problems)
            for record in queue.pending.values():
                self._limit(record)
            self._snapshot.replace("pending", queue.pending.items())
            self._record_dependencies(queue.pending.values())
        if queue.known:
            # Without the controller this would fail for the same reason.
            self._scrape_policy(source, now)
        with _collected(failures):
            nodes = self._scrape_cluster(source, queue)
        with _collected(failures):
            self._catch_up(source, now, queue)
        # What the accounting has not recorded yet, or could not be queried for.
        rest = (record for key, record in queue.runs.items() if key not in self._combined)
        for batch in batched(rest, _BATCH_SIZE):
            self._record(batch, completing=True)
        with _collected(failures):
            self._query_open_runs(source, queue)
        if self._choice.read_script is not None:
            self._scripts.read_new(self._choice.read_script, queue.runs.values())
        if failures:
            raise SchedulerError("; ".join(dict.fromkeys(failures)))
        return nodes

    def _scrape_cluster(self, source: Source, queue: Queue) -> int:
        nodes, partitions = source.nodes(), source.partitions()
        if not nodes.records and self._snapshot.count("node"):
            raise SourceError(
                "the reply about nodes has no nodes; those of the last scrape are kept"
            )
        mark_reserved(nodes.records, self._reservations, self._clock())
        if queue.known:
            metrics = count_cluster(self._settings.cluster, nodes.records, queue.records())
            self._snapshot.replace("cluster_metrics", [("all", metrics)])
        for kind, reply in (("node", nodes), ("partition", partitions)):
            self._report(reply.problems)
            self._snapshot.replace(kind, ((record.name, record) for record in reply.records))
        return len(nodes.records)

    def _scrape_policy(self, source: Source, now: int) -> None:
        """Reservations, QOS and associations: they change rarely, and a round succeeds without."""
        if now < self._policy_due:
            return
        self._policy_due = now + _POLICY_INTERVAL
        try:
            policy = source.policy()
        except SchedulerError as error:
            self._log.report("policy", f"reservations, QOS and associations are not known: {error}")
            return
        self._log.resolve("policy")
        self._report(policy.problems)
        self._reservations = policy.reservations
        for kind, records in (
            ("reservation", policy.reservations),
            ("qos", policy.qos),
            ("association", policy.associations),
        ):
            self._snapshot.replace(kind, ((record.name, record) for record in records))
        if policy.coordinators is not None:
            record_coordinators(
                self._store.database,
                self._settings.cluster,
                [(found.account, found.user) for found in policy.coordinators],
                now,
            )

    def _catch_up(self, source: Source, now: int, queue: Queue) -> None:
        """Read the accounting up to now, window by window, and store the position after each."""
        scheduler = self._settings.scheduler
        window = int(scheduler.window * SECOND)
        if source.whole:
            begin, window = 0, now + 1
        elif self.state.until is None:
            begin = now - int(scheduler.history * _DAY)
        else:
            begin = min(self.state.until, now) - int(scheduler.overlap * SECOND)
        while True:
            # The last window ends in the future, because clocks differ.
            end = begin + window if begin + window < now else now + 60 * SECOND
            self._record_accounting(source.accounting(begin, end), queue)
            if end >= now:
                self.state.until = now
                return
            self.state.until = begin = end
            write_state(self._store.database, self.state)

    def _query_open_runs(self, source: Source, queue: Queue) -> None:
        """Query by id every run that is open in the store and no longer active."""
        active = queue.active()
        inactive = [
            run
            for run in self._store.open_runs(self._settings.cluster)
            if run.source != LAUNCHER_SOURCE
            and (run.job_id not in active or (run.job_id, _second(run.start)) not in queue.runs)
        ]
        wanted = sorted({run.job_id for run in inactive})
        self._backoffs = {
            job_id: self._backoffs.get(job_id)
            or Backoff(_FIRST_DELAY, _MAX_DELAY, 0, clock=lambda: self._clock() / SECOND)
            for job_id in wanted
        }
        due = [job_id for job_id in wanted if self._backoffs[job_id].ready]
        for job_ids in batched(due, _MAX_IDS):
            self._record_accounting(source.accounting_of(job_ids), queue, job_ids)
            if queue.known:
                self._drop([run for run in inactive if run.job_id in job_ids], queue)
        for job_id in due:
            delay = self._backoffs[job_id].fail()
            logger.debug("open job %d is queried by id again after %.0f s", job_id, delay)

    def _drop(self, runs: Sequence[OpenRun], queue: Queue) -> None:
        """Delete open runs that neither the controller nor the accounting has.

        Those that the accounting has were recorded just before, so they are not deleted. It may
        be late, so a run is deleted some hours after its last change; sooner if the controller
        has the job without this run, and at once if the run would start in the future.
        """
        now = self._clock()
        present = {job_id for job_id, _ in queue.runs} | {
            record.info.job_id for record in queue.pending.values()
        }
        overlap = int(self._settings.scheduler.overlap * SECOND)
        for run in runs:
            if run.start is None:
                continue
            age = overlap if run.job_id in present else _MAX_ACCOUNTING_DELAY
            dropped = drop_unrecorded_runs(
                self._store.database,
                self._settings.cluster,
                [(run.job_id, run.start)],
                now if run.start > now + _MAX_CLOCK_DIFFERENCE else now - age,
            )
            if dropped:
                self.state.changed += dropped
                logger.info(
                    "cluster %s: a run of job %d was deleted: the accounting does not have it",
                    *(self._settings.cluster, run.job_id),
                )

    def _record_accounting(self, jobs: Jobs, queue: Queue, queried_ids: Sequence[int] = ()) -> None:
        """Store the accounting's runs while the reply arrives.

        A job of ``queried_ids`` is open in the store. If it never ran, as the accounting reports
        now, it ends without a start.
        """
        try:
            for batch in batched(jobs, _BATCH_SIZE):
                records = []
                for record in batch:
                    info = record.info
                    record.accounted = True
                    queued = queue.runs.get(key_of(info)) if record.ran else None
                    if queued is not None:
                        self._combined.add(key_of(info))
                        records.append(combine(record, queued))
                    elif is_complete(info) and (
                        record.ran or (info.job_id in queried_ids and info.end is not None)
                    ):
                        records.append(self._with_stored_name(record))
                self._record(records)
        finally:
            self._report(jobs.problems)

    def _with_stored_name(self, record: JobRecord) -> JobRecord:
        """A name that the accounting may have changed does not replace the stored one."""
        info = record.info
        if not has_doubtful_name(info):
            return record
        try:
            stored = self._store.find(RunReference(info.job_id, info.cluster, info.start))
        except RunNotFound:
            return record
        if stored.info.name is not None:
            record.info = msgspec.structs.replace(info, name=stored.info.name)
        return record

    def _record(self, records: Sequence[JobRecord], *, completing: bool = False) -> None:
        self.state.seen += len(records)
        for record in records:
            self._limit(record)
        self._record_dependencies(records)
        try:
            self.state.changed += self._write(records, completing)
        except BatchError:
            # One of them cannot be stored; the others can.
            for record in records:
                try:
                    self.state.changed += self._write([record], completing)
                except BatchError as error:
                    label = f"job {record.info.job_id}"
                    self._report([Problem(label, "record", str(error))])

    def _limit(self, record: JobRecord) -> None:
        """Leave out of a record what is out of bounds: users choose names and comments."""
        record.info, excesses = limit_info(record.info)
        excesses = excesses + limit_details(record, JobDetails.__struct_fields__)
        label = f"job {record.info.job_id}"
        self._report([Problem(label, *excess) for excess in excesses])

    def _record_dependencies(self, records: Iterable[JobRecord]) -> None:
        named = dependencies_of((record.info, record) for record in records)
        self._store.record_dependencies(named, now=self._clock())

    def _write(self, records: Sequence[JobRecord], completing: bool) -> int:
        return self._store.record_jobs(
            [record.info for record in records],
            [record.details for record in records],
            completing=completing,
            now=self._clock(),
        )

    def _report(self, problems: Sequence[Problem]) -> None:
        self.state.problems += len(problems)
        for problem in problems:
            # Only the first of its kind: with a new release every job may have one.
            cause = f"{problem.field}: {problem.reason}"
            if cause not in self._log.counts and len(self._log.counts) < MAX_CAUSES:
                self._log.report(cause, str(problem))


@contextmanager
def _collected(failures: list[str]) -> Iterator[None]:
    try:
        yield
    except SchedulerError as error:
        failures.append(str(error))


def _second(time: int | None) -> int:
    return -1 if time is None else time // SECOND


# --- the controller's and the accounting's record of one run --------------------------------------

#: Job id, and start in seconds.
Key = tuple[int, int]

#: The accounting's database has these instead of characters that it cannot store.
_REPLACEMENTS = ("`", "?")


def key_of(info: JobInfo) -> Key:
    """A run within its cluster; schedulers record whole seconds."""
    assert info.start is not None
    return info.job_id, info.start // SECOND


class Queue:
    """The controller's jobs in one round."""

    def __init__(self, records: Iterable[JobRecord] | None = None) -> None:
        #: False if the controller could not be queried.
        self.known = records is not None
        #: Jobs that run or have run; of two with one key the later counts.
        self.runs: dict[Key, JobRecord] = {}
        #: Pending jobs by the id that Slurm shows: "12", "12_[3-4]".
        self.pending: dict[str, JobRecord] = {}
        for record in records or ():
            info = record.info
            if record.ran:
                self.runs[key_of(info)] = record
            elif info.state == "PENDING":
                tasks = f"_[{record.array_tasks}]" if record.array_tasks else ""
                self.pending[f"{info.job_id}{tasks}"] = record

    def records(self) -> Iterable[JobRecord]:
        return itertools.chain(self.runs.values(), self.pending.values())

    def active(self) -> set[int]:
        """The ids of jobs that have not ended."""
        return {job_id for (job_id, _), record in self.runs.items() if record.info.end is None}


def is_complete(info: JobInfo) -> bool:
    """False for the stub that the accounting may have of a job that has just ended: it belongs to
    root and has no partition, and must not change the owner of the stored run."""
    return info.partition is not None


def has_doubtful_name(info: JobInfo) -> bool:
    """Whether the accounting may have changed the name: double quotes, and characters outside the
    character set of its database, are replaced there."""
    return info.name is not None and any(mark in info.name for mark in _REPLACEMENTS)


def combine(accounting: JobRecord, controller: JobRecord) -> JobRecord:
    """The accounting's record, completed by the controller's of the same run."""
    values = {
        name: getattr(controller, name)
        for name in JobRecord.__struct_fields__
        if getattr(accounting, name) in (None, (), {}, [])
    }
    values["info"] = combine_infos(accounting.info, controller.info)
    return msgspec.structs.replace(accounting, **values)


def combine_infos(accounting: JobInfo, controller: JobInfo) -> JobInfo:
    """The same for the columns of a run.

    The controller has the name as the user wrote it, the restart count and the exit code of
    failed jobs, which the accounting's JSON of some releases lacks, and is earlier.
    """
    values = {
        name: getattr(controller, name)
        for name in JobInfo.__struct_fields__
        if getattr(accounting, name) is None
    }
    if controller.name is not None:
        values["name"] = controller.name
    if controller.state in ENDED and accounting.end is None:
        for name in ("state", "end", "exit_code", "exit_signal"):
            values[name] = getattr(controller, name)
    elif accounting.exit_code is not None or accounting.exit_signal is not None:
        # Code and signal belong together: for a job at its time limit the two sides differ.
        values.pop("exit_code", None)
        values.pop("exit_signal", None)
    return msgspec.structs.replace(accounting, **values)


# --- in the background of a server ----------------------------------------------------------------


@contextmanager
def scraping(settings: Settings, store: Store) -> Iterator[None]:
    """Scrape each cluster in a thread during the block, and feed the sinks."""
    workers = [
        _worker(store, each, each.scheduler.interval)
        for each in settings.each_cluster()
        if each.scheduler.interval
    ]
    for worker in workers:
        worker.start()
    try:
        with feeding(store, settings.sinks):
            yield
    finally:
        # All at once, so that the delays of several clusters do not add up.
        for worker in workers:
            worker.stopped.set()
        for worker in workers:
            worker.stop()


def _worker(store: Store, settings: Settings, interval: float) -> PeriodicWorker:
    scraper: Scraper | None = None

    def work(stopped: threading.Event) -> None:
        nonlocal scraper
        if scraper is None:
            # Here and not before: a server starts and receives batches while Slurm does not answer.
            scraper = Scraper(store, with_cluster_name(settings, store.database))
        reason = scraper.once().reason
        if reason:
            raise SchedulerError(reason)

    cluster = settings.cluster
    return PeriodicWorker(
        f"scrape-{cluster}" if cluster else "scrape",
        work,
        interval,
        logger=logger,
        failure=f"the scrape of {f'cluster {cluster}' if cluster else 'Slurm'} failed",
        backoff=Backoff(interval, max(interval, _MAX_FAILURE_DELAY)),
        # The first scrape reads the history from Slurm's accounting.
        time_limit=6 * 3600.0,
    )
