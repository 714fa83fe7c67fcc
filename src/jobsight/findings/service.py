"""The findings of a server: rules that are reloaded when their files change, and the worker."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobsight.config.settings import FindingsSettings
from jobsight.errors import JobsightError
from jobsight.findings.finding import Verdict
from jobsight.findings.reported import ReportedFinding
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import Judge, Measured, ShownFindings, Worker
from jobsight.model import RunReference
from jobsight.store.findings.rows import Owner
from jobsight.store.findings.shown import Place, Shown
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.util.durable import file_state
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)


class RuleJudge:
    """Computes the figures of runs of a store and applies a set of rules."""

    def __init__(self, store: Store, rules: Any) -> None:
        self._store = store
        self._rules = rules

    @property
    def digest(self) -> str:
        return str(self._rules.digest)

    def measure(self, run: StoredRun, now: int) -> Measured:
        data = _part("data").read_run(self._store, run, now)
        figures: FigureSet = _part("figures").compute_figures(data)
        return Measured(figures, _part("history").add_history(self._store, data, figures))

    def judge(self, figures: FigureSet, owner: Owner) -> Sequence[Verdict]:
        selection = _part("engine").Selection(
            cluster=owner.cluster, partition=owner.partition, account=owner.account
        )
        verdicts: Sequence[Verdict] = self._rules.judge(figures, selection)
        return verdicts


def _part(name: str) -> Any:
    return importlib.import_module(f"jobsight.findings.{name}")


def load_judge(store: Store, settings: FindingsSettings) -> Judge | None:
    """The judge by the rules of the settings."""
    if importlib.util.find_spec("jobsight.findings.engine") is None:
        return None
    files = [Path(file).expanduser() for file in settings.rules]
    return RuleJudge(store, _part("engine").RuleSet.load(files, ready=settings.ready_rules))


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
        self._mutex = threading.Lock()

    def judge(self) -> Judge | None:
        """The judge by the rules as they are now; None without rules."""
        with self._mutex:
            states = [file_state(Path(file).expanduser()) for file in self.settings.rules]
            if self._judge is None or states != self._file_states:
                self._judge = load_judge(self._store, self.settings)
                self._file_states = states
            return self._judge

    def require_judge(self) -> Judge:
        """The judge, or an error that says that there is none."""
        judge = self.judge()
        if judge is None:
            raise JobsightError("there are no rules to judge runs by")
        return judge

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
        )
        with thread:
            yield
        worker.close()


def _until_complete(worker: Worker, stopped: threading.Event) -> None:
    while not worker.once(stopped.is_set).complete and not stopped.is_set():
        pass
