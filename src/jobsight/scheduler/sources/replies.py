"""Replies of Slurm as they came, kept for some time so that they can be read again.

A folder of them is what the source "recorded" reads. JSON lies there as it is, rows of text behind
a line that names their columns and the mark between them; both compressed.
"""

from __future__ import annotations

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

logger = logging.getLogger("jobsight.scheduler")

JSON, ROWS = ".json.zst", ".rows.zst"
_CHUNK = 1 << 18
#: The folder is looked through for what is too old no more often than this, in seconds.
_BETWEEN = 600.0


class Layout(msgspec.Struct):
    """How the rows of a text are divided."""

    columns: Sequence[str]
    mark: str


class Replies:
    """Keeps the replies of one cluster."""

    def __init__(
        self,
        folder: Path,
        cluster: str,
        days: float,
        size_limit: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder / quote(cluster, safe="")
        self._seconds = days * 86400
        self._size_limit = size_limit
        self._clock = clock
        self._pruned = 0.0

    def keep(
        self, name: str, chunks: Iterable[bytes], layout: Layout | None = None
    ) -> Iterator[bytes]:
        """Hand the chunks on, and keep a copy of a reply that came to its end.

        A folder that cannot be written costs the copy, never the scrape.
        """
        suffix = JSON if layout is None else ROWS
        copy = _Copy(self.folder, f"{name}-{self._moment()}{suffix}")
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

    def _moment(self) -> str:
        whole = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        return f"{whole}-{time.monotonic_ns() % 10**9:09d}"

    def _prune(self) -> None:
        now = self._clock()
        if now - self._pruned < _BETWEEN:
            return
        self._pruned = now
        kept = 0
        # The newest first, so that the oldest go where there are too many.
        for file in sorted(self.folder.glob("*.zst"), key=_age, reverse=True):
            status = file.stat()
            kept += status.st_size
            if now - status.st_mtime > self._seconds or kept > self._size_limit:
                file.unlink(missing_ok=True)


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


class _Copy:
    """One reply on its way into a file, which appears whole or not at all."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / name
        self._partial = folder / f".{name}.{os.getpid()}.partial"
        self._packer = zstandard.ZstdCompressor(level=3).compressobj()
        self._opened: BinaryIO | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._opened = self._partial.open("xb")
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        self._put(self._packer.compress(data))

    def finish(self) -> None:
        self._put(self._packer.flush())
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

    def _put(self, data: bytes) -> None:
        if self._opened is None:
            return
        try:
            self._opened.write(data)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s: the reply is not kept: %s", self._file, error.strerror)
        self.close()
        self._opened = None


def read_chunks(file: Path) -> Iterator[bytes]:
    """The content of a kept or recorded reply, piece by piece."""
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
        raise SourceError(f"{file}: is damaged: {error}") from None


def read_rows(file: Path) -> tuple[Layout, Iterator[bytes]]:
    """A kept text: how it is divided, and its content."""
    chunks = read_chunks(file)
    first = b""
    while b"\n" not in first:
        chunk = next(chunks, b"")
        if not chunk:
            raise SourceError(f"{file}: is cut short")
        first += chunk
    line, _, rest = first.partition(b"\n")
    try:
        layout = msgspec.json.decode(line, type=Layout)
    except msgspec.DecodeError:
        raise SourceError(f"{file}: does not begin with the names of its columns") from None
    return layout, _chained(rest, chunks)


def _chained(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from others
