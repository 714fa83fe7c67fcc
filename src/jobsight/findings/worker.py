"""The background work of the findings, and the same from the command line.

A round of :class:`Worker` judges runs that have just ended, then others that changed, then running
ones every few minutes, then the whole history if the rules have changed. Figures are computed
outside of transactions, in groups that fit into memory; a transaction stores finished rows. A run
that fails becomes a dead letter and stops nobody. Of several servers on one store, the one with the
lease does the work; the others take over when it ends.

What a run is judged by is a :class:`Judge`, so that this module knows nothing of rules.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from jobsight.errors import JobsightError, StoreError
from jobsight.findings.finding import Verdict
from jobsight.findings.history import tasks_judged_early
from jobsight.findings.packed import decode_figures, encode_figures
from jobsight.findings.stored import findings_in, to_row
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND
from jobsight.store.findings import due
from jobsight.store.findings.due import DueRun, Failure
from jobsight.store.findings.rows import Owner
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.findings.works import StoredFigures, figures_of_runs
from jobsight.store.findings.write import (
    NO_CHANGES,
    Change,
    Judged,
    preview_judged,
    store_judged,
)
from jobsight.store.maintenance.retention import EXECUTABLES, SERIES
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.util.batching import batched
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

#: Runs whose figures are computed and stored together, and runs that are judged by their stored
#: figures together.
BATCH_SIZE: Final = 50
HISTORY_BATCH_SIZE: Final = 500
#: Seconds after which a round looks for newly ended runs again.
ROUND: Final = 30.0
#: A run that ended within this time is judged before a backlog.
_RECENT: Final = 3600 * SECOND
_DISTANT_PAST: Final = -(2**62)
#: Arrays whose last task is waited for, and how old the last ended task of one is at the start.
_MAX_ARRAYS: Final = 1000
_ARRAYS_SINCE: Final = 24 * 3600 * SECOND
#: Seconds between transactions: without a pause the same process may get the lock again.
_PAUSE: Final = 0.02
#: Findings that wait to be recorded as shown; more are dropped, since only counts are lost.
_MAX_SHOWN: Final = 10_000


class Measured(NamedTuple):
    """The figures of a run, and the work that it is a run of."""

    figures: FigureSet
    work_id: int | None = None


class Judge(Protocol):
    """Computes the figures of a run and applies rules to figures."""

    @property
    def digest(self) -> str:
        """Differs if the rules or their parameters do."""
        ...

    def measure(self, run: StoredRun, now: int) -> Measured:
        """The figures of a run, read from the store."""
        ...

    def measure_running(self, run: StoredRun, owner: Owner, now: int) -> Measured:
        """The figures of a running run that decide its rules; all of them if one fires whose text
        needs more, or if the run has ended."""
        ...

    def judge(self, figures: FigureSet, owner: Owner, *, every: bool = False) -> Sequence[Verdict]:
        """What rules say about a run of this cluster, account and partition: those that fired or
        were withheld, or all."""
        ...


class Round(NamedTuple):
    """What a round has done."""

    #: Runs that were judged, and runs that failed.
    runs: int = 0
    failed: int = 0
    #: How many findings of each kind are new, changed or gone.
    changes: Mapping[tuple[str, str], int] = {}
    #: Nothing is left to do.
    complete: bool = True

    def and_then(self, other: Round) -> Round:
        return Round(
            self.runs + other.runs,
            self.failed + other.failed,
            Counter(self.changes) + Counter(other.changes),
            self.complete and other.complete,
        )


class Evaluation:
    """Judges groups of runs with one judge."""

    def __init__(
        self,
        store: Store,
        judge: Judge,
        *,
        dry_run: bool = False,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._store = store
        self._judge = judge
        self._dry_run = dry_run
        self._clock = clock

    def runs(
        self, runs: Sequence[DueRun], *, stored_figures: bool = False, marked: bool = False
    ) -> Round:
        """Judge some runs; with ``stored_figures`` by the figures that the store has of them.
        ``marked`` runs are dead letters already."""
        failures: list[Failure] = []
        judged = list(self._judged(runs, stored_figures, failures))
        not_judged = len(failures)
        changes = self._store_all(judged, {run.id: run for run in runs}, failures)
        if not self._dry_run:
            due.set_aside(self._store.database, failures, marked=marked)
        _log_failures(failures)
        counts: Counter[tuple[str, str]] = Counter((each.kind, each.what) for each in changes)
        stored = len(judged) - (len(failures) - not_judged)
        return Round(stored, len(failures), counts)

    def _judged(
        self, runs: Sequence[DueRun], stored_figures: bool, failures: list[Failure]
    ) -> Iterator[Judged]:
        wanted = [run.id for run in runs if stored_figures or run.pruned & (SERIES | EXECUTABLES)]
        stored = figures_of_runs(self._store.database, wanted)
        for run in runs:
            try:
                if run.id in stored:
                    measured = _decoded(stored[run.id])
                    if stored_figures:
                        # What has changed since the figures were computed is still to be judged.
                        run = run._replace(changes=NO_CHANGES)
                    yield self._judge_one(run, measured, computed=False)
                elif not stored_figures:
                    yield self._measure_and_judge(run)
            except StoreError:
                raise
            except Exception as error:
                logger.debug("run %d cannot be judged", run.id, exc_info=True)
                failures.append(Failure(run.id, run.cluster, _reason(error)))

    def _measure_and_judge(self, run: DueRun) -> Judged:
        stored = self._store.run_by_id(run.id)
        if stored is None or (stored.provisional and stored.first_seen is None):
            # It was deleted meanwhile, or has never started.
            return Judged(run.id, run.changes, run.owner, None, ())
        now = self._clock()
        if stored.info.end is None:
            measured = self._judge.measure_running(stored, run.owner, now)
        else:
            measured = self._judge.measure(stored, now)
        return self._judge_one(run, measured, computed=True)

    def _judge_one(self, run: DueRun, measured: Measured, *, computed: bool) -> Judged:
        verdicts = self._judge.judge(measured.figures, run.owner)
        if logger.isEnabledFor(logging.DEBUG):
            for each in verdicts:
                if each.outcome == "withheld":
                    logger.debug("run %d: rule %s withheld: %s", run.id, each.kind, each.reason)
        return Judged(
            run_id=run.id,
            # A run that changed meanwhile stays to be judged.
            changes=run.changes,
            owner=run.owner,
            work_id=measured.work_id,
            findings=tuple(map(to_row, findings_in(verdicts))),
            withheld=frozenset(each.kind for each in verdicts if each.outcome == "withheld"),
            figures=encode_figures(measured.figures) if computed else None,
        )

    def _store_all(
        self, judged: Sequence[Judged], runs: dict[int, DueRun], failures: list[Failure]
    ) -> list[Change]:
        """Store a group; one that fails by its values is halved, down to the run at fault."""
        if not judged:
            return []
        database, now = self._store.database, self._clock()
        if self._dry_run:
            return preview_judged(database, judged, now)
        try:
            return store_judged(database, judged, now)
        except (StoreError, OverflowError) as error:
            if isinstance(error, StoreError) and not database.rejected_values(error):
                raise
            if len(judged) == 1:
                run = runs[judged[0].run_id]
                failures.append(Failure(run.id, run.cluster, _reason(error)))
                return []
        middle = len(judged) // 2
        first = self._store_all(judged[:middle], runs, failures)
        return first + self._store_all(judged[middle:], runs, failures)


def _decoded(stored: StoredFigures) -> Measured:
    try:
        return Measured(decode_figures(stored.data), stored.work_id)
    except StoreError as error:
        # Damaged figures of one run: all other runs can be judged.
        raise ValueError(str(error)) from None


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class ShownFindings:
    """Counts what was shown, in memory, until the next round writes it."""

    def __init__(self) -> None:
        self._counts: Counter[Shown] = Counter()
        self._mutex = threading.Lock()

    def add(self, shown: Sequence[Shown]) -> None:
        """Count findings as shown; cheap, and called by several threads."""
        with self._mutex:
            for each in shown:
                if len(self._counts) < _MAX_SHOWN or each in self._counts:
                    self._counts[each] += 1

    def write(self, store: Store, now: int) -> None:
        with self._mutex:
            counts, self._counts = self._counts, Counter()
        record_shown(store.database, counts, now)


class Worker:
    """Judges repeatedly; :func:`jobsight.findings.service.judging` runs it in a thread."""

    def __init__(
        self,
        store: Store,
        load_judge: Callable[[], Judge],
        *,
        running_interval: float = 300.0,
        shown: ShownFindings | None = None,
        owner: str = "",
        round_limit: float = ROUND,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``load_judge`` returns the judge by the current rules; after an error the previous one is
        used."""
        self._store = store
        self._load_judge = load_judge
        self._running_interval = running_interval
        self._shown = shown or ShownFindings()
        self._owner = owner or f"{os.uname().nodename} {os.getpid()}"
        self._round_limit = round_limit
        self._clock = clock
        self._monotonic = monotonic
        self._judge: Judge | None = None
        self._running_due = 0.0
        #: Arrays with tasks that were judged and whose last task may not have ended.
        self._arrays: set[due.Array] = set()
        self._arrays_known = False
        self._log = LogOnce(logger)

    def once(self, stopped: Callable[[], bool] = lambda: False) -> Round:
        """One round. Rules that cannot be read raise :class:`JobsightError` at the end of each."""
        self._shown.write(self._store, self._clock())
        error = self._reload()
        done = Round()
        if self._judge is not None and self._is_in_charge(self._judge):
            done = self._work(self._judge, stopped)
        if error is not None:
            raise error
        return done

    def close(self) -> None:
        """Let another server work at once."""
        self._shown.write(self._store, self._clock())
        due.release_lease(self._store.database, self._owner, self._clock())

    def _reload(self) -> JobsightError | None:
        try:
            judge = self._load_judge()
        except JobsightError as error:
            return JobsightError(f"the rules of the findings are not loaded: {error}")
        if self._judge is None or judge.digest != self._judge.digest:
            if due.adopt(self._store.database, judge.digest):
                logger.info("the rules of the findings have changed; all runs are judged again")
            self._judge = judge
        return None

    def _is_in_charge(self, judge: Judge) -> bool:
        """Whether this process judges. Two servers with different rules would undo each other's
        findings for ever: those of the one whose rules were adopted last count."""
        progress = due.read_progress(self._store.database)
        if progress is None or progress.digest != judge.digest:
            self._log.report(
                "rules", "another process has adopted other rules; this process judges no runs"
            )
            return False
        self._log.resolve("rules")
        return due.take_lease(self._store.database, self._owner, self._clock())

    def _work(self, judge: Judge, stopped: Callable[[], bool]) -> Round:
        evaluation = Evaluation(self._store, judge, clock=self._clock)
        end = self._monotonic() + self._round_limit

        def ended() -> bool:
            return stopped() or self._monotonic() >= end

        done = Round()
        suspects = [
            *due.interrupted(self._store.database),
            *due.due_dead_letters(self._store.database, BATCH_SIZE),
        ]
        for run_id in suspects:
            if ended():
                return done._replace(complete=False)
            done = done.and_then(self._alone(evaluation, run_id))
        due.end(self._store.database)
        for runs in self._ended_runs(ended):
            done = done.and_then(self._group(evaluation, runs))
            self._arrays |= due.arrays_of_runs(self._store.database, [run.id for run in runs])
        for runs in self._early_tasks(ended):
            done = done.and_then(self._group(evaluation, runs))
        if self._running_interval and self._monotonic() >= self._running_due:
            for runs in self._running_runs(stopped):
                done = done.and_then(self._group(evaluation, runs))
            self._running_due = self._monotonic() + self._running_interval
        done = done.and_then(self._history(evaluation, judge, ended))
        return done._replace(complete=done.complete and not ended())

    def _ended_runs(self, ended: Callable[[], bool]) -> Iterator[list[DueRun]]:
        """What has just ended comes before a backlog."""
        for since in (self._clock() - _RECENT, _DISTANT_PAST):
            runs = due.unjudged_runs(self._store.database, BATCH_SIZE, since=since)
            while runs and not ended():
                yield runs
                after = runs[-1].id
                runs = due.unjudged_runs(self._store.database, BATCH_SIZE, after, since)

    def _early_tasks(self, ended: Callable[[], bool]) -> Iterator[list[DueRun]]:
        """Tasks of arrays whose last task has ended, and that were judged before that."""
        if not self._arrays_known:
            # Those of the process that judged before.
            since = self._clock() - _ARRAYS_SINCE
            self._arrays |= due.recent_arrays(self._store.database, since, _MAX_ARRAYS)
            self._arrays_known = True
        for array in sorted(self._arrays, reverse=True)[:_MAX_ARRAYS]:
            if ended():
                return
            if not due.is_open(self._store.database, array):
                yield from batched(tasks_judged_early(self._store, array), BATCH_SIZE)
                self._arrays.discard(array)

    def _running_runs(self, stopped: Callable[[], bool]) -> Iterator[list[DueRun]]:
        now = self._clock()
        runs = due.running_runs(self._store.database, BATCH_SIZE, now)
        while runs and not stopped():
            yield runs
            runs = due.running_runs(self._store.database, BATCH_SIZE, now, runs[-1].id)

    def _history(self, evaluation: Evaluation, judge: Judge, ended: Callable[[], bool]) -> Round:
        """Apply changed rules to the stored figures, from where the last round was."""
        done = Round()
        progress = due.read_progress(self._store.database)
        after = progress.after if progress is not None else None
        while after is not None:
            if ended():
                return done._replace(complete=False)
            runs = due.runs_with_figures(self._store.database, HISTORY_BATCH_SIZE, after)
            done = done.and_then(self._group(evaluation, runs, stored_figures=True))
            after = runs[-1].id if runs else None
            if not due.set_progress(self._store.database, judge.digest, after):
                return done
        return done

    def _group(
        self, evaluation: Evaluation, runs: Sequence[DueRun], *, stored_figures: bool = False
    ) -> Round:
        database = self._store.database
        if not runs or not due.take_lease(database, self._owner, self._clock()):
            return Round()
        due.begin(database, runs)
        done = evaluation.runs(runs, stored_figures=stored_figures)
        due.end(database)
        time.sleep(_PAUSE)
        return done

    def _alone(self, evaluation: Evaluation, run_id: int) -> Round:
        """Judge a run that may end the process: it is a dead letter until it is done."""
        database = self._store.database
        run = due.due_run(database, run_id)
        if run is None:
            due.resolve(database, run_id)
            return Round()
        due.mark(database, run)
        try:
            done = evaluation.runs([run], marked=True)
        except BaseException:
            # The store failed, or the process is to end: not the fault of the run.
            due.resolve(database, run_id)
            raise
        if not done.failed:
            due.resolve(database, run_id)
        return done


