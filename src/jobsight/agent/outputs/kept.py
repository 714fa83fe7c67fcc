"""Records that could not be delivered, on the node's own disk until somebody takes them."""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jobsight.agent.outputs.record import is_requeued, run_start, whole_text
from jobsight.agent.view import JobView
from jobsight.errors import JobsightError
from jobsight.util.durable import write_durably

_SUFFIX: Final = ".kept"
DEFAULT_LIMIT: Final = 64 * 2**20


class Address(msgspec.Struct, frozen=True):
    """What a record is called; where it goes is decided anew whenever it is sent."""

    job_id: int
    node: str
    start: str
    requeued: bool = False


def address_of(view: JobView) -> Address:
    sighting = view.sighting
    return Address(
        job_id=sighting.job_id,
        node=whole_text(sighting.node),
        start=run_start(view),
        requeued=is_requeued(view),
    )


class Refused(JobsightError):
    """The other side will never take this record."""


class Sent(NamedTuple):
    sent: int = 0
    #: Names of the records that were put aside.
    refused: tuple[str, ...] = ()
    #: What stands in the way of the rest.
    reason: str = ""


class KeptRecords:
    """A folder of records, each with its address in the first line. Several processes share it."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.dropped = 0

    def put(self, address: Address, body: bytes) -> str:
        """Keep a record and give its name; the oldest go when the folder is full."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.encode(address) + b"\n" + body
        self._make_room(len(data))
        # The first number orders by age; the last part keeps two runs of one job apart.
        name = f"{time.time_ns():020d}-{address.job_id}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        write_durably(self.folder / name, data, mode=0o600)
        return name

    def _make_room(self, size: int) -> None:
        sizes = {path: _size(path) for path in (*self._files(), *self._refused())}
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: path.name):
            if total + size <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= sizes[path]
            self.dropped += 1

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*" + _SUFFIX))

    def _refused(self) -> list[Path]:
        return sorted((self.folder / "refused").glob("*" + _SUFFIX))

    def __len__(self) -> int:
        return len(self._files())

    def holds(self, name: str) -> bool:
        return (self.folder / name).exists()

    def done(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def refuse(self, name: str, reason: str) -> None:
        """Put a record aside, with the reason beside it. Moved back, it is sent again."""
        aside = self.folder / "refused"
        aside.mkdir(mode=0o700, exist_ok=True)
        try:
            os.replace(self.folder / name, aside / name)
            (aside / name).with_suffix(".reason").write_text(reason + "\n")
        except OSError:
            # Another process put it aside, or the disk is full; the record itself is still there.
            pass

    def deliver(self, send: Callable[[Address, bytes], object]) -> Sent:
        """Send what is kept, the oldest first, until the other side cannot take more.

        Only one process at a time does so; the others leave it to that one.
        """
        sent = 0
        refused: tuple[str, ...] = ()
        if not self._files():
            return Sent()
        with self._alone() as alone:
            for path in self._files() if alone else []:
                try:
                    address, body = _read(path)
                    send(address, body)
                except FileNotFoundError:
                    continue
                except Refused as error:
                    self.refuse(path.name, str(error))
                    refused += (path.name,)
                except (OSError, JobsightError) as error:
                    return Sent(sent, refused, str(error))
                else:
                    self.done(path.name)
                    sent += 1
        return Sent(sent, refused)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                alone = False
            yield alone
        finally:
            os.close(descriptor)


def _read(path: Path) -> tuple[Address, bytes]:
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        address = msgspec.json.decode(head, type=Address)
        json.loads(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(f"the kept record {path.name} cannot be read: {error}") from None
    return address, body


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
