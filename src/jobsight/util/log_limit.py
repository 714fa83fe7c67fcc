"""A limit on the number of log messages that a client can cause."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

_MESSAGES: Final = 10
_SECONDS: Final = 60.0


class LogLimit(logging.Filter):
    """Passes a number of messages per minute and call site, and counts the others.

    The next message that passes says how many were suppressed. The call site is the key, because
    a message may contain text of the client.
    """

    def __init__(
        self,
        messages: int = _MESSAGES,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._messages = messages
        self._seconds = seconds
        self._clock = clock
        #: By file and line: start of the interval, messages passed in it, messages suppressed.
        self._seen: dict[tuple[str, int], tuple[float, int, int]] = {}
        self._mutex = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        site = (record.pathname, record.lineno)
        with self._mutex:
            start, passed, suppressed = self._seen.get(site, (now, 0, 0))
            if now - start >= self._seconds:
                start, passed = now, 0
            if passed >= self._messages:
                self._seen[site] = (start, passed, suppressed + 1)
                return False
            self._seen[site] = (start, passed + 1, 0)
        if suppressed:
            record.msg = f"{record.getMessage()} ({suppressed} similar messages were suppressed)"
            record.args = None
        return True
