"""The store's background work: name new paths, follow changed rules, sum up what has changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from jobsight.config.settings import SoftwareSettings
from jobsight.errors import JobsightError
from jobsight.software.naming import adopt_rules, digest_in_use, name_all_new, rename_all
from jobsight.software.rules import RuleSet
from jobsight.store.rollups.rollups import Round, sum_up_all
from jobsight.store.store import Store
from jobsight.util.workers import PeriodicWorker

logger = logging.getLogger("jobsight.software")


def load_rules(settings: SoftwareSettings) -> RuleSet:
    """The rules that the settings name."""
    files = [Path(file).expanduser() for file in settings.rules]
    return RuleSet.load(files, ready=settings.ready_rules)


def update(
    store: Store,
    rules: RuleSet,
    *,
    renaming: Callable[[int, int], None] = lambda done, whole: None,
    summing: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Round:
    """Make the store say what these rules say: names, then sums."""
    adopt_rules(store.database, rules)
    name_all_new(store.database, rules, stopped)
    rename_all(store.database, rules, renaming, stopped)
    return sum_up_all(store.database, summing, stopped)


class Worker:
    """Does that again and again, with the rules as their files stand."""

    def __init__(self, store: Store, settings: SoftwareSettings) -> None:
        self._store = store
        self._settings = settings
        self._seen: object = None
        self._rules: RuleSet | None = None
        self._said: str | None = None

    def once(self, stopped: Callable[[], bool] = lambda: False) -> Round:
        """One round. Rules that cannot be read leave the names to the last ones that could."""
        fresh = self._look()
        if self._rules is not None:
            if fresh:
                adopt_rules(self._store.database, self._rules)
            self._name(self._rules, stopped)
        return sum_up_all(self._store.database, stopped=stopped)

    def _name(self, rules: RuleSet, stopped: Callable[[], bool]) -> None:
        # Two servers with different rules would rename each other's work for ever: the one whose
        # rules came last names, the other stands aside.
        if digest_in_use(self._store.database) != rules.digest:
            self._say("another process names this store by other rules; this one leaves it to it")
            return
        name_all_new(self._store.database, rules, stopped)
        rename_all(self._store.database, rules, stopped=stopped)

    def _look(self) -> bool:
        """Read the rules where their files have changed; whether they are others now."""
        state = [_state(file) for file in self._settings.rules]
        if state == self._seen:
            return False
        self._seen = state
        try:
            rules = load_rules(self._settings)
        except JobsightError as error:
            self._say(f"the rules are not taken: {error}")
            return False
        before, self._rules = self._rules, rules
        return before is None or before.digest != rules.digest

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            logger.warning("%s", sentence)
        self._said = sentence


def _state(file: str) -> tuple[str, int, int, int] | None:
    try:
        found = os.stat(Path(file).expanduser())
    except OSError:
        return None
    return file, found.st_ino, found.st_size, found.st_mtime_ns


def updating(store: Store, settings: SoftwareSettings) -> PeriodicWorker:
    """Work beside what the block does, every ``software.interval`` seconds."""
    worker = Worker(store, settings)
    return PeriodicWorker(
        "software",
        lambda stopped: worker.once(stopped.is_set),
        settings.interval,
        logger=logger,
        failure="software names and rollups are not updated",
    )
