"""Brings what Slurm knows into the store, and forgets nothing that ended meanwhile.

Each round asks the controller once and the accounting for the time since the last round, with
some overlap; after a longer absence in windows of bounded length. Then every run that is still
open in the store, and that the controller does not show as running, is asked for by its id.
Jobs that never ran are no runs: waiting ones are left out until they start, those cancelled while
they waited for ever.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from jobsight.config.settings import Settings
from jobsight.errors import JobsightError
from jobsight.model import SECOND, RunReference
from jobsight.scheduler.combine import (
    Key,
    Queue,
    combine,
    has_doubtful_name,
    is_whole,
    key_of,
)
from jobsight.scheduler.errors import SchedulerError
from jobsight.scheduler.mirror import Mirror
from jobsight.scheduler.policy import ReservationInfo, mark_reserved
from jobsight.scheduler.records import JobRecord, Jobs, Problem
from jobsight.scheduler.sinks.gauges import count_cluster
from jobsight.scheduler.sources.base import Source
from jobsight.scheduler.sources.choose import Choice, open_source
from jobsight.scheduler.state import ScrapeState, read_state, write_state
from jobsight.store import BatchError, RunNotFound, Store

logger = logging.getLogger("jobsight.scheduler")

_DAY = 86400 * SECOND
#: Runs that are no jobs of Slurm's.
_OTHER_SOURCES = frozenset({"jobsight run", "test"})
#: Ids in one question, and the longest pause before an open run is asked for again.
_MOST_IDS = 200
#: Records that are in memory at once, however many a reply has.
_AT_ONCE = 1000
_POLICY_EVERY = 3600 * SECOND
_FIRST_PAUSE, _LONGEST_PAUSE = 60 * SECOND, 6 * 3600 * SECOND


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
        self._store = store
        self._settings = settings
        self._choose = choose
        self._clock = clock
        self._choice: Choice | None = None
        #: When an open run that nobody knows is asked for again, and the pause after that.
        self._pauses: dict[int, tuple[int, int]] = {}
        #: Runs of this round that stand in the accounting and in the queue.
        self._booked: set[Key] = set()
        self._policy_due = 0
        self._reservations: list[ReservationInfo] = []
        self._reported: set[tuple[str, str]] = set()
        self._mirror = Mirror(store, settings.cluster, clock)
        self.state = read_state(settings.store.location, settings.cluster)

    def once(self) -> ScrapeState:
        """One round. What fails is said in the state; what is stored stays as it is."""
        state = self.state
        state.attempted = self._clock()
        state.reason, state.seen, state.changed, state.problems = "", 0, 0, 0
        try:
            self._round(state)
            state.succeeded = self._clock()
        except JobsightError as error:
            state.reason = str(error)
            # Another source may answer next time.
            self._choice = None
        write_state(self._settings.store.location, state)
        return state

    def _round(self, state: ScrapeState) -> None:
        if self._choice is None:
            state.source = ""
            self._choice = self._choose(self._settings)
            state.source = self._choice.reason
        source = self._choice.source
        now = self._clock()
        failures: list[str] = []
        queue = Queue()
        self._booked.clear()
        # The accounting may answer while the controller is away, and the other way round.
        with _collected(failures):
            jobs = source.queue()
            queue = Queue(jobs)
            self._report(jobs.problems)
            self._mirror.keep("waiting", queue.waiting.items())
        self._mirror_policy(source, now)
        with _collected(failures):
            self._mirror_cluster(source, queue)
        with _collected(failures):
            self._catch_up(now, queue)
        # What the accounting has not booked yet, or could not be asked for.
        for some in batched(
            (record for key, record in queue.runs.items() if key not in self._booked), _AT_ONCE
        ):
            self._store_all(some)
        with _collected(failures):
            self._reconcile(now, queue)
        if failures:
            raise SchedulerError("; ".join(dict.fromkeys(failures)))

    def _mirror_cluster(self, source: Source, queue: Queue) -> None:
        nodes, partitions = source.nodes(), source.partitions()
        mark_reserved(nodes.records, self._reservations, self._clock())
        counted = count_cluster(self._settings.cluster, nodes.records, queue.records())
        self._mirror.keep("gauges", [("all", counted)])
        for kind, reply in (("node", nodes), ("partition", partitions)):
            self._report(reply.problems)
            self._mirror.keep(kind, ((record.name, record) for record in reply.records))

    def _mirror_policy(self, source: Source, now: int) -> None:
        """Reservations and the like, which change seldom; without them a round is still whole."""
        if now < self._policy_due:
            return
        self._policy_due = now + _POLICY_EVERY
        try:
            policy = source.policy()
        except SchedulerError as error:
            logger.warning("reservations, QOS and associations are not known: %s", error)
            return
        self._report(policy.problems)
        self._reservations = policy.reservations
        for kind, records in (
            ("reservation", policy.reservations),
            ("qos", policy.qos),
            ("association", policy.associations),
        ):
            self._mirror.keep(kind, ((record.name, record) for record in records))

    def _catch_up(self, now: int, queue: Queue) -> None:
        """Read the accounting up to now, window by window, and keep how far that came."""
        assert self._choice is not None
        scheduler = self._settings.scheduler
        window = int(scheduler.window * SECOND)
        if self._choice.source.whole:
            begin, window = 0, now + 1
        elif self.state.until is None:
            begin = now - int(scheduler.history * _DAY)
        else:
            begin = min(self.state.until, now) - int(scheduler.overlap * SECOND)
        while True:
            # The last window reaches into the future a little: clocks differ.
            end = begin + window if begin + window < now else now + 60 * SECOND
            self._book(self._choice.source.accounting(begin, end), queue, ())
            if end >= now:
                self.state.until = now
                return
            self.state.until = begin = end
            write_state(self._settings.store.location, self.state)

    def _reconcile(self, now: int, queue: Queue) -> None:
        """Ask for every run that is open in the store and not shown as active any more."""
        assert self._choice is not None
        active = queue.active()
        wanted = sorted(
            {
                run.job_id
                for run in self._store.open_runs(self._settings.cluster)
                if run.source not in _OTHER_SOURCES
                and (run.job_id not in active or (run.job_id, _second(run.start)) not in queue.runs)
            }
        )
        self._pauses = {job_id: self._pauses[job_id] for job_id in wanted if job_id in self._pauses}
        due = [job_id for job_id in wanted if self._pauses.get(job_id, (0, 0))[0] <= now]
        for place in range(0, len(due), _MOST_IDS):
            some = due[place : place + _MOST_IDS]
            self._book(self._choice.source.accounting_of(some), queue, some)
        for job_id in due:
            pause = min(self._pauses.get(job_id, (0, _FIRST_PAUSE // 2))[1] * 2, _LONGEST_PAUSE)
            self._pauses[job_id] = (now + pause, pause)

    def _book(self, jobs: Jobs, queue: Queue, open_ids: Sequence[int]) -> None:
        """Store the accounting's records group by group, as they come."""
        try:
            for some in batched(jobs, _AT_ONCE):
                self._book_some(some, queue, open_ids)
        finally:
            self._report(jobs.problems)

    def _book_some(
        self, records: Iterable[JobRecord], queue: Queue, open_ids: Sequence[int]
    ) -> None:
        """Store the runs among the accounting's records. A job that is open in the store, and
        that never ran as the accounting says, ends there without a start."""
        wanted = []
        for record in records:
            info = record.info
            if record.ran:
                live = queue.runs.get(key_of(info))
                if live is not None:
                    self._booked.add(key_of(info))
                    wanted.append(combine(record, live))
                elif is_whole(info):
                    wanted.append(self._with_kept_name(record))
            elif info.job_id in open_ids and info.end is not None and is_whole(info):
                wanted.append(self._with_kept_name(record))
        self._store_all(wanted)

    def _with_kept_name(self, record: JobRecord) -> JobRecord:
        """A name that the accounting may have changed does not replace one that is stored."""
        info = record.info
        if not has_doubtful_name(info):
            return record
        reference = RunReference(info.job_id, info.cluster, info.start)
        try:
            stored = self._store.find(reference)
        except RunNotFound:
            return record
        if stored.info.name is not None:
            record.info = msgspec.structs.replace(info, name=stored.info.name)
        return record

    def _store_all(self, records: Sequence[JobRecord]) -> None:
        known = [record.info for record in records]
        self.state.seen += len(known)
        try:
            self.state.changed += self._store.record_jobs(known)
        except BatchError:
            # One of them cannot be stored; the others can.
            for info in known:
                try:
                    self.state.changed += self._store.record_jobs([info])
                except BatchError as error:
                    self._report([Problem(f"job {info.job_id}", "record", str(error))])
        self._mirror.keep_details(records)

    def _report(self, problems: Sequence[Problem]) -> None:
        self.state.problems += len(problems)
        for problem in problems:
            kind = (problem.field, problem.reason)
            # The first of a kind is enough: a new release may give one for every job.
            if kind not in self._reported and len(self._reported) < 1000:
                self._reported.add(kind)
                logger.warning("%s", problem)


@contextmanager
def _collected(failures: list[str]) -> Iterator[None]:
    try:
        yield
    except SchedulerError as error:
        failures.append(str(error))


def batched(records: Iterable[JobRecord], size: int) -> Iterator[list[JobRecord]]:
    stream = iter(records)
    while group := list(itertools.islice(stream, size)):
        yield group


def _second(time: int | None) -> int:
    return -1 if time is None else time // SECOND
