"""What a running server says of itself in a file, so that commands of its owner find it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from jobsight.config import paths
from jobsight.errors import JobsightError


class ServerRecord(msgspec.Struct, kw_only=True):
    """The address of a running server and where its token lies."""

    url: str
    token_file: str
    pid: int
    #: Where it speaks TLS: the file of its certificate, which local commands trust by itself.
    certificate: str | None = None


def read_record(file: Path) -> ServerRecord | None:
    """The server that runs now, if any; what a killed one left behind is not believed."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None
    return record if _alive(file) else None


@contextmanager
def announced(file: Path, record: ServerRecord) -> Iterator[None]:
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
            other = read_record(file)
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


def _write(file: Path, record: ServerRecord) -> None:
    # A new file under another name: a reader never sees half of it, and its mode is ours.
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(msgspec.json.encode(record) + b"\n")
    fresh.replace(file)
