"""Keeps replies of Slurm as received, for a limited time, so that they can be read again.

The source ``recorded`` reads a directory of them. JSON is stored unchanged, rows of text after a
line with their columns and delimiter; both are compressed.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import msgspec
import zstandard

from jobsight.scheduler.records import SourceError
from jobsight.util.decoding import decode_json_as

logger = logging.getLogger(__name__)

JSON, ROWS = ".json.zst", ".rows.zst"
_CHUNK = 1 << 18
#: Seconds between two searches for expired replies.
_PRUNE_INTERVAL = 600.0


class Layout(msgspec.Struct):
    """How the rows of a text are separated into fields."""

    columns: Sequence[str]
    #: Stored under its former name.
    delimiter: str = msgspec.field(name="mark")


class Replies:
    """Keeps the replies of one cluster."""

    def __init__(
        self,
        directory: Path,
        cluster: str,
        days: float,
        size_limit: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory / quote(cluster, safe="")
        self._seconds = days * 86400
        self._size_limit = size_limit
        self._clock = clock
        self._pruned = 0.0

    def keep(
        self, name: str, chunks: Iterable[bytes], layout: Layout | None = None
    ) -> Iterator[bytes]:
        """Yield the chunks, and keep a copy of a reply that was read to its end.

        If the directory cannot be written, the copy is lost and the scrape continues.
        """
        suffix = JSON if layout is None else ROWS
        copy = _Copy(self.directory, f"{name}-{self._timestamp()}{suffix}")
        try:
            if layout is not None:
                copy.write(msgspec.json.encode(layout) + b"\n")
            for chunk in chunks:
                copy.write(chunk)
                yield chunk
            copy.finish()
        finally:
            copy.close()
        self._prune()

    def _timestamp(self) -> str:
        seconds = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        return f"{seconds}-{time.monotonic_ns() % 10**9:09d}"

    def _prune(self) -> None:
        now = self._clock()
        if now - self._pruned < _PRUNE_INTERVAL:
            return
        self._pruned = now
        kept = 0
        # The newest first, so that the oldest are removed beyond the size limit.
        for file in sorted(self.directory.glob("*.zst"), key=_modified, reverse=True):
            status = file.stat()
            kept += status.st_size
            if now - status.st_mtime > self._seconds or kept > self._size_limit:
                file.unlink(missing_ok=True)


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


class _Copy:
    """A reply that is written to a file; the file appears when it is complete."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / name
        self._partial = directory / f".{name}.{os.getpid()}.partial"
        self._compressor = zstandard.ZstdCompressor(level=3).compressobj()
        self._opened: BinaryIO | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._opened = self._partial.open("xb")
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        self._append(self._compressor.compress(data))

    def finish(self) -> None:
        self._append(self._compressor.flush())
        if self._opened is None:
            return
        try:
            self._opened.close()
            os.replace(self._partial, self._file)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._partial.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        if self._opened is None:
            return
        try:
            self._opened.write(data)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s: the copy of a reply cannot be written: %s", self._file, error.strerror)
        self.close()
        self._opened = None


def read_chunks(file: Path) -> Iterator[bytes]:
    """The content of a kept or recorded reply."""
    try:
        with file.open("rb") as opened:
            if file.suffix != ".zst":
                while chunk := opened.read(_CHUNK):
                    yield chunk
                return
            with zstandard.ZstdDecompressor().stream_reader(opened) as reader:
                while chunk := reader.read(_CHUNK):
                    yield chunk
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}") from None
    except zstandard.ZstdError as error:
        raise SourceError(f"{file}: is corrupt: {error}") from None


def read_rows(file: Path) -> tuple[Layout, Iterator[bytes]]:
    """The layout and the content of a kept text."""
    chunks = read_chunks(file)
    first = b""
    while b"\n" not in first:
        chunk = next(chunks, b"")
        if not chunk:
            raise SourceError(f"{file}: is truncated")
        first += chunk
    line, _, rest = first.partition(b"\n")
    try:
        layout = decode_json_as(Layout, line)
    except msgspec.DecodeError:
        raise SourceError(f"{file}: does not begin with a line of its columns") from None
    return layout, itertools.chain([rest], chunks)
