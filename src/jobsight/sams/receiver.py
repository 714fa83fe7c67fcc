"""``POST /<jobid>/<file>``: the HTTP of SAMS's post receiver, behind nginx.

Who may post is nginx's business (certificates, passwords); what is posted is checked here before
any of it is kept.

Puts a record that came over HTTP into the folder of incoming records, whole or not at all.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from jobsight.agent.outputs.record import with_start
from jobsight.errors import JobsightError
from jobsight.model import format_start
from jobsight.sams.booking import interval_of
from jobsight.sams.record import MAX_SIZE, RecordError, SamsRecord, parse_record

logger = logging.getLogger("jobsight.sams")

#: Seconds for a client that is told to come again, and for one that stops sending.
RETRY_AFTER: Final = 60
PATIENCE: Final = 60.0
#: Bytes of bodies that are held at once; beyond it clients are told to come again.
MOST_HELD: Final = 256 * 2**20

#: What nginx lets through at most (512 MiB), and some.
_MOST_DISCARDED: Final = 600 * 2**20

_MEANINGS: Final = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the disk is read-only",
}


class _Answer(Exception):
    """Ends the handling of a request with this answer."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.sentence = sentence
        self.headers = headers or {}


class PostReceiver:
    """The application."""

    def __init__(
        self,
        deposit: IncomingDirectory,
        *,
        max_size: int = MAX_SIZE,
        most_held: int = MOST_HELD,
        patience: float = PATIENCE,
    ) -> None:
        self._deposit = deposit
        self._max_size = max_size
        self._most_held = max(most_held, max_size)
        self._patience = patience
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = _Body(receive, self._patience)
        try:
            answer = PlainTextResponse(await self._handle(scope, body))
        except _Answer as end:
            logger.log(
                logging.ERROR if end.status >= 500 else logging.WARNING,
                "%s %r: %d: %s", scope["method"], scope["path"][:200], end.status, end.sentence,
            )  # fmt: skip
            await body.discard()
            answer = PlainTextResponse(f"{end.sentence}\n", end.status, end.headers)
        await answer(scope, receive, send)

    async def _handle(self, scope: Scope, body: _Body) -> str:
        job_id, name = _place(scope)
        if scope["method"] != "POST":
            raise _Answer(405, "records are posted, with POST", {"Allow": "POST"})
        try:
            self._deposit.check_name(name)
            held: list[bytes] = []
            try:
                await self._read(scope, body, held)
                return await asyncio.to_thread(self._keep, job_id, name, b"".join(held))
            finally:
                self._held -= sum(map(len, held))
        except RefusedPost as error:
            raise _Answer(400, str(error)) from None
        except OSError as error:
            meaning = _MEANINGS.get(error.errno or 0) or os.strerror(error.errno or errno.EIO)
            raise _Answer(
                503, f"the record cannot be kept now: {meaning}", {"Retry-After": str(RETRY_AFTER)}
            ) from None

    def _keep(self, job_id: int, name: str, data: bytes) -> str:
        record = self._deposit.check_body(job_id, data)
        kept = self._deposit.keep(name, record, data)
        logger.info("job %d: %s, %d bytes", record.job_id, kept, len(data))
        return "OK"

    async def _read(self, scope: Scope, body: _Body, held: list[bytes]) -> None:
        too_large = _Answer(413, f"a record has at most {self._max_size} bytes")
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self._max_size:
                raise too_large
        size = 0
        while (piece := await body.piece()) is not None:
            size += len(piece)
            if size > self._max_size:
                raise too_large
            self._held += len(piece)
            held.append(piece)
            if self._held > self._most_held:
                raise _Answer(
                    503, "too many records come at once", {"Retry-After": str(RETRY_AFTER)}
                )


