"""Archives in the background of a server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jobsight.archive.settings import ArchiveSettings
from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store import Store

logger = logging.getLogger("jobsight.archive")

#: Seconds that a server waits at its end for a round that is under way.
_LAST_WAIT = 5.0
DAY = 86400 * SECOND


class Stopped(Exception):
    """The server ends; what was being written is dropped, and comes next time."""


@contextmanager
def archiving(store: Store, settings: ArchiveSettings) -> Iterator[None]:
    """Archive beside what the block does, every ``archive.every`` seconds."""
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                archive_once(store, settings, stopped)
            except Stopped:
                return
            except JobsightError as error:
                logger.warning("the archive waits: %s", error)
            except Exception:
                # A fault of ours must not end the archiving, nor the server.
                logger.exception("the archive waits: a fault of jobsight")
            stopped.wait(settings.every)

    thread = threading.Thread(target=work, name="jobsight-archive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_LAST_WAIT)


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
