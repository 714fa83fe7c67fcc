"""Asks Slurm who the jobs of this node are: one question for all of them, beside the loop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from jobsight.model import JobInfo

logger = logging.getLogger("jobsight.agent")

#: slurmctld is left in peace: however many jobs begin, it is not asked more often than this.
SHORTEST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0


class Identity(threading.Thread):
    """Asks when a job begins that nobody has told of, and again while Slurm is away."""

    def __init__(
        self,
        ask: Callable[[], list[JobInfo]],
        tell: Callable[[list[JobInfo]], None],
        *,
        pause: float = SHORTEST_PAUSE,
    ) -> None:
        super().__init__(name="identity", daemon=True)
        self._ask = ask
        self._tell = tell
        self._pause = pause
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self.failures = 0
        self.last_error = ""

    def want(self) -> None:
        """A job has begun whose owner is not known."""
        self._wanted.set()

    def run(self) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            if self._ended.is_set():
                return
            self._wanted.clear()
            self._ended.wait(self._pause_after(self.failures))
            self._once()

    def _pause_after(self, failures: int) -> float:
        if failures == 0:
            # Jobs begin together; one answer shall serve them all.
            return min(1.0, self._pause)
        return min(self._pause * 2.0 ** (failures - 1), LONGEST_PAUSE)

    def _once(self) -> None:
        try:
            answer = self._ask()
        except Exception as error:
            self.failures += 1
            if self.last_error != str(error):
                self.last_error = str(error)
                logger.warning("Slurm cannot be asked who the jobs are: %s", error)
            self._wanted.set()
            return
        self.failures, self.last_error = 0, ""
        self._tell(answer)

    def end(self) -> None:
        self._ended.set()
        self._wanted.set()