class _Body:
    """The pieces of a request's body, as they come."""

    def __init__(self, receive: Receive, patience: float) -> None:
        self._receive = receive
        self._patience = patience
        self._ended = False

    async def piece(self) -> bytes | None:
        """The next piece, None after the last."""
        if self._ended:
            return None
        try:
            message = await asyncio.wait_for(self._receive(), self._patience)
        except TimeoutError:
            self._ended = True
            raise _Answer(408, f"nothing came for {self._patience:.0f} s") from None
        if message["type"] == "http.disconnect":
            self._ended = True
            raise _Answer(400, "the client left before its record was whole")
        self._ended = not message.get("more_body")
        return bytes(message.get("body", b""))

    async def discard(self) -> None:
        """Read what is left and keep none of it: nginx hears no answer while it still sends."""
        left = _MOST_DISCARDED
        try:
            while left > 0 and (piece := await self.piece()) is not None:
                left -= len(piece)
        except _Answer:
            return


def _place(scope: Scope) -> tuple[int, str]:
    """The job id and the file's name; everything else is not there."""
    raw = scope.get("raw_path") or scope["path"].encode()
    parts = raw.partition(b"?")[0].split(b"/")
    if len(parts) == 3 and not parts[0]:
        number, name = unquote_to_bytes(parts[1]), unquote_to_bytes(parts[2])
        # A slash in disguise is one, as the seed's receiver has it.
        if number.isdigit() and len(number) < 20 and name and b"/" not in name:
            try:
                return int(number), name.decode()
            except UnicodeDecodeError:
                raise _Answer(400, "the file name is not UTF-8") from None
    raise _Answer(404, "there is nothing here; records go to /JOBID/FILE")


#: Bytes of a file's name; a start may be added, and file systems end at 255.
_MAX_NAME: Final = 220
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: SAMS's documentation puts the job's hash, by this size, where the receiver has the job id.
_DOCUMENTED_HASH: Final = 1000


class RefusedPost(JobsightError):
    """A post that will never be taken; the text says why."""


class IncomingDirectory:
    """One folder, with or without subfolders by job id."""

    def __init__(self, base: Path, hash_size: int = 0) -> None:
        self._base = base
        self._hash_size = hash_size

    def check_name(self, name: str) -> None:
        """Raise :class:`RefusedPost` for a name that is none of a record's."""
        if _CONTROL.search(name):
            raise RefusedPost(f"the file name {name[:80]!r} has characters that do not print")
        if "/" in name or "\\" in name:
            raise RefusedPost(f"the file name {name[:80]!r} leads out of the folder")
        if not name or name.startswith("."):
            raise RefusedPost(f"the file name {name[:80]!r} is hidden: it begins with a dot")
        if len(name.encode()) > _MAX_NAME:
            raise RefusedPost(f"the file name is longer than {_MAX_NAME} bytes")

    def check_body(self, job_id: int, data: bytes) -> SamsRecord:
        """Raise :class:`RefusedPost` where the body is no record of this job."""
        try:
            record = parse_record(data)
        except RecordError as error:
            raise RefusedPost(str(error)) from None
        sizes = {1, _DOCUMENTED_HASH, self._hash_size or 1}
        if job_id not in {record.job_id // size for size in sizes}:
            raise RefusedPost(
                f"the record is of job {record.job_id}, but it was posted for job {job_id}"
            )
        return record

    def keep(self, name: str, record: SamsRecord, data: bytes) -> str:
        """Write the record; gives the name it has. OSError leaves nothing behind."""
        folder = self._base
        if self._hash_size:
            folder = folder / str(record.job_id // self._hash_size)
        folder.mkdir(parents=True, exist_ok=True)
        # A name of its own for each post: two posts of one file must not write into one another.
        new = folder / f".{secrets.token_hex(8)}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            kept = self._name(folder, new, name, record, data)
        finally:
            new.unlink(missing_ok=True)
        _sync(folder)
        return kept

    def _name(self, folder: Path, new: Path, name: str, record: SamsRecord, data: bytes) -> str:
        """Give the file its name. One that is there stays: a requeued job's has the same name."""
        number = 0
        wanted = name
        while True:
            target = folder / wanted
            try:
                os.link(new, target, follow_symlinks=False)
            except FileExistsError:
                if _holds(target, data):
                    return wanted
            else:
                return wanted
            number += 1
            wanted = with_start(name, _start(record), number)


def _start(record: SamsRecord) -> str:
    try:
        return format_start(interval_of(record).start)
    except RecordError:
        return "unknown"


def _holds(file: Path, data: bytes) -> bool:
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
