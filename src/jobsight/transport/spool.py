"""The spool: batches on disk between the agent and the server, bounded and in order.

:class:`Spool` is the directory. Each batch is a file that is synced before it counts as written.
:class:`SpoolWriter` writes batches in a thread, because a disk that is slow to sync must not stop
the sampling loop. Users decide how many executables a job has: :class:`SentRows` leaves out those
whose figures the spool has already, and :func:`split_batch` keeps batches below the size that the
server accepts.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from jobsight.errors import JobsightError
from jobsight.model import Batch, ExecutableUse, JobPart, Sighting, StepUse
from jobsight.transport.wire import encode
from jobsight.util.decoding import decode_json_as
from jobsight.util.durable import write_atomically
from jobsight.util.locks import AlreadyRunning, LockFile
from jobsight.util.log_once import LogOnce
from jobsight.util.ownership import check_directory
from jobsight.util.signals import signals_blocked

logger = logging.getLogger(__name__)

_SUFFIX: Final = ".batch"
#: Refused batches that are kept for inspection.
MAX_REFUSED: Final = 1000
DEFAULT_LIMIT: Final = 256 * 2**20


class SpoolError(JobsightError):
    """The spool cannot be used; the text says why."""


class _State(msgspec.Struct):
    uuid: str
    #: Sequence number of the next batch.
    next: int = 1
    #: Batches dropped because the spool was full, and batches that the server refused.
    dropped: int = 0
    refused: int = 0


class Spool:
    """A directory of encoded batches. Its UUID and the sequence number identify each batch."""

    def __init__(self, directory: Path, limit: int = DEFAULT_LIMIT, *, sync: bool = True) -> None:
        """Without ``sync`` nothing is forced to disk: for copies, of which some may be lost."""
        self.directory = directory
        self.limit = limit
        self._sync = sync
        #: Called with each encoded batch.
        self.copies: list[Callable[[bytes], None]] = []
        #: Why the last dropped batch was dropped.
        self.problem = ""
        # The sampling loop writes while another thread delivers.
        self._mutex = threading.RLock()
        if directory.is_dir():
            check_directory(directory, "the spool")
        try:
            self._lock = LockFile(directory / "lock", "agent", mode=0o600, make_directory=True)
        except AlreadyRunning:
            raise SpoolError(f"the spool {directory} is in use by another agent") from None
        except JobsightError as error:
            raise SpoolError(f"the spool {directory} cannot be used: {error}") from None
        try:
            for incomplete in directory.glob(".*.new"):
                incomplete.unlink(missing_ok=True)
            self._state = self._load()
            self._sizes = {path.name: path.stat().st_size for path in self._files()}
        except OSError as error:
            self._lock.close(remove=False)
            raise SpoolError(f"the spool {directory} cannot be used: {error.strerror}") from None
        if self._sizes:
            # After a power failure the state may be older than the last batch.
            last = max(int(name.removesuffix(_SUFFIX)) for name in self._sizes)
            self._state.next = max(self._state.next, last + 1)

    @property
    def uuid(self) -> str:
        return self._state.uuid

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next batch."""
        return self._state.next

    @property
    def dropped(self) -> int:
        return self._state.dropped

    def count_dropped(self, problem: str = "") -> None:
        """Count a batch that was dropped before it was written."""
        self._state.dropped += 1
        self.problem = problem or (
            f"the disk of the spool {self.directory} was too slow; batches were dropped"
        )

    @property
    def refused(self) -> int:
        return self._state.refused

    @property
    def lost(self) -> int:
        """Batches that the server will never store."""
        return self._state.dropped + self._state.refused

    @property
    def size(self) -> int:
        return sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in self.directory.glob("*" + _SUFFIX)
            if path.stem.isascii() and path.stem.isdigit()
        )

    def _load(self) -> _State:
        try:
            return decode_json_as(_State, (self.directory / "spool.json").read_bytes())
        except FileNotFoundError:
            pass
        except (msgspec.DecodeError, msgspec.ValidationError):
            # A new UUID starts a new numbering, so that no batch is parts for a duplicate.
            pass
        state = _State(uuid=os.urandom(16).hex())
        self._write("spool.json", msgspec.json.encode(state))
        return state

    def _write(self, name: str, data: bytes) -> None:
        write_atomically(self.directory / name, data, mode=0o600, sync=self._sync)

    def put(self, batch: Batch) -> bool:
        """Assign the sequence number and write the batch; False if it was dropped and counted."""
        with self._mutex:
            return self._put(batch)

    def _put(self, batch: Batch) -> bool:
        batch.spool = self._state.uuid
        batch.sequence = self._state.next
        data = encode(batch)
        for copy in self.copies:
            copy(data)
        return self._store(data)

    def put_encoded(self, data: bytes) -> None:
        """Write a copy of a batch that another spool has numbered."""
        with self._mutex:
            self._store(data)

    def _store(self, data: bytes) -> bool:
        name = f"{self._state.next:012d}{_SUFFIX}"
        self._state.next += 1
        try:
            self._drop_oldest(len(data))
            self._write(name, data)
        except OSError as error:
            # The disk is full or read-only, or the directory was removed: measuring continues.
            self.problem = f"a batch could not be written to {self.directory}: {error.strerror}"
            self._state.dropped += 1
            return False
        self._sizes[name] = len(data)
        self._save()
        return True

    def _save(self) -> None:
        try:
            self._write("spool.json", msgspec.json.encode(self._state))
        except OSError:
            # The sequence numbers are also in the file names; only the counts would be lost.
            pass

    def _drop_oldest(self, size: int) -> None:
        while self._sizes and self.size + size > self.limit:
            self._remove(min(self._sizes))
            self._state.dropped += 1
            self.problem = f"the spool {self.directory} was full; the oldest batches were dropped"

    def pending(self) -> Iterator[tuple[str, bytes]]:
        """The names and contents of the pending batches, oldest first."""
        with self._mutex:
            names = sorted(self._sizes)
        for name in names:
            try:
                data = (self.directory / name).read_bytes()
            except FileNotFoundError:
                # Dropped in the meantime because the spool was full.
                self._sizes.pop(name, None)
                continue
            yield name, data

    def done(self, name: str) -> None:
        """Remove a batch that the server has stored."""
        with self._mutex:
            self._remove(name)

    def refuse(self, name: str) -> None:
        """Quarantine a batch that the server will never accept."""
        quarantine = self.directory / "refused"
        with self._mutex:
            self._sizes.pop(name, None)
            self._state.refused += 1
            try:
                quarantine.mkdir(mode=0o700, exist_ok=True)
                os.replace(self.directory / name, quarantine / name)
            except OSError:
                # Dropped in the meantime, or the disk is full: it must not block the others.
                (self.directory / name).unlink(missing_ok=True)
            self._save()
            self._bound_refused(quarantine)

    def _bound_refused(self, quarantine: Path) -> None:
        """Delete the oldest refused batches, which would fill the disk in time."""
        size = 0
        for index, path in enumerate(sorted(quarantine.glob("*" + _SUFFIX), reverse=True)):
            size += path.stat().st_size
            if index and (index >= MAX_REFUSED or size > self.limit // 8):
                path.unlink(missing_ok=True)

    def _remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)
        self._sizes.pop(name, None)

    def close(self) -> None:
        self._lock.close(remove=False)

    def remove(self) -> bool:
        """Close the spool and remove its directory if it is empty; True if it was."""
        with self._mutex:
            empty = not self._sizes and not (self.directory / "refused").exists()
            try:
                # Removed under the lock: another process that waits for it notices.
                if empty:
                    for name in ("spool.json", "lock"):
                        (self.directory / name).unlink(missing_ok=True)
                    self.directory.rmdir()
            except OSError:
                empty = False
            self.close()
            return empty


