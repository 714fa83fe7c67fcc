"""Hashed passwords of the metrics endpoint, since several people may read a settings file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from jobsight.agent.exporter.http import TooManyPasswords
from jobsight.errors import ConfigError

_METHOD: Final = "pbkdf2-sha256"
_ITERATIONS: Final = 300_000
#: Seconds after a wrong password until another one of the same address is checked.
_WRONG_INTERVAL: Final = 1.0
#: Addresses that are remembered for this time.
_MAX_ADDRESSES: Final = 1024


def hash_password(password: str, *, iterations: int = _ITERATIONS) -> str:
    """The value for the settings: method, iterations, salt and hash, separated by ``$``."""
    salt = os.urandom(16)
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    return f"{_METHOD}${iterations}${_base64(salt)}${_base64(digest)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Password:
    """Verifies passwords.

    The hash is computed once for the correct password, which is then sent with every scrape. For
    wrong ones it is computed by one thread at a time, and once a second for each address.
    """

    def __init__(
        self,
        user: str,
        hashed: str,
        where: str = "agent.metrics.password_hash",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._user = user.encode()
        try:
            method, iterations, salt, digest = hashed.split("$")
            if method != _METHOD or not 1 <= int(iterations) <= 10_000_000:
                raise ValueError
            self._iterations = int(iterations)
            self._salt = base64.b64decode(salt, validate=True)
            self._hash = base64.b64decode(digest, validate=True)
        except ValueError:
            raise ConfigError(
                f"{where}: is not a password hash; "
                "expected the output of `jobs_exporter --hash-password`"
            ) from None
        #: Keyed digest of the last correct password.
        self._key = os.urandom(32)
        self._verified = b""
        self._lock = threading.Lock()
        self._clock = clock
        #: By address, the oldest first: when the last wrong password came.
        self._wrong: dict[str, float] = {}

    def matches(self, user: str, password: str, address: str = "") -> bool:
        """Whether both are correct; TooManyPasswords if this was not checked."""
        # Check both, so that the response time does not depend on which is wrong.
        correct = self._matches(password.encode("utf-8", "surrogatepass"), address)
        return hmac.compare_digest(user.encode("utf-8", "surrogatepass"), self._user) and correct

    def _matches(self, password: bytes, address: str) -> bool:
        fingerprint = hmac.digest(self._key, password, "sha256")
        if self._verified and hmac.compare_digest(fingerprint, self._verified):
            return True
        with self._lock:
            if self._clock() - self._wrong.get(address, -_WRONG_INTERVAL) < _WRONG_INTERVAL:
                raise TooManyPasswords
            digest = hashlib.pbkdf2_hmac("sha256", password, self._salt, self._iterations)
            if hmac.compare_digest(digest, self._hash):
                self._verified = fingerprint
                return True
            self._wrong.pop(address, None)
            self._wrong[address] = self._clock()
            if len(self._wrong) > _MAX_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]
            return False
