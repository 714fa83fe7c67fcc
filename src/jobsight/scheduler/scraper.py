"""Brings what Slurm knows into the store, and forgets nothing that ended meanwhile.

Each round asks the controller once and the accounting for the time since the last round, with
some overlap; after a longer absence in windows of bounded length. Then every run that is still
open in the store, and that the controller does not show as running, is asked for by its id.
Jobs that never ran are no runs: waiting ones are left out until they start, those cancelled while
they waited for ever.

One record of a run from what the controller and the accounting say of it.

Scrapes in the background of a server.
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
from jobsight.model import SECOND, JobInfo, RunReference, merge_job_info
from jobsight.scheduler.adapters.policy import ReservationInfo, mark_reserved
from jobsight.scheduler.cluster_metrics import count_cluster
from jobsight.scheduler.fields import ENDED
from jobsight.scheduler.records import JobRecord, Jobs, Problem, SchedulerError
from jobsight.scheduler.sinks.feeder import feeding
from jobsight.scheduler.snapshot import Snapshot
from jobsight.scheduler.sources.base import Choice, Source, open_source
from jobsight.scheduler.state import ScrapeState, read_state, write_state
from jobsight.store.read.queries import RunNotFound
from jobsight.store.store import Store
from jobsight.store.write.validation import BatchError

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
        self._mirror = Snapshot(store, settings.cluster, clock)
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
                elif is_complete(info):
                    wanted.append(self._with_kept_name(record))
            elif info.job_id in open_ids and info.end is not None and is_complete(info):
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


Key = tuple[int, int]

#: The accounting's database takes these for characters that it does not store.
_REPLACED = ("`", "?")


def key_of(info: JobInfo) -> Key:
    """A run within its cluster; schedulers book whole seconds."""
    assert info.start is not None
    return info.job_id, info.start // SECOND


class Queue:
    """The controller's jobs of one round."""

    def __init__(self, records: Iterable[JobRecord] = ()) -> None:
        #: Those that run, or have run; of two with one key the later wins.
        self.runs: dict[Key, JobRecord] = {}
        #: Those that wait, by the id that Slurm shows: "12", "12_3".
        self.waiting: dict[str, JobRecord] = {}
        for record in records:
            if record.ran:
                self.runs[key_of(record.info)] = record
            elif record.info.state == "PENDING":
                self.waiting[_shown(record)] = record

    def records(self) -> Iterable[JobRecord]:
        return itertools.chain(self.runs.values(), self.waiting.values())

    def active(self) -> set[int]:
        """The ids of those that run now."""
        return {job_id for (job_id, _), record in self.runs.items() if record.info.end is None}


def _shown(record: JobRecord) -> str:
    info = record.info
    return str(info.job_id) if not record.array_tasks else f"{info.job_id}_[{record.array_tasks}]"


def is_complete(info: JobInfo) -> bool:
    """Of a job that has just ended the accounting may first show a stub: root as its user and no
    partition. Nobody's job must become root's for that."""
    return info.partition is not None


def has_doubtful_name(info: JobInfo) -> bool:
    """Whether the accounting may have changed the name: a double quote and what is not in its
    character set are replaced there."""
    return info.name is not None and any(mark in info.name for mark in _REPLACED)


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
    """The same for what the store keeps in its own columns.

    The controller has the name as the user wrote it, the restart count and the exit code of
    failed jobs, which the accounting's JSON of some releases lacks; and it is ahead in time.
    """
    merged = merge_job_info(accounting, controller, "fill")
    if controller.name is not None:
        merged.name = controller.name
    if controller.state in ENDED and accounting.end is None:
        merged.state, merged.end = controller.state, controller.end
        merged.exit_code, merged.exit_signal = controller.exit_code, controller.exit_signal
    elif accounting.exit_code is not None or accounting.exit_signal is not None:
        # Code and signal are one statement: of a job at its time limit the two sides make
        # different ones.
        merged.exit_code, merged.exit_signal = accounting.exit_code, accounting.exit_signal
    return merged


#: Seconds that a server waits at its end for a round that is under way.
_LAST_WAIT = 5.0


def scrape_regularly(
    scraper: Scraper, every: float, stopped: threading.Event, say: Callable[[str], None]
) -> None:
    """Scrape until told to stop. A failure is said once, and so is the end of it."""
    before: str | None = None
    while not stopped.is_set():
        try:
            reason = scraper.once().reason
        except Exception:
            # A fault of ours must not end the scraping, nor the server.
            logger.exception("a scrape of %s ended by a fault", scraper.state.cluster)
            reason = "a fault of jobsight, which its log shows"
        if reason != before and (reason or before):
            say(f"Slurm of {scraper.state.cluster}: {reason or 'answers again'}")
        before = reason
        stopped.wait(every)


@contextmanager
def scraping(settings: Settings, store: Store) -> Iterator[None]:
    """Scrape each cluster beside what the block does, and feed the sinks."""
    stopped = threading.Event()
    threads = [
        _thread(Scraper(store, each), each.scheduler.interval, stopped)
        for each in settings.each_cluster()
        if each.scheduler.interval
    ]
    try:
        with feeding(store, settings.sinks):
            yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(_LAST_WAIT)


def _thread(scraper: Scraper, every: float, stopped: threading.Event) -> threading.Thread:
    thread = threading.Thread(
        target=scrape_regularly,
        args=(scraper, every, stopped, logger.warning),
        name=f"jobsight-scrape-{scraper.state.cluster}",
        daemon=True,
    )
    thread.start()
    return thread
