"""The store's background work: naming new paths, applying changed rules, updating the rollups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from jobsight.config.settings import SoftwareSettings
from jobsight.errors import JobsightError
from jobsight.software.naming import adopt_rules, digest_in_use, name_all_new, rename_all
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.rollups import Round, sum_up_all
from jobsight.store.store import Store
from jobsight.util.durable import FileState, file_state
from jobsight.util.log_once import LogOnce
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger(__name__)


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
        #: Why the rules could not be read; empty if they were.
        self._reason = ""
        self._log = LogOnce(logger)

    def once(self, stopped: Callable[[], bool] = lambda: False) -> Round:
        """One round. Rules that cannot be read leave the previous ones in force.

        They raise :class:`JobsightError` at the end of each round until they can be read.
        """
        changed = self._reload()
        if self._rules is not None:
            if changed:
                adopt_rules(self._store.database, self._rules)
            self._name(self._rules, stopped)
        done = sum_up_all(self._store.database, stopped=stopped)
        if self._reason:
            raise JobsightError(self._reason)
        return done

    def _name(self, rules: RuleSet, stopped: Callable[[], bool]) -> None:
        # Two servers with different rules would rename each other's paths for ever: the server
        # whose rules were adopted last names the paths.
        if digest_in_use(self._store.database) != rules.digest:
            self._log.report(
                "rules", "another process has adopted other rules; this process names no paths"
            )
            return
        self._log.resolve("rules")
        name_all_new(self._store.database, rules, stopped)
        rename_all(self._store.database, rules, stopped=stopped)

    def _reload(self) -> bool:
        """Read the rules if their files have changed; True if the rules differ."""
        states = [file_state(Path(file).expanduser()) for file in self._settings.rules]
        if states == self._file_states:
            return False
        self._file_states = states
        try:
            rules = load_rules(self._settings)
        except JobsightError as error:
            self._reason = f"the rules are not loaded: {error}"
            return False
        self._reason = ""
        before, self._rules = self._rules, rules
        return before is None or before.digest != rules.digest


def updating(store: Store, settings: SoftwareSettings) -> PeriodicWorker:
    """A thread that runs a :class:`Worker` every ``software.interval`` seconds."""
    worker = Worker(store, settings)
    return PeriodicWorker(
        "software",
        lambda stopped: worker.once(stopped.is_set),
        settings.interval,
        logger=logger,
        failure="software names and rollups are not updated",
    )