#: Batches that wait for the disk, and the bytes of their records in memory; more are dropped and
#: counted.
MAX_QUEUED: Final = 256
MAX_QUEUED_SIZE: Final = 16 * 2**20


class SpoolWriter:
    """Queues batches without blocking and writes them in order in a thread."""

    def __init__(self, spool: Spool, written: Callable[[], None] | None = None) -> None:
        self._spool = spool
        self._written = written
        self._sent = SentRows()
        self._waiting: queue.Queue[tuple[Batch, int, bool] | None] = queue.Queue(MAX_QUEUED)
        self._size_lock = threading.Lock()
        self._queued_size = 0
        self._log = LogOnce(logger)
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        with signals_blocked():
            self._thread.start()

    def put(self, batch: Batch, *, complete: bool = False) -> None:
        """Queue a batch; ``complete`` if all of its rows are written, sent before or not."""
        size = sum(_size(part.executables) + _size(part.steps) for part in batch.parts)
        with self._size_lock:
            # A single batch is always accepted.
            fits = not self._queued_size or self._queued_size + size <= MAX_QUEUED_SIZE
        try:
            if not fits:
                raise queue.Full
            self._waiting.put_nowait((batch, size, complete))
        except queue.Full:
            self._spool.count_dropped()
            return
        with self._size_lock:
            self._queued_size += size

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            batch, size, complete = item
            try:
                changed = self._sent.changes(batch, self._spool.lost, complete=complete)
                for piece in split_batch(changed):
                    if self._spool.put(piece):
                        self._sent.add(piece)
                if self._written is not None:
                    self._written()
            except Exception as error:
                # One batch must not end the thread, and with it the measurement of all jobs.
                problem = f"a batch could not be written: {type(error).__name__}: {error}"
                self._spool.count_dropped(problem)
                self._log.report(type(error).__name__, problem, level=logging.ERROR, error=error)
            finally:
                with self._size_lock:
                    self._queued_size -= size

    def end(self) -> None:
        """Write the queued batches and stop the thread."""
        self._waiting.put(None)
        self._thread.join()


