"""Batches on disk between the agent and the server: bounded, in order, safe against power loss.

Writes batches to the spool beside the loop: a disk that is slow to sync must not stop it.

A job of half a second comes and goes while a busy disk takes in one batch.

Large batches cut into some that a server takes: users decide how many programs there are.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import Batch, ExecutableUse, JobPart, StepUse
from jobsight.transport.wire import encode

_SUFFIX: Final = ".batch"
#: Batches that the server refused and that are kept to be looked at.
_REFUSED: Final = 1000
DEFAULT_LIMIT: Final = 256 * 2**20


class SpoolError(JobsightError):
    """The spool cannot be used; the text says why."""


class _State(msgspec.Struct):
    uuid: str
    #: The number of the next batch.
    next: int = 1
    #: Batches given up because the spool was full, and batches the server refused.
    dropped: int = 0
    refused: int = 0


class Spool:
    """A folder of encoded batches. Its uuid and a running number name each batch for ever."""

    def __init__(
        self, folder: Path, limit: int = DEFAULT_LIMIT, *, power_loss: bool = True
    ) -> None:
        """Without ``power_loss`` nothing is forced to disk: for copies, of which some may go."""
        self.folder = folder
        self.limit = limit
        self._forced = power_loss
        #: Whoever else wants every batch, as bytes.
        self.copies: list[Callable[[bytes], None]] = []
        #: Why the last batch that was dropped was dropped.
        self.problem = ""
        # The sampling loop puts in what another thread delivers.
        self._mutex = threading.RLock()
        try:
            self._lock = _lock(folder)
            try:
                for half in folder.glob(".*.new"):
                    half.unlink(missing_ok=True)
                self._state = self._load()
                self._sizes = {path.name: path.stat().st_size for path in self._files()}
            except OSError:
                os.close(self._lock)
                raise
        except BlockingIOError:
            raise SpoolError(f"the spool {folder} is in use by another agent") from None
        except OSError as error:
            raise SpoolError(f"the spool {folder} cannot be used: {error.strerror}") from None
        if self._sizes:
            # The counter's file may be older than the last batch when the power went.
            last = max(int(name.removesuffix(_SUFFIX)) for name in self._sizes)
            self._state.next = max(self._state.next, last + 1)

    @property
    def uuid(self) -> str:
        return self._state.uuid

    @property
    def dropped(self) -> int:
        return self._state.dropped

    def count_dropped(self) -> None:
        """A batch had to be given up before it came to the disk."""
        self._state.dropped += 1
        self.problem = f"the disk of the spool {self.folder} was too slow; batches were dropped"

    @property
    def refused(self) -> int:
        return self._state.refused

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in self.folder.glob("*" + _SUFFIX)
            if path.stem.isascii() and path.stem.isdigit()
        )

    def _load(self) -> _State:
        try:
            return msgspec.json.decode((self.folder / "spool.json").read_bytes(), type=_State)
        except FileNotFoundError:
            pass
        except (msgspec.DecodeError, msgspec.ValidationError):
            # A new name starts a new numbering, so nothing can be taken for a repetition.
            pass
        state = _State(uuid=os.urandom(16).hex())
        self._write("spool.json", msgspec.json.encode(state))
        return state

    def _write(self, name: str, data: bytes) -> None:
        temporary = self.folder / f".{name}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                # A disk that is almost full takes a part and refuses the next.
                rest = rest[os.write(descriptor, rest) :]
            if self._forced:
                os.fsync(descriptor)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        os.replace(temporary, self.folder / name)
        if self._forced:
            self._sync_folder()

    def _sync_folder(self) -> None:
        """Without this a power loss may take the new name of a file whose content is safe."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def put(self, batch: Batch) -> bool:
        """Number the batch and keep it; False when it could not be written, which is counted."""
        with self._mutex:
            return self._put(batch)

    def _put(self, batch: Batch) -> bool:
        batch.spool = self._state.uuid
        batch.sequence = self._state.next
        data = encode(batch)
        for copy in self.copies:
            copy(data)
        return self._keep(data)

    def keep(self, data: bytes) -> None:
        """Keep a copy of a batch that has its name from another spool."""
        with self._mutex:
            self._keep(data)

    def _keep(self, data: bytes) -> bool:
        name = f"{self._state.next:012d}{_SUFFIX}"
        self._state.next += 1
        try:
            self._make_room(len(data))
            self._write(name, data)
        except OSError as error:
            # A full disk, one gone read-only, a folder that was removed: the job goes on.
            self.problem = f"a batch could not be written to {self.folder}: {error.strerror}"
            self._state.dropped += 1
            return False
        self._sizes[name] = len(data)
        self._save()
        return True

    def _save(self) -> None:
        try:
            self._write("spool.json", msgspec.json.encode(self._state))
        except OSError:
            # The numbers are also in the names of the batches; only the counts would be lost.
            pass

    def _make_room(self, size: int) -> None:
        while self._sizes and self.size + size > self.limit:
            self._remove(min(self._sizes))
            self._state.dropped += 1
            self.problem = f"the spool {self.folder} was full; the oldest batches were dropped"

    def pending(self) -> Iterator[tuple[str, bytes]]:
        """The batches that wait, the oldest first."""
        with self._mutex:
            names = sorted(self._sizes)
        for name in names:
            try:
                data = (self.folder / name).read_bytes()
            except FileNotFoundError:
                # Dropped in the meantime to make room.
                self._sizes.pop(name, None)
                continue
            yield name, data

    def done(self, name: str) -> None:
        """The server has it."""
        with self._mutex:
            self._remove(name)

    def refuse(self, name: str) -> None:
        """The server will never take it: put it aside, where a person can look at it."""
        aside = self.folder / "refused"
        with self._mutex:
            self._sizes.pop(name, None)
            self._state.refused += 1
            try:
                aside.mkdir(mode=0o700, exist_ok=True)
                os.replace(self.folder / name, aside / name)
            except OSError:
                # Dropped in the meantime, or the disk is full: it must not stand in the way.
                (self.folder / name).unlink(missing_ok=True)
            self._save()
            self._bound_refused(aside)

    def _bound_refused(self, aside: Path) -> None:
        """The newest are enough to see what is wrong; all of them would fill the disk in time."""
        size = 0
        for place, path in enumerate(sorted(aside.glob("*" + _SUFFIX), reverse=True)):
            size += path.stat().st_size
            if place and (place >= _REFUSED or size > self.limit // 8):
                path.unlink(missing_ok=True)

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        self._sizes.pop(name, None)

    def close(self) -> None:
        os.close(self._lock)

    def remove(self) -> bool:
        """Close the spool and remove its folder, unless something is left in it."""
        with self._mutex:
            empty = not self._sizes and not (self.folder / "refused").exists()
            try:
                # The lock goes last: whoever takes it up then sees that its file is gone.
                if empty:
                    for name in ("spool.json", "lock"):
                        (self.folder / name).unlink(missing_ok=True)
                    self.folder.rmdir()
            except OSError:
                empty = False
            self.close()
            return empty


def _lock(folder: Path) -> int:
    """Take the folder for ourselves; raises BlockingIOError where another agent has it."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return lock
        except OSError:
            os.close(lock)
            raise
        # Its former owner removed the folder just before we got the lock.
        os.close(lock)


#: Batches that may wait for the disk; more are given up, and counted with the spool's own.
_LONGEST: Final = 256


class SpoolWriter:
    """Takes batches at once and writes them in their order, in a thread of its own."""

    def __init__(self, spool: Spool, written: Callable[[], None] | None = None) -> None:
        self._spool = spool
        self._written = written
        self._waiting: queue.Queue[Batch | None] = queue.Queue(_LONGEST)
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        try:
            self._waiting.put_nowait(batch)
        except queue.Full:
            self._spool.count_dropped()

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            for piece in split_batch(batch):
                self._spool.put(piece)
            if self._written is not None:
                self._written()

    def end(self) -> None:
        """Write what waits, and stop."""
        self._waiting.put(None)
        self._thread.join()


#: Bytes of a header, far below the server's bound: one job with ten thousand programs in paths of
#: thousands of characters must not cost all jobs of the node their batch.
MAX_BATCH: Final = 2 * 2**20
#: What a record takes on the wire besides its path, generously.
_RECORD: Final = 320
_PART: Final = 2048

_Item = TypeVar("_Item", ExecutableUse, StepUse)


def split_batch(batch: Batch, largest: int = MAX_BATCH) -> Iterator[Batch]:
    """The batch, or several with the same content; a job's last word stays the last."""
    pieces = [piece for part in batch.parts for piece in _pieces(part, largest)]
    jobs = batch.jobs
    taken: list[JobPart] = []
    size = 0
    for piece in pieces:
        more = _size(piece.executables) + _size(piece.steps) + _PART
        if taken and size + more > largest:
            yield msgspec.structs.replace(batch, jobs=jobs, parts=taken)
            jobs, taken, size = [], [], 0
        taken.append(piece)
        size += more
    yield msgspec.structs.replace(batch, jobs=jobs, parts=taken)


def _pieces(part: JobPart, largest: int) -> list[JobPart]:
    """A part, after parts of the same sighting with what was too much of executables and steps."""
    *ahead, executables = _runs(part.executables, largest)
    *steps_ahead, steps = _runs(part.steps, largest)
    pieces = [JobPart(sighting=part.sighting, epoch=part.epoch, executables=run) for run in ahead]
    pieces += [JobPart(sighting=part.sighting, epoch=part.epoch, steps=run) for run in steps_ahead]
    if not pieces:
        return [part]
    return [*pieces, msgspec.structs.replace(part, executables=executables, steps=steps)]


def _runs(items: list[_Item], largest: int) -> list[list[_Item]]:
    """The items in order, in at least one list, none of them too large."""
    if _size(items) <= largest:
        return [items]
    runs: list[list[_Item]] = [[]]
    size = 0
    for item in items:
        more = _size([item])
        if runs[-1] and size + more > largest // 2:
            runs.append([])
            size = 0
        runs[-1].append(item)
        size += more
    return runs


def _size(items: Sequence[ExecutableUse] | Sequence[StepUse]) -> int:
    names = sum(len(item.path) for item in items if isinstance(item, ExecutableUse))
    return names + _RECORD * len(items)
