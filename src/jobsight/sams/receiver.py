"""``POST /<jobid>/<file>``: the HTTP interface of SAMS's post receiver, behind nginx.

:class:`PostReceiver` is the ASGI application, :class:`IncomingDirectory` writes the records.
Clients are authenticated by nginx. The receiver checks the file name, that the body is JSON, and
that it belongs to the job; the aggregator validates the rest.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from jobsight.agent.outputs.sams_record import REFUSED_HEADER, with_start
from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.sams.convert import interval_of
from jobsight.sams.record import MAX_SIZE, RecordError, parse_job_id, parse_record
from jobsight.server.connections import ConnectionLimits
from jobsight.util.directories import in_directory, open_below
from jobsight.util.durable import sync_directory

logger = logging.getLogger(__name__)

#: Seconds after which a refused client may retry, and within which the next data must arrive.
RETRY_AFTER: Final = 60
READ_TIMEOUT: Final = 60.0
#: Bytes of all bodies held concurrently; beyond it clients get 503.
MEMORY_BUDGET: Final = 256 * 2**20

#: Every connection comes from nginx, which knows the clients.
LIMITS: Final = ConnectionLimits(
    connections=1024,
    connections_per_address=1024,
    header_timeout=30,
    body_timeout=300,
    response_timeout=60,
)

#: Above the limit of 512 MiB in the nginx configuration that SAMS documents.
_MAX_DISCARDED: Final = 600 * 2**20

#: Bytes of a file name; a start and a digest may be inserted, and file systems end at 255.
_MAX_NAME: Final = 220
#: Hexadecimal digits of the digest in a name.
_DIGEST: Final = 16
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: SAMS's documentation puts the job id divided by this where its receiver expects the job id.
_DOCUMENTED_HASH: Final = 1000

#: Tells the sender that the status is the receiver's and that no retry changes it.
_FINAL: Final = {REFUSED_HEADER: "record"}

_REASONS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is exceeded",
    errno.EROFS: "the disk is read-only",
}


class PostReceiver:
    """The ASGI application."""

    def __init__(
        self,
        directory: IncomingDirectory,
        *,
        max_size: int = MAX_SIZE,
        memory_budget: int = MEMORY_BUDGET,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        self._directory = directory
        self._max_size = max_size
        self._memory_budget = max(memory_budget, max_size)
        self._read_timeout = read_timeout
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = _Body(receive, self._read_timeout)
        try:
            response = PlainTextResponse(await self._handle(scope, body))
        except _HttpError as error:
            logger.log(
                logging.ERROR if error.status >= 500 else logging.WARNING,
                "%s %r: %d: %s", scope["method"], scope["path"][:200], error.status, error.sentence,
            )  # fmt: skip
            await body.discard()
            response = PlainTextResponse(f"{error.sentence}\n", error.status, error.headers)
        await response(scope, receive, send)

    async def _handle(self, scope: Scope, body: _Body) -> str:
        job_id, name = _job_and_name(scope)
        if scope["method"] != "POST":
            raise _HttpError(405, "the only method is POST", {"Allow": "POST"})
        try:
            self._directory.check_name(name)
            pieces: list[bytes] = []
            try:
                await self._read(scope, body, pieces)
                return await asyncio.to_thread(self._write, job_id, name, b"".join(pieces))
            finally:
                self._held -= sum(map(len, pieces))
        except RefusedPost as error:
            raise _HttpError(400, str(error), _FINAL) from None
        except OSError as error:
            reason = _REASONS.get(error.errno or 0) or os.strerror(error.errno or errno.EIO)
            raise _HttpError(
                503, f"the record cannot be stored: {reason}", {"Retry-After": str(RETRY_AFTER)}
            ) from None

    def _write(self, job_id: int, name: str, data: bytes) -> str:
        record_job_id = self._directory.check_body(job_id, data)
        written = self._directory.write(name, record_job_id, data)
        logger.info("job %d: %s, %d bytes", record_job_id, written, len(data))
        return "OK"

    async def _read(self, scope: Scope, body: _Body, pieces: list[bytes]) -> None:
        too_large = _HttpError(413, f"a record has at most {self._max_size} bytes", _FINAL)
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self._max_size:
                raise too_large
        size = 0
        while (piece := await body.next_piece()) is not None:
            size += len(piece)
            if size > self._max_size:
                raise too_large
            self._held += len(piece)
            pieces.append(piece)
            if self._held > self._memory_budget:
                raise _HttpError(
                    503, "too many concurrent records", {"Retry-After": str(RETRY_AFTER)}
                )


class RefusedPost(JobsightError):
    """A post that will never be accepted; the text says why."""


class IncomingDirectory:
    """The aggregator's incoming directory, with or without subdirectories by job id."""

    def __init__(self, base: Path, hash_size: int = 0) -> None:
        self._base = base
        self._hash_size = hash_size

    def check_name(self, name: str) -> None:
        """Raise :class:`RefusedPost` for a file name that is not accepted."""
        if _CONTROL.search(name):
            raise RefusedPost(f"the file name {name[:80]!r} contains control characters")
        if "/" in name or "\\" in name:
            raise RefusedPost(f"the file name {name[:80]!r} contains a path separator")
        if not name or name.startswith("."):
            raise RefusedPost(f"the file name {name[:80]!r} is hidden: it begins with a dot")
        if len(name.encode()) > _MAX_NAME:
            raise RefusedPost(f"the file name is longer than {_MAX_NAME} bytes")

    def check_body(self, job_id: int, data: bytes) -> int:
        """The record's job id; :class:`RefusedPost` if the body is no record of this job."""
        try:
            record_job_id = parse_job_id(data)
        except RecordError as error:
            raise RefusedPost(str(error)) from None
        sizes = {1, _DOCUMENTED_HASH, self._hash_size or 1}
        if job_id not in {record_job_id // size for size in sizes}:
            raise RefusedPost(
                f"the record is of job {record_job_id}, but it was posted for job {job_id}"
            )
        return record_job_id

    def write(self, name: str, job_id: int, data: bytes) -> str:
        """Write a record durably and atomically; returns its name. An OSError leaves no file."""
        self._base.mkdir(parents=True, exist_ok=True)
        below = str(job_id // self._hash_size) if self._hash_size else ""
        owners = {0, os.geteuid(), self._base.stat().st_uid}
        descriptor = open_below(str(self._base), below, make=True, owners=owners)
        try:
            return self._write(in_directory(descriptor, "."), name, data)
        finally:
            os.close(descriptor)

    def _write(self, directory: Path, name: str, data: bytes) -> str:
        # A temporary name per post: two posts of one file must not write to the same file.
        temporary = directory / f".{secrets.token_hex(8)}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            written = _link(temporary, name, data)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(directory)
        return written


def _link(temporary: Path, name: str, data: bytes) -> str:
    """Give the file its name. An existing file stays: a requeued job's has the same name.

    The names depend on the content, so that a repeated post is recognised, and many posts of one
    name need no search for a free number.
    """
    for free in _names(name, data):
        target = temporary.with_name(free)
        try:
            os.link(temporary, target, follow_symlinks=False)
            return free
        except FileExistsError:
            if _has_content(target, data):
                return free
    raise AssertionError("unreachable: the names do not end")


def _names(name: str, data: bytes) -> Iterator[str]:
    yield name
    start = _start(data)
    yield with_start(name, start)
    yield with_start(name, f"{start}.{hashlib.sha256(data).hexdigest()[:_DIGEST]}")
    while True:
        yield with_start(name, f"{start}.{secrets.token_hex(_DIGEST // 2)}")


def _start(data: bytes) -> str:
    try:
        return format_start(interval_of(parse_record(data)).start)
    except RecordError:
        return "unknown"


def _has_content(file: Path, data: bytes) -> bool:
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False


class _HttpError(Exception):
    """Ends a request with an error response."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.sentence = sentence
        self.headers = headers or {}


class _Body:
    """The body of a request, piece by piece."""

    def __init__(self, receive: Receive, timeout: float) -> None:
        self._receive = receive
        self._timeout = timeout
        self._ended = False

    async def next_piece(self) -> bytes | None:
        """The next piece, None after the last."""
        if self._ended:
            return None
        try:
            message = await asyncio.wait_for(self._receive(), self._timeout)
        except TimeoutError:
            self._ended = True
            raise _HttpError(408, f"no data arrived for {self._timeout:.0f} s") from None
        if message["type"] == "http.disconnect":
            self._ended = True
            raise _HttpError(400, "the client disconnected before its record was complete")
        self._ended = not message.get("more_body")
        return bytes(message.get("body", b""))

    async def discard(self) -> None:
        """Read the rest without keeping it: nginx reads no response while it still sends."""
        remaining = _MAX_DISCARDED
        try:
            while remaining > 0 and (piece := await self.next_piece()) is not None:
                remaining -= len(piece)
        except _HttpError:
            return


def _job_and_name(scope: Scope) -> tuple[int, str]:
    """The job id and the file name of the URL; any other path is 404."""
    raw = scope.get("raw_path") or scope["path"].encode()
    parts = raw.partition(b"?")[0].split(b"/")
    if len(parts) == 3 and not parts[0]:
        number, name = unquote_to_bytes(parts[1]), unquote_to_bytes(parts[2])
        # An encoded slash separates path segments, as in SAMS's receiver.
        if number.isdigit() and len(number) < 20 and name and b"/" not in name:
            try:
                return int(number), name.decode()
            except UnicodeDecodeError:
                raise _HttpError(400, "the file name is not UTF-8") from None
    raise _HttpError(404, "not found; expected /JOBID/FILE")