def _log_failures(failures: Sequence[Failure]) -> None:
    for failure in failures:
        logger.warning(
            "cluster %s: run %d has no findings and is set aside: %s",
            *(failure.cluster, failure.run_id, failure.reason),
        )


#: Called with the number of runs that were judged and that of all.
Progress = Callable[[int, int], None]


def update_all(
    store: Store,
    judge: Judge,
    *,
    dry_run: bool = False,
    progress: Progress = lambda done, total: None,
    clock: Callable[[], int] = time.time_ns,
) -> Round:
    """Judge everything once: changed and running runs, and by their figures all others."""
    database = store.database
    evaluation = Evaluation(store, judge, dry_run=dry_run, clock=clock)
    if not dry_run:
        due.adopt(database, judge.digest)
    total = due.count_unjudged(database) + due.count_with_figures(database, 0)
    done = Round()
    seen: set[int] = set()
    arrays: set[due.Array] = set()
    for runs, stored_figures in _all_runs(store, clock()):
        fresh = [run for run in runs if run.id not in seen]
        if not stored_figures:
            seen.update(run.id for run in fresh)
            arrays |= due.arrays_of_runs(database, [run.id for run in fresh])
        done = done.and_then(evaluation.runs(fresh, stored_figures=stored_figures))
        progress(min(done.runs, total), total)
    for array in sorted(arrays):
        if not due.is_open(database, array):
            for runs in batched(tasks_judged_early(store, array), BATCH_SIZE):
                done = done.and_then(evaluation.runs(runs)._replace(runs=0))
    if not dry_run:
        due.set_progress(database, judge.digest, None)
    return done


def _all_runs(store: Store, now: int) -> Iterator[tuple[list[DueRun], bool]]:
    database = store.database
    runs = due.unjudged_runs(database, BATCH_SIZE)
    while runs:
        yield runs, False
        runs = due.unjudged_runs(database, BATCH_SIZE, runs[-1].id)
    runs = due.running_runs(database, BATCH_SIZE, now)
    while runs:
        yield runs, False
        runs = due.running_runs(database, BATCH_SIZE, now, runs[-1].id)
    runs = due.runs_with_figures(database, HISTORY_BATCH_SIZE, 0)
    while runs:
        yield runs, True
        runs = due.runs_with_figures(database, HISTORY_BATCH_SIZE, runs[-1].id)
