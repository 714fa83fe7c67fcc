"""The token of a server: loopback is shared on a login node, so an address is not enough."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jobsight.errors import JobsightError

# An agent reads a token and nothing else: the libraries of cryptography stay out of it.

_LEAST = 16


class TokenError(JobsightError):
    """The token file cannot be used."""

    exit_code = 2


def load_token(file: Path) -> str:
    """Read the token of a file, and make the file with a new one where there is none."""
    try:
        return _create(file)
    except FileExistsError:
        return read_token(file)
    except OSError as error:
        raise TokenError(f"the token file {file} cannot be written: {error.strerror}") from None


def read_token(file: Path) -> str:
    """Read the token of an existing file, which nobody but its owner may be able to read."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise TokenError(f"the token file {file} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TokenError(f"the token file {file} is not a regular file")
        if status.st_mode & 0o077:
            raise TokenError(
                f"the token file {file} can be used by others (mode {status.st_mode & 0o777:04o}); "
                "delete it, and the server will make a new one that only you can read"
            )
        token = os.read(descriptor, 4096).strip()
    finally:
        os.close(descriptor)
    if len(token) < _LEAST:
        raise TokenError(
            f"the token file {file} holds {'nothing' if not token else 'too short a token'}; "
            "delete it and the server will make a new one"
        )
    try:
        text = token.decode("ascii")
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text or " " in text:
        raise TokenError(f"the token file {file} must hold one word of printable characters")
    return text


def _create(file: Path) -> str:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    import secrets

    token = secrets.token_urlsafe(32)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{token}\n")
    return token


def same(given: str, expected: str) -> bool:
    """Compare without telling by the time taken how much was right."""
    import hmac

    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )


def cookie_value(token: str) -> str:
    """What the browser keeps: proof of the token, from which the token cannot be had."""
    import hashlib
    import hmac

    return hmac.new(token.encode(), b"jobsight browser session", hashlib.sha256).hexdigest()
