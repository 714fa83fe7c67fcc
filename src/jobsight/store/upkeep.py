"""What is too old, taken away in the background of a server: once a day, by one of several."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager

from jobsight.config.settings import KeepSettings
from jobsight.errors import JobsightError
from jobsight.store.database import Database
from jobsight.store.pruning import prune
from jobsight.store.retention import DAY
from jobsight.store.store import Store
from jobsight.util.workers import in_background

logger = logging.getLogger("jobsight.store")

#: Seconds until a server that has started looks for the first time, and then from look to look.
FIRST_LOOK, LOOK_EVERY = 60.0, 600.0

_KNOWN = "INSERT INTO marks (name, value) VALUES ('pruned', 0) ON CONFLICT (name) DO NOTHING"
_CLAIM = "UPDATE marks SET value = :now WHERE name = 'pruned' AND value <= :before"


def claim(database: Database, now: int) -> bool:
    """Whether it is time, and this process the one to do it."""
    with database.write() as transaction:
        transaction.execute(_KNOWN)
        return transaction.execute(_CLAIM, {"now": now, "before": now - DAY}).rowcount == 1


def keep_regularly(
    database: Database, keep: KeepSettings, stopped: threading.Event, first: float = FIRST_LOOK
) -> None:
    """Prune once a day until told to stop; a failure waits for the next day."""
    waited = first
    while not stopped.wait(waited):
        waited = LOOK_EVERY
        try:
            if claim(database, time.time_ns()):
                taken = prune(database, keep, rest=stopped.wait)
                for name, part in taken.items():
                    if part.runs:
                        logger.info("%s of %d runs gone by age", name, part.runs)
        except JobsightError as error:
            logger.warning("what is too old stays: %s", error)
        except Exception:
            # A fault of ours must end neither this nor the server.
            logger.exception("pruning ended by a fault")


def keeping(
    store: Store, keep: KeepSettings, first: float = FIRST_LOOK
) -> AbstractContextManager[None]:
    """Prune beside what the block does."""
    return in_background(
        "prune", lambda stopped: keep_regularly(store.database, keep, stopped, first)
    )
