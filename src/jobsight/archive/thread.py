"""Archives in the background of a server."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager, suppress

from jobsight.config.settings import ArchiveSettings
from jobsight.model import SECOND
from jobsight.store.store import Store
from jobsight.util.workers import repeating

logger = logging.getLogger("jobsight.archive")

DAY = 86400 * SECOND


class Stopped(Exception):
    """The server ends; what was being written is dropped, and comes next time."""


def archiving(store: Store, settings: ArchiveSettings) -> AbstractContextManager[None]:
    """Archive beside what the block does, every ``archive.every`` seconds."""

    def work(stopped: threading.Event) -> None:
        with suppress(Stopped):
            archive_once(store, settings, stopped)

    return repeating("archive", work, settings.every, logger, "the archive waits")


def archive_once(store: Store, settings: ArchiveSettings, stopped: threading.Event) -> None:
    """One round, given up after the next few runs when the server ends."""
    from jobsight.archive.place import open_place
    from jobsight.archive.writer import write_archive

    def watch(done: int, whole: int) -> None:
        if stopped.is_set():
            raise Stopped

    before = time.time_ns() - round(settings.older_than * DAY)
    done = write_archive(store, open_place(settings), before, progress=watch)
    for problem in done.problems:
        logger.warning("the archive waits: %s", problem)
    if done.runs:
        logger.info("%d runs archived in %d parts", done.runs, done.parts)
