"""The store's background work: naming new paths, applying changed rules, updating the rollups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from jobsight.config.settings import SoftwareSettings
from jobsight.errors import JobsightError
from jobsight.software.naming import (
    NEW_TURN_SIZE,
    adopt_rules,
    digest_in_use,
    name_all_new,
    rename_all,
)
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.rollups import Round, sum_up_all
from jobsight.store.store import Store
from jobsight.util.durable import FileState, file_state
from jobsight.util.log_once import LogOnce
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)

#: Seconds for the work on one run, the largest on a busy machine.
_STOP_TIMEOUT = 30.0


def load_rules(settings: SoftwareSettings) -> RuleSet:
    """The rules of the settings."""
    files = [Path(file).expanduser() for file in settings.rules]
    return RuleSet.load(files, ready=settings.ready_rules)


def update(
    store: Store,
    rules: RuleSet,
    *,
    renaming: Callable[[int, int], None] = lambda done, total: None,
    summing: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Round:
    """Apply the rules to the whole store: names, then rollups."""
    adopt_rules(store.database, rules)
    name_all_new(store.database, rules, stopped)
    rename_all(store.database, rules, renaming, stopped)
    return sum_up_all(store.database, summing, stopped)


class Worker:
    """Applies the rules repeatedly and reloads them when their files change."""

    def __init__(self, store: Store, settings: SoftwareSettings) -> None:
        self._store = store
        self._settings = settings
        self._file_states: list[FileState | None] | None = None
        self._rules: RuleSet | None = None
        #: The digest of the rules that this process adopted last.
        self._adopted = ""
        #: Why the rules could not be read; empty if they were.
        self._reason = ""
        self._log = LogOnce(logger)

    def once(self, stopped: Callable[[], bool] = lambda: False) -> Round:
        """One round. Rules that cannot be read leave the previous ones in force.

        They raise :class:`JobsightError` at the end of each round until they can be read.
        """
        runs = changed = 0
        all_named = False
        while not all_named and not stopped():
            self.load()
            if self._rules is not None and self._rules.digest != self._adopted:
                adopt_rules(self._store.database, self._rules)
                self._adopted = self._rules.digest
            # The runs of paths that have no name yet are left out.
            all_named = self._name_new(stopped)
            if self._rules is not None and self._names_paths(self._rules):
                rename_all(self._store.database, self._rules, stopped=stopped)
            done = sum_up_all(
                self._store.database,
                stopped=stopped,
                before_turn=lambda: self._name_new(stopped),
                interval=self._settings.interval,
            )
            runs, changed = runs + done.runs, changed + done.changed
        if self._reason:
            raise JobsightError(self._reason)
        return Round(runs, changed, None if all_named else 0)

    def _name_new(self, stopped: Callable[[], bool]) -> bool:
        """Name some new paths; False if there are more that this process is to name."""
        if self._rules is None or not self._names_paths(self._rules):
            return True
        return name_all_new(self._store.database, self._rules, stopped, NEW_TURN_SIZE)

    def _names_paths(self, rules: RuleSet) -> bool:
        # Two servers with different rules would rename each other's paths for ever: the server
        # whose rules were adopted last names the paths.
        if digest_in_use(self._store.database) != rules.digest:
            self._log.report(
                "rules", "another process has adopted other rules; this process names no paths"
            )
            return False
        self._log.resolve("rules")
        return True

    def load(self) -> None:
        """Read the rules if their files have changed."""
        states = [file_state(Path(file).expanduser()) for file in self._settings.rules]
        if states == self._file_states:
            return
        self._file_states = states
        try:
            rules = load_rules(self._settings)
        except JobsightError as error:
            self._reason = f"the rules are not loaded: {error}"
            return
        self._reason = ""
        self._rules = rules


def updating(store: Store, settings: SoftwareSettings) -> PeriodicWorker:
    """A thread that runs a :class:`Worker` every ``software.interval`` seconds."""
    worker = Worker(store, settings)
    # Expressions are compiled with warnings ignored. Filters of warnings belong to the process, so
    # a thread that does this undoes those of others, such as FastAPI's for the routes of a server.
    worker.load()
    return PeriodicWorker(
        "software",
        lambda stopped: worker.once(stopped.is_set),
        settings.interval,
        logger=logger,
        failure="software names and rollups are not updated",
        # A process that ends in the work on a run cannot know that the run did not end it.
        stop_timeout=_STOP_TIMEOUT,
        # After a change of the rules all paths are named again and all runs are summed up.
        time_limit=86400.0,
    )
