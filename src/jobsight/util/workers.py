"""Work in the background of a server: in a thread, again and again, until the server ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from jobsight.errors import JobsightError

#: Seconds that a server waits at its end for what is under way.
_LAST_WAIT = 5.0


@contextmanager
def in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Work beside what the block does; when that ends, the event is set."""
    stopped = threading.Event()
    thread = threading.Thread(target=work, args=(stopped,), name=f"jobsight-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_LAST_WAIT)


def repeating(
    name: str,
    work: Callable[[threading.Event], object],
    every: float,
    logger: logging.Logger,
    waits: str,
) -> AbstractContextManager[None]:
    """Work beside a block every so many seconds. ``waits`` says what an error puts off."""

    def repeat(stopped: threading.Event) -> None:
        while not stopped.is_set():
            try:
                work(stopped)
            except JobsightError as error:
                logger.warning("%s: %s", waits, error)
            except Exception:
                # A fault of ours must end neither the work nor the server.
                logger.exception("%s: a fault of jobsight", waits)
            stopped.wait(every)

    return in_background(name, repeat)
