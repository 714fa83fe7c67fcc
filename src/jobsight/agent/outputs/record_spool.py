"""Records that could not be delivered, kept on the node's disk until the next attempt.

This is not :class:`jobsight.transport.spool.Spool`: several processes (one collector per job)
share the directory, records have no sequence, and each carries its key.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobsight.agent.job import JobView
from jobsight.agent.outputs.sams_record import is_requeued, run_start, without_surrogates
from jobsight.agent.outputs.worker import RecordRefused
from jobsight.errors import JobsightError
from jobsight.util.decoding import decode_json_as
from jobsight.util.durable import write_atomically
from jobsight.util.locks import AlreadyRunning, LockFile

logger = logging.getLogger(__name__)

_SUFFIX: Final = ".kept"
DEFAULT_LIMIT: Final = 64 * 2**20


class RecordKey(msgspec.Struct, frozen=True):
    """Identifies a record. Its destination is determined from the key at each attempt."""

    job_id: int
    node: str
    start: str
    requeued: bool = False


def record_key(view: JobView) -> RecordKey:
    return RecordKey(
        job_id=view.sighting.job_id,
        node=without_surrogates(view.sighting.node),
        start=run_start(view),
        requeued=is_requeued(view),
    )


class RecordTooLarge(ConnectionError):
    """Raised by the sender if a proxy accepts other records, but not one of this size."""


class DeliveryResult(NamedTuple):
    sent: int = 0
    #: Names of the records that were quarantined.
    refused: tuple[str, ...] = ()
    #: Why the remaining records were not sent.
    reason: str = ""


class RecordSpool:
    """A bounded directory of records, each with its key in the first line."""

    def __init__(self, directory: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.directory = directory
        self.limit = limit
        #: Records that were deleted to make room.
        self.dropped = 0

    def put(self, key: RecordKey, body: bytes) -> str:
        """Store a record and return its name. The oldest are dropped if the limit is exceeded."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.encode(key) + b"\n" + body
        self._drop_oldest(len(data))
        # Names sort by age; the last part distinguishes two runs of one job.
        name = f"{time.time_ns():020d}-{key.job_id}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        write_atomically(self.directory / name, data, mode=0o600)
        return name

    def _drop_oldest(self, size: int) -> None:
        refused = (self.directory / "refused").glob("*" + _SUFFIX)
        sizes = {path: _size(path) for path in (*self._files(), *refused)}
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: path.name):
            if total + size <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= sizes[path]
            self.dropped += 1
            logger.warning("%s is full; the record %s is dropped", self.directory, path.name)

    def _files(self) -> list[Path]:
        return sorted(self.directory.glob("*" + _SUFFIX))

    def __len__(self) -> int:
        return len(self._files())

    def __contains__(self, name: str) -> bool:
        return (self.directory / name).exists()

    def quarantine(self, name: str, reason: str) -> None:
        """Move a record to ``refused``, next to the reason. If moved back, it is sent again."""
        refused = self.directory / "refused"
        refused.mkdir(mode=0o700, exist_ok=True)
        try:
            os.replace(self.directory / name, refused / name)
            (refused / name).with_suffix(".reason").write_text(reason + "\n")
        except OSError:
            # Another process has moved it, or the disk is full; the record itself still exists.
            pass

    def deliver(self, send: Callable[[RecordKey, bytes], object]) -> DeliveryResult:
        """Send the records, the oldest first, until the receiver does not accept more.

        Only one process at a time delivers; the others leave it to that one.
        """
        if not self._files():
            return DeliveryResult()
        try:
            lock = LockFile(self.directory / "lock", "another delivery", mode=0o600)
        except AlreadyRunning:
            return DeliveryResult()
        try:
            return self._deliver(send)
        finally:
            lock.close(remove=False)

    def _deliver(self, send: Callable[[RecordKey, bytes], object]) -> DeliveryResult:
        sent = 0
        refused: tuple[str, ...] = ()
        reason = ""
        for path in self._files():
            try:
                send(*_read(path))
            except FileNotFoundError:
                continue
            except RecordRefused as error:
                self.quarantine(path.name, str(error))
                refused += (path.name,)
            except RecordTooLarge as error:
                reason = str(error)
            except (OSError, JobsightError) as error:
                return DeliveryResult(sent, refused, str(error))
            else:
                path.unlink(missing_ok=True)
                sent += 1
        return DeliveryResult(sent, refused, reason)


def _read(path: Path) -> tuple[RecordKey, bytes]:
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        key = decode_json_as(RecordKey, head)
        json.loads(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RecordRefused(f"the record {path.name} is damaged: {error}") from None
    return key, body


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
