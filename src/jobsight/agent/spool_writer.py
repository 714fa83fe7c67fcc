"""Writes batches to the spool beside the loop: a disk that is slow to sync must not stop it.

A job of half a second comes and goes while a busy disk takes in one batch.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from jobsight.agent.cutting import cut
from jobsight.agent.spool import Spool
from jobsight.model import Batch

#: Batches that may wait for the disk; more are given up, and counted with the spool's own.
_LONGEST: Final = 256


class SpoolWriter:
    """Takes batches at once and writes them in their order, in a thread of its own."""

    def __init__(self, spool: Spool, written: Callable[[], None] | None = None) -> None:
        self._spool = spool
        self._written = written
        self._waiting: queue.Queue[Batch | None] = queue.Queue(_LONGEST)
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        try:
            self._waiting.put_nowait(batch)
        except queue.Full:
            self._spool.count_dropped()

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            for piece in cut(batch):
                self._spool.put(piece)
            if self._written is not None:
                self._written()

    def end(self) -> None:
        """Write what waits, and stop."""
        self._waiting.put(None)
        self._thread.join()
