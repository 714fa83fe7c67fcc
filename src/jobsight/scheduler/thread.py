"""Scrapes in the background of a server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobsight.config.settings import Settings
from jobsight.scheduler.scrape import Scraper
from jobsight.scheduler.sinks.outlet import feeding
from jobsight.store import Store

logger = logging.getLogger("jobsight.scheduler")

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
        _thread(Scraper(store, each), each.scheduler.every, stopped)
        for each in settings.each_cluster()
        if each.scheduler.every
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
