"""The queue of mails: a directory with a file for each request.

Writing a request is one atomic rename, so that slurmctld never waits for a mail server, a database
or another process. The number of files is limited; what exceeds it is refused and said. A request
that the mail server rejects for good is moved to ``failed`` with the reason. What a mail that came
back says is a file of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobsight.errors import JobsightError
from jobsight.mail.request import Bounce, MailRequest
from jobsight.util.decoding import decode_json
from jobsight.util.durable import write_atomically

#: Requests in the queue, bytes of one, and failed ones that are kept.
MAX_REQUESTS: Final = 20_000
MAX_SIZE: Final = 16_384
MAX_FAILED: Final = 1_000
#: Bounces that wait for the server.
MAX_BOUNCES: Final = 2_000

_SUFFIX: Final = ".json"
_BOUNCE_SUFFIX: Final = ".bounce"
_encode = msgspec.json.Encoder().encode
_DECODER: Final = msgspec.json.Decoder(MailRequest)
_BOUNCE_DECODER: Final = msgspec.json.Decoder(Bounce)


class QueueError(JobsightError):
    """The queue cannot be written, or is full. The exit code lets a mail server that runs a command
    try again (EX_TEMPFAIL of sysexits.h)."""

    exit_code = 75


class QueuedMail(NamedTuple):
    """A request in the queue."""

    #: Unique; part of the message's id, so that a mail that is sent twice is recognised.
    name: str
    request: MailRequest


class MailCounts(msgspec.Struct):
    """What became of the mails since the start of the server."""

    sent: int = 0
    #: Requests that the mail server rejected or did not accept for days, or that cannot be read.
    rejected: int = 0
    #: Requests in the queue at the end of the last round.
    queued: int = 0


class MailQueue:
    """The requests in a directory, the oldest first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failed = directory / "failed"
        #: Requests that this process has set aside.
        self.set_aside = 0

    def put(self, request: MailRequest, token: str | None = None) -> str:
        """Add a request and return its name; with a token, the same request has the same name."""
        self.check_capacity(1)
        name = f"{request.created:020d}-{token or os.urandom(6).hex()}"
        self._write(f"{name}{_SUFFIX}", _encode(request))
        return name

    def put_bounce(self, bounce: Bounce, created: int) -> None:
        """Add a bounce, for the server to act on."""
        if sum(1 for _ in self._names(_BOUNCE_SUFFIX)) >= MAX_BOUNCES:
            raise QueueError(
                f"the queue {self.directory} holds {MAX_BOUNCES:,} bounces; expected a running "
                "`jobsight serve` that reads them"
            )
        name = f"{created:020d}-{os.urandom(6).hex()}"
        self._write(f"{name}{_BOUNCE_SUFFIX}", _encode(bounce))

    def _write(self, name: str, data: bytes) -> None:
        try:
            write_atomically(self.directory / name, data, mode=0o660)
        except OSError as error:
            raise QueueError(
                f"the queue {self.directory} cannot be written: {error.strerror}"
            ) from None

    def check_capacity(self, count: int) -> None:
        """Raise an error if the queue cannot hold so many requests more."""
        held = self.count()
        if held + count > MAX_REQUESTS:
            raise QueueError(
                f"the queue {self.directory} holds {held:,} mails and {count:,} more are too many; "
                f"expected at most {MAX_REQUESTS:,}, and a running `jobsight serve` that sends them"
            )

    def count(self) -> int:
        return sum(1 for _ in self._names())

    def requests(self) -> list[QueuedMail]:
        """The requests; one that cannot be read is set aside."""
        found = []
        for name in sorted(self._names()):
            try:
                request = decode_json(_DECODER, self._read(f"{name}{_SUFFIX}"))
                found.append(QueuedMail(name, request))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._set_aside(name, f"the request cannot be read: {error}")
        return found

    def bounces(self) -> list[tuple[str, Bounce]]:
        """The bounces with their names; one that cannot be read is one that says nothing."""
        found = []
        for name in sorted(self._names(_BOUNCE_SUFFIX)):
            try:
                bounce = decode_json(_BOUNCE_DECODER, self._read(f"{name}{_BOUNCE_SUFFIX}"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                bounce = Bounce()
            found.append((name, bounce))
        return found

    def remove_bounce(self, name: str) -> None:
        """Remove a bounce that was read."""
        (self.directory / f"{name}{_BOUNCE_SUFFIX}").unlink(missing_ok=True)

    def _read(self, name: str) -> bytes:
        with (self.directory / name).open("rb") as opened:
            data = opened.read(MAX_SIZE + 1)
        if len(data) > MAX_SIZE:
            raise ValueError(f"is larger than {MAX_SIZE:,} bytes")
        return data

    def remove(self, name: str) -> None:
        """Remove a request that was sent."""
        (self.directory / f"{name}{_SUFFIX}").unlink(missing_ok=True)

    def fail(self, name: str, reason: str) -> None:
        """Set a request aside that will never be accepted."""
        self._set_aside(name, reason)

    def failures(self) -> list[tuple[str, str]]:
        """Names and reasons of the requests that were set aside, the newest first."""
        try:
            names = sorted(os.listdir(self.failed), reverse=True)
        except OSError:
            return []
        found = []
        for name in names:
            if name.endswith(".reason"):
                try:
                    text = (self.failed / name).read_text(errors="replace")[:500]
                except OSError:
                    continue
                found.append((name.removesuffix(".reason"), text))
        return found

    def _set_aside(self, name: str, reason: str) -> None:
        self.set_aside += 1
        self.failed.mkdir(mode=0o770, exist_ok=True)
        (self.failed / f"{name}.reason").write_text(
            f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {reason[:400]}\n"
        )
        try:
            os.replace(self.directory / f"{name}{_SUFFIX}", self.failed / f"{name}{_SUFFIX}")
        except FileNotFoundError:
            pass
        kept = sorted(os.listdir(self.failed))
        for old in kept[: max(len(kept) - 2 * MAX_FAILED, 0)]:
            (self.failed / old).unlink(missing_ok=True)

    def _names(self, suffix: str = _SUFFIX) -> Iterator[str]:
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    if entry.name.endswith(suffix) and not entry.name.startswith("."):
                        yield entry.name.removesuffix(suffix)
        except FileNotFoundError:
            return
        except OSError as error:
            raise QueueError(
                f"the queue {self.directory} cannot be read: {error.strerror}"
            ) from None
