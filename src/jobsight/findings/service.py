"""The findings of a server: rules that are reloaded when their files change, and the worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jobsight.config.settings import FindingsSettings
from jobsight.findings.data import read_run
from jobsight.findings.engine import RuleSet, Selection
from jobsight.findings.figures import compute_figures
from jobsight.findings.finding import Outcome, Verdict
from jobsight.findings.help_page import help_page
from jobsight.findings.history import add_history
from jobsight.findings.reported import ReportedFinding
from jobsight.findings.rule_file import Rule
from jobsight.findings.scope import ALL, Scope
from jobsight.findings.surroundings import Surroundings
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import Judge, Measured, ShownFindings, Worker
from jobsight.model import SECOND, RunReference
from jobsight.store.findings.read import list_kinds
from jobsight.store.findings.rows import Owner
from jobsight.store.findings.shown import Place, Shown
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.util.durable import file_state
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

_DAY: Final = 86400 * SECOND
#: Days of runs whose kinds of findings a filter offers, and how long they are kept.
_KIND_DAYS: Final = 90
_KINDS_AGE: Final = 60 * SECOND
#: Outcomes that change what is stored of a run.
_STORED: Final[frozenset[Outcome]] = frozenset({"fired", "withheld"})


class RuleJudge:
    """Computes the figures of runs of a store and applies a set of rules."""

    def __init__(self, store: Store, rules: RuleSet) -> None:
        self._store = store
        self._rules = rules
        self._running_scope = Scope.of_rules(
            rule for rule in rules.rules.values() if rule.when != "ended"
        )
        #: Rules whose texts need no figures beyond the scope.
        self._described = {
            name for name, rule in rules.rules.items() if self._running_scope.describes(rule)
        }
        self._surroundings = Surroundings(store)
        self._mutex = threading.Lock()

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The rules by name."""
        return self._rules.rules

    @property
    def digest(self) -> str:
        return self._rules.digest

    def measure(self, run: StoredRun, now: int) -> Measured:
        return self._measure(run, now, ALL)

    def measure_running(self, run: StoredRun, owner: Owner, now: int) -> Measured:
        measured = self._measure(run, now, self._running_scope)
        if measured.figures.values.get("run.running") is not True:
            # It has ended meanwhile.
            return self.measure(run, now)
        selection = Selection(owner.cluster, owner.partition, owner.account)
        fired = self._rules.fired(measured.figures, selection)
        if all(kind in self._described for kind in fired):
            return measured
        return self.measure(run, now)

    def _measure(self, run: StoredRun, now: int, scope: Scope) -> Measured:
        # Requests for an explanation come from other threads than the worker.
        shared = self._mutex.acquire(blocking=False)
        try:
            surroundings = self._surroundings if shared else Surroundings(self._store)
            data = read_run(self._store, run, now, surroundings, scope)
            figures = compute_figures(data, scope)
            return Measured(figures, add_history(self._store, data, figures, scope))
        finally:
            if shared:
                self._mutex.release()

    def judge(self, figures: FigureSet, owner: Owner, *, every: bool = False) -> Sequence[Verdict]:
        selection = Selection(owner.cluster, owner.partition, owner.account)
        if every:
            return self._rules.judge(figures, selection)
        return self._rules.judge(figures, selection, outcomes=_STORED)


class FindingsService:
    """What the routes of a server need of the findings."""

    def __init__(self, store: Store, settings: FindingsSettings | None = None) -> None:
        self._store = store
        self.settings = settings or FindingsSettings()
        self.prices = self.settings.prices
        #: What the routes have shown, until the worker writes it.
        self.shown = ShownFindings()
        self._judge: Judge | None = None
        self._file_states: object = None
        #: When they were read, and the kinds of findings: a list of runs must not wait for them.
        self._kinds: tuple[int, dict[str, int]] = (-_KINDS_AGE, {})
        self._mutex = threading.Lock()

    def judge(self) -> Judge:
        """The judge by the rules as they are now."""
        with self._mutex:
            states = [file_state(Path(file).expanduser()) for file in self.settings.rules]
            if self._judge is None or states != self._file_states:
                self._judge = RuleJudge(self._store, RuleSet.of_settings(self.settings))
                self._file_states = states
            return self._judge

    def judge_once(self) -> None:
        """One round in this thread; nothing if a server judges the runs of the store."""
        worker = Worker(self._store, self.judge, running_interval=0)
        try:
            worker.once()
        finally:
            worker.close()

    def kinds(self, now: int) -> dict[str, int]:
        """The kinds of findings that runs of the last months have, and how many of each."""
        read, kinds = self._kinds
        if not read <= now < read + _KINDS_AGE:
            kinds = list_kinds(self._store.database, now // _DAY - _KIND_DAYS)
            self._kinds = (now, kinds)
        return kinds

    def help(self, kind: str) -> str | None:
        """The page of a rule, as Markdown; None if there is no such rule."""
        judge = self.judge()
        rule = judge.rules.get(kind) if isinstance(judge, RuleJudge) else None
        return None if rule is None else help_page(rule)

    def record(
        self, run: str, findings: Iterable[ReportedFinding], viewer: str | None, place: Place
    ) -> None:
        """Count findings of a run as shown to a viewer, if it is known who that is."""
        kinds = [each.kind for each in findings]
        if not kinds or viewer is None:
            return
        run_id = self._store.find(RunReference.parse(run)).id
        self.shown.add([Shown(run_id, kind, viewer, place) for kind in kinds])

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Judge runs in a thread, every ``findings.interval`` seconds."""
        worker = Worker(
            self._store,
            self.judge,
            running_interval=self.settings.running_interval,
            shown=self.shown,
        )
        thread = PeriodicWorker(
            "findings",
            lambda stopped: _until_complete(worker, stopped),
            self.settings.interval,
            logger=logger,
            failure="runs are not judged",
            # After a change of the rules all history is judged again.
            time_limit=86400.0,
        )
        with thread:
            yield
        worker.close()


def _until_complete(worker: Worker, stopped: threading.Event) -> None:
    while not worker.once(stopped.is_set).complete and not stopped.is_set():
        pass
