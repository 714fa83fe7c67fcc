"""The running server of a store: a file with its URL, and the file with its token.

Commands of the same user find the server by its record. A token is required even on loopback,
which is shared on a login node. The agent reads tokens only, so the modules for creating and
comparing them are imported where they are used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from jobsight.config import paths
from jobsight.errors import JobsightError
from jobsight.util.decoding import decode_json_as
from jobsight.util.durable import write_atomically
from jobsight.util.locks import AlreadyRunning, LockFile, is_locked
from jobsight.util.ownership import check_file, trusted_owners


class RunningServer(msgspec.Struct, kw_only=True):
    """The URL of a running server and the path of its token."""

    url: str
    token_file: str
    pid: int
    #: With TLS: the file of its certificate, which local commands trust as it is.
    certificate: str | None = None


def read_running_server(file: Path) -> RunningServer | None:
    """The server that is running, or None; the record of a killed server is ignored.

    The record decides which token is sent to which address. Its owner must be root or this user.
    Root also uses the record of a service user, but sends only a token of that user.
    """
    try:
        data = file.read_bytes()
        owner = file.lstat().st_uid
    except OSError:
        return None
    owners = {owner} if os.geteuid() == 0 else trusted_owners()
    check_file(file, "the record of the running server", owners)
    try:
        record = decode_json_as(RunningServer, data)
    except msgspec.DecodeError:
        return None
    # The kernel releases the lock with its process; the PID may belong to another one by now.
    if not is_locked(_lock_file(file)):
        return None
    if owner != os.geteuid():
        check_file(Path(record.token_file), "the token file", {owner})
    return record


@contextmanager
def announced(file: Path, record: RunningServer) -> Iterator[None]:
    """Write the record while the server runs; a second server of the same store is refused."""
    paths.private_directory(file.parent, "the directory of the server's record")
    try:
        lock = LockFile(_lock_file(file), "the server", mode=0o600)
    except AlreadyRunning:
        other = read_running_server(file)
        raise JobsightError(
            f"a server of the store in {file.parent} is already running"
            + (f": {other.url} (process {other.pid})" if other else "")
            + "; stop it or choose another store with --store"
        ) from None
    except JobsightError as error:
        raise JobsightError(f"{error}; choose another store with --store") from None
    try:
        write_atomically(file, msgspec.json.encode(record) + b"\n", mode=0o600, sync=False)
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.close(remove=False)


def _lock_file(file: Path) -> Path:
    return file.with_suffix(".lock")


#: Characters of the shortest token that is accepted.
_MIN_LENGTH = 16


class TokenError(JobsightError):
    """The token file cannot be used."""

    exit_code = 2


def load_token(file: Path) -> str:
    """Read the token of a file; create the file with a new token if it does not exist."""
    try:
        return _create(file)
    except FileExistsError:
        return read_token(file, own=True)
    except OSError as error:
        raise TokenError(f"the token file {file} cannot be written: {error.strerror}") from None


def read_token(file: Path, *, own: bool = False) -> str:
    """Read the token of a file that only its owner can read.

    ``own`` is the server's token, which the server creates; a cluster's token is copied to nodes.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise TokenError(f"the token file {file} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TokenError(f"the token file {file} is not a regular file")
        # Root also uses the token of a service user, in a directory of that user.
        owners = trusted_owners() | ({file.parent.stat().st_uid} if os.geteuid() == 0 else set())
        if status.st_uid not in owners:
            raise TokenError(
                f"the token file {file} belongs to user {status.st_uid}, who knows the token; "
                f"expected root or user {os.geteuid()}"
            )
        if status.st_mode & 0o077:
            advice = (
                "delete it, and the server creates a new one that only you can read"
                if own
                else f"run `chmod 600 {file}`, and replace the token with `jobsight token rotate` "
                "on the server if others may have read it"
            )
            raise TokenError(
                f"the token file {file} can be used by others (mode {status.st_mode & 0o777:04o}); "
                f"{advice}"
            )
        token = os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
    return check_token(token, file, own=own)


def check_token(content: bytes, file: Path, *, own: bool = False) -> str:
    """The token that a file holds."""
    token = content.strip()
    if len(token) < _MIN_LENGTH:
        advice = (
            "delete it, and the server creates a new one"
            if own
            else "expected the token that `jobsight token add` prints on the server"
        )
        raise TokenError(
            f"the token file {file} holds {'nothing' if not token else 'too short a token'}; "
            f"{advice}"
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
    """Compare in constant time."""
    import hmac

    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )
