"""What went wrong in the agent itself: counted every time, logged once per cause."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

logger = logging.getLogger("jobsight.agent")

#: A cause carries no pid and no path, so there are few; this is for those nobody thought of.
_LIMIT: Final = 1_000


class Faults:
    """Counts by cause."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, where: str, error: Exception) -> None:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = f"{where}: {type(error).__name__}: {said}"
        if cause not in self.counts and len(self.counts) >= _LIMIT:
            cause = "others"
        self.counts[cause] += 1
        if self.counts[cause] == 1:
            # The trace is for us, and only where it is no weather of the system.
            logger.error("%s", cause, exc_info=None if isinstance(error, OSError) else error)
