"""Messages that are logged once: a fault that repeats every second must not fill the log."""

from __future__ import annotations

import logging
from typing import Final

#: Causes that are counted by name; further ones are counted as "other".
MAX_CAUSES: Final = 1_000
OTHER: Final = "other"


class LogOnce:
    """Logs a message when it differs from the last one of its cause, and counts all of them."""

    def __init__(self, logger: logging.Logger, *, max_causes: int = MAX_CAUSES) -> None:
        self._logger = logger
        self._max_causes = max_causes
        #: Reports by cause since the start.
        self.counts: dict[str, int] = {}
        #: The current message of each cause that is not resolved.
        self.messages: dict[str, str] = {}

    def report(
        self,
        cause: str,
        message: str,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
    ) -> bool:
        """Count the cause; True if the message was logged. With ``error`` a traceback follows."""
        if cause not in self.counts and len(self.counts) >= self._max_causes:
            # Distinct messages without bound must not fill the log either.
            cause, message, error = OTHER, "further causes are counted but not logged", None
        self.counts[cause] = self.counts.get(cause, 0) + 1
        if self.messages.get(cause) == message:
            return False
        self.messages[cause] = message
        self._logger.log(level, "%s", message, exc_info=error)
        return True

    def resolve(self, cause: str, message: str = "", *, level: int = logging.INFO) -> bool:
        """The cause is gone: its next message is logged again. True if there was one; the message
        is logged then."""
        if self.messages.pop(cause, None) is None:
            return False
        if message:
            self._logger.log(level, "%s", message)
        return True

    @property
    def total(self) -> int:
        """All reports since the start."""
        return sum(self.counts.values())
