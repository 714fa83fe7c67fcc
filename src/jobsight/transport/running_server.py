"""What a running server says of itself in a file, so that commands of its owner find it.

The token of a server: loopback is shared on a login node, so an address is not enough.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from jobsight.config import paths
from jobsight.errors import JobsightError


class RunningServer(msgspec.Struct, kw_only=True):
    """The address of a running server and where its token lies."""

    url: str
    token_file: str
    pid: int
    #: Where it speaks TLS: the file of its certificate, which local commands trust by itself.
    certificate: str | None = None


def read_running_server(file: Path) -> RunningServer | None:
    """The server that runs now, if any; what a killed one left behind is not believed."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=RunningServer)
    except (OSError, msgspec.DecodeError):
        return None
    return record if _alive(file) else None


@contextmanager
def announced(file: Path, record: RunningServer) -> Iterator[None]:
    """Keep the record while the server runs; a second server beside the same store is refused."""
    paths.private_directory(file.parent)
    try:
        lock = os.open(_lock_file(file), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JobsightError(
            f"the folder {file.parent} cannot be written: {error.strerror}; "
            "choose another store with --store"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = read_running_server(file)
            raise JobsightError(
                f"a server runs already for the store in {file.parent}"
                + (f": {other.url} (process {other.pid})" if other else "")
                + "; end it first or give another store with --store"
            ) from None
        _write(file, record)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _lock_file(file: Path) -> Path:
    return file.with_suffix(".lock")


def _alive(file: Path) -> bool:
    # The kernel drops the lock with its process, however that ended; a pid may be another's by now.
    try:
        lock = os.open(_lock_file(file), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _write(file: Path, record: RunningServer) -> None:
    # A new file under another name: a reader never sees half of it, and its mode is ours.
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(msgspec.json.encode(record) + b"\n")
    fresh.replace(file)


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
