"""Scrapes in the background of a server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobsight.scheduler.scrape import Scraper
from jobsight.settings import Settings
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
    """Scrape beside what the block does, every ``scheduler.every`` seconds."""
    stopped = threading.Event()
    scraper = Scraper(store, settings)
    arguments = (scraper, settings.scheduler.every, stopped, logger.warning)
    thread = threading.Thread(
        target=scrape_regularly, args=arguments, name="jobsight-scrape", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_LAST_WAIT)
