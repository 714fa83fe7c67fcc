"""Hashed passwords of the metrics endpoint, since several people may read a settings file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
from typing import Final

from jobsight.errors import ConfigError

_METHOD: Final = "pbkdf2-sha256"
_ITERATIONS: Final = 300_000


def hash_password(password: str, *, iterations: int = _ITERATIONS) -> str:
    """The value for the settings: method, iterations, salt and hash, separated by ``$``."""
    salt = os.urandom(16)
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    return f"{_METHOD}${iterations}${_base64(salt)}${_base64(digest)}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Password:
    """Verifies passwords.

    The hash is computed once for the correct password, which is then sent with every scrape, and
    by one thread at a time for wrong ones.
    """

    def __init__(self, user: str, hashed: str, where: str = "agent.metrics.password_hash") -> None:
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

    def matches(self, user: str, password: str) -> bool:
        # Check both, so that the response time does not depend on which is wrong.
        correct = self._matches(password.encode("utf-8", "surrogatepass"))
        return hmac.compare_digest(user.encode("utf-8", "surrogatepass"), self._user) and correct

    def _matches(self, password: bytes) -> bool:
        fingerprint = hmac.digest(self._key, password, "sha256")
        if self._verified and hmac.compare_digest(fingerprint, self._verified):
            return True
        with self._lock:
            digest = hashlib.pbkdf2_hmac("sha256", password, self._salt, self._iterations)
        if not hmac.compare_digest(digest, self._hash):
            return False
        self._verified = fingerprint
        return True
