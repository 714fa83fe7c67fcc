"""One-time codes in an address, which sign a browser in with the rights of the server's token."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from jobsight.store.tokens import digest_of

#: Seconds for which a sign-in code is valid.
CODE_LIFETIME = 600.0
#: Codes at a time; the oldest is invalid when another one is created.
_MAX_CODES = 8


class SignInCodes:
    """One-time codes that sign a browser in, in the memory of this process.

    A URL ends up in the history of the browser and in the log of a proxy, so it contains a code
    that is invalid afterwards and not the token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Digest -> end of validity, so that the lookup reveals nothing of a code by its duration.
        self._codes: dict[bytes, float] = {}
        self._mutex = threading.Lock()

    def create(self) -> str:
        code = secrets.token_urlsafe(24)
        with self._mutex:
            while len(self._codes) >= _MAX_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[digest_of(code)] = self._clock() + CODE_LIFETIME
        return code

    def redeem(self, given: str) -> bool:
        """Whether the code is valid; it is not valid again."""
        with self._mutex:
            end = self._codes.pop(digest_of(given), None)
        return end is not None and self._clock() < end
