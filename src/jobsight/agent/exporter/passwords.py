"""Passwords of an endpoint, kept as hashes: a settings file is read by more than one person."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
from typing import Final

from jobsight.errors import ConfigError

_NAME: Final = "pbkdf2-sha256"
_ITERATIONS: Final = 300_000


def hash_password(password: str, *, iterations: int = _ITERATIONS) -> str:
    """What stands in the settings: method, iterations, salt and hash, with dollars between."""
    salt = os.urandom(16)
    made = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    return f"{_NAME}${iterations}${_text(salt)}${_text(made)}"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Password:
    """Checks what was given. The work is done once for the right password, which then comes with
    every scrape, and by one thread at a time for wrong ones."""

    def __init__(self, user: str, hashed: str, where: str = "agent.metrics.password_hash") -> None:
        self._user = user.encode()
        try:
            name, iterations, salt, made = hashed.split("$")
            if name != _NAME or not 1 <= int(iterations) <= 10_000_000:
                raise ValueError
            self._iterations = int(iterations)
            self._salt = base64.b64decode(salt, validate=True)
            self._hash = base64.b64decode(made, validate=True)
        except ValueError:
            raise ConfigError(
                f"{where}: is not a hash of a password; "
                "right would be what `jobs_exporter --hash-password` prints"
            ) from None
        self._key = os.urandom(32)
        self._known = b""
        self._lock = threading.Lock()

    def is_right(self, user: str, given: str) -> bool:
        # Both are looked at, so that the time does not tell which was wrong.
        right = self._is_right(given)
        return hmac.compare_digest(user.encode("utf-8", "surrogatepass"), self._user) and right

    def _is_right(self, given: str) -> bool:
        mark = hmac.digest(self._key, given.encode("utf-8", "surrogatepass"), "sha256")
        if self._known and hmac.compare_digest(mark, self._known):
            return True
        with self._lock:
            made = hashlib.pbkdf2_hmac(
                "sha256", given.encode("utf-8", "surrogatepass"), self._salt, self._iterations
            )
        if not hmac.compare_digest(made, self._hash):
            return False
        self._known = mark
        return True
