"""The queue of mails: a directory with a file for each request.

Writing a request is one atomic rename, so that slurmctld never waits for a mail server, a database
or another process. The number of files is limited; what exceeds it is refused and said. A request
that the mail server rejects for good is moved to ``failed`` with the reason.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobsight.errors import JobsightError
from jobsight.mail.request import MailRequest
from jobsight.util.decoding import decode_json
from jobsight.util.durable import write_atomically

#: Requests in the queue, bytes of one, and failed ones that are kept.
MAX_REQUESTS: Final = 20_000
MAX_SIZE: Final = 16_384
MAX_FAILED: Final = 1_000

_SUFFIX: Final = ".json"
_encode = msgspec.json.Encoder().encode
_DECODER: Final = msgspec.json.Decoder(MailRequest)


class QueuedMail(NamedTuple):
    """A request in the queue."""

    #: Unique; part of the message's id, so that a mail that is sent twice is recognised.
    name: str
    request: MailRequest


class MailQueue:
    """The requests in a directory, the oldest first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.failed = directory / "failed"

    def put(self, request: MailRequest, token: str | None = None) -> str:
        """Add a request and return its name; with a token, the same request has the same name."""
        try:
            self.check_capacity(1)
            name = f"{request.created:020d}-{token or secrets.token_hex(6)}"
            write_atomically(self.directory / f"{name}{_SUFFIX}", _encode(request), mode=0o660)
        except OSError as error:
            raise JobsightError(
                f"the queue {self.directory} cannot be written: {error.strerror}"
            ) from None
        return name

    def check_capacity(self, count: int) -> None:
        """Raise an error if the queue cannot hold so many requests more."""
        held = sum(1 for _ in self._names())
        if held + count > MAX_REQUESTS:
            raise JobsightError(
                f"the queue {self.directory} holds {held:,} mails and {count:,} more are too many; "
                f"expected at most {MAX_REQUESTS:,}, and a running `jobsight serve` that sends them"
            )

    def requests(self) -> list[QueuedMail]:
        """The requests; one that cannot be read is set aside."""
        found = []
        for name in sorted(self._names()):
            file = self.directory / f"{name}{_SUFFIX}"
            try:
                with file.open("rb") as opened:
                    data = opened.read(MAX_SIZE + 1)
                if len(data) > MAX_SIZE:
                    raise ValueError(f"is larger than {MAX_SIZE:,} bytes")
                found.append(QueuedMail(name, decode_json(_DECODER, data)))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._set_aside(name, f"the request cannot be read: {error}")
        return found

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

    def _names(self) -> Iterator[str]:
        try:
            with os.scandir(self.directory) as entries:
                for entry in entries:
                    if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                        yield entry.name.removesuffix(_SUFFIX)
        except FileNotFoundError:
            return