#: Seconds after which all rows of a job are sent again: a server whose store was restored from a
#: backup does not have those that were sent since.
COMPLETE_INTERVAL: Final = 600.0


class SentRows:
    """The figures of executables that the spool has accepted, by job.

    They are cumulative, so that a row that has not changed since need not be sent again. After a
    loss all of them are sent.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: dict[tuple[Sighting, str], _SentJob] = {}
        self._lost = 0

    def changes(self, batch: Batch, lost: int, *, complete: bool = False) -> Batch:
        """The batch without rows that were sent before. ``lost`` counts the batches that were
        accepted and lost since."""
        if lost != self._lost:
            self._lost = lost
            self._jobs.clear()
        parts = [self._changes(part, complete=complete) for part in batch.parts]
        return msgspec.structs.replace(batch, parts=parts)

    def _changes(self, part: JobPart, *, complete: bool) -> JobPart:
        key = (part.sighting, part.epoch)
        if part.final:
            # No other part follows.
            self._jobs.pop(key, None)
            return part
        job = self._jobs.get(key)
        now = self._clock()
        if job is None or complete or now >= job.complete_at:
            self._jobs[key] = _SentJob(now + COMPLETE_INTERVAL)
            return part
        changed = [
            use for use in part.executables if job.rows.get((use.path, use.path_known)) != use
        ]
        return msgspec.structs.replace(part, executables=changed)

    def add(self, batch: Batch) -> None:
        """A batch, or a piece of it, was accepted."""
        for part in batch.parts:
            job = self._jobs.get((part.sighting, part.epoch))
            if job is not None:
                job.rows.update({(use.path, use.path_known): use for use in part.executables})


class _SentJob:
    def __init__(self, complete_at: float) -> None:
        #: When all rows are sent again.
        self.complete_at = complete_at
        self.rows: dict[tuple[bytes, bool], ExecutableUse] = {}


#: Bytes of a header, far below the server's limit: one job with ten thousand executables in paths
#: of thousands of characters must not cost all jobs of the node their batch.
MAX_BATCH: Final = 2 * 2**20
#: Upper bound of the bytes of a record on the wire, without its path.
_RECORD: Final = 320
_PART: Final = 2048
#: The same for a GPU with its names and the reasons of its coverage.
_GPU: Final = 4096

_Item = TypeVar("_Item", ExecutableUse, StepUse)


def split_batch(batch: Batch, largest: int = MAX_BATCH) -> Iterator[Batch]:
    """The batch, or several with the same content; the final part of a job stays the last, and the
    series of the node are in the first."""
    pieces = [piece for part in batch.parts for piece in _pieces(part, largest)]
    jobs = batch.jobs
    node_series = batch.node_series
    parts: list[JobPart] = []
    size = 0
    for piece in pieces:
        more = _size(piece.executables) + _size(piece.steps) + _GPU * len(piece.gpus) + _PART
        if parts and size + more > largest:
            yield msgspec.structs.replace(batch, jobs=jobs, parts=parts, node_series=node_series)
            jobs, parts, size, node_series = [], [], 0, None
        parts.append(piece)
        size += more
    yield msgspec.structs.replace(batch, jobs=jobs, parts=parts, node_series=node_series)


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
