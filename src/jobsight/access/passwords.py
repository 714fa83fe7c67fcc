"""Passwords of local accounts: argon2id, verified in constant time and by few threads at once."""

from __future__ import annotations

import os
import stat
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobsight.store.accounts.accounts import AccountError

if TYPE_CHECKING:
    from argon2 import PasswordHasher

#: Characters of the shortest password that is accepted, and of the longest.
MIN_LENGTH: Final = 10
MAX_LENGTH: Final = 1000
#: Each verification needs 64 MiB and a core.
_CONCURRENT: Final = threading.BoundedSemaphore(2)


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    # RFC 9106, the second recommended option: 64 MiB, 3 passes, 4 lanes.
    return PasswordHasher()


@cache
def _unknown() -> str:
    """A hash to verify against for an account that does not exist: it takes the same time."""
    return _hasher().hash(os.urandom(16).hex())


def hash_password(password: str) -> str:
    """The argon2id hash of an acceptable password."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise AccountError(
            f"the password has {len(password)} characters; {MIN_LENGTH} to {MAX_LENGTH} are allowed"
        )
    with _CONCURRENT:
        return _hasher().hash(password)


def verify_password(password_hash: str | None, password: str) -> bool:
    """Whether the password is the one of the hash; without a hash as slow and false."""
    from argon2.exceptions import Argon2Error, InvalidHashError

    with _CONCURRENT:
        try:
            valid = _hasher().verify(password_hash or _unknown(), password[: MAX_LENGTH + 1])
        except (Argon2Error, InvalidHashError):
            return False
    # Without a hash the password of the unknown account was verified, which nobody has.
    return bool(valid) if password_hash is not None else False


def read_password(file: Path) -> str:
    """The password in the first line of a file that others cannot read."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                raise AccountError(
                    f"the password file {file} can be read by others (mode "
                    f"{status.st_mode & 0o777:04o}); run `chmod 600 {file}`"
                )
            line = opened.readline(4 * MAX_LENGTH + 2)
    except OSError as error:
        raise AccountError(f"the password file {file} cannot be read: {error.strerror}") from None
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise AccountError(f"the password file {file} is not UTF-8") from None
