"""A whole store in one file, from any engine and for any engine.

    zstd( length: u32 LE | message: msgpack, again and again )

The messages are those of :mod:`jobsight.store.stream`: an opening, blocks of rows, and a closing
with the digest of all that came before. A file without its closing was cut short.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from jobsight.errors import StoreError
from jobsight.store.database import Database, open_database
from jobsight.store.progress import Progress, silent
from jobsight.store.stream import Block, Opening, load, read, refuse_newer, snapshot

LEVEL = 3
#: A piece of a file that is read at once; a message may be longer.
_PIECE = 1 << 20
_LENGTH = struct.Struct("<I")


class BackupError(StoreError):
    """A file that is no backup, or no longer."""


class Closing(msgspec.Struct, array_like=True, tag="closing"):
    """What comes last."""

    rows: int
    digest: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Opening | Block | Closing).decode


def back_up(
    database: Database, file: Path, progress: Progress = silent, *, replace: bool = False
) -> Opening:
    """Write all of a store into a file while others go on writing to the store.

    The file is there whole or not at all.
    """
    if file.exists() and not replace:
        raise BackupError(f"{file} is there already; choose another name, or --force")
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        # Jobs are their users' own business: nobody else reads the file.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened, snapshot(database) as connection:
            opening, blocks = read(connection)
            _write(opened, opening, blocks, progress)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(partial, file)
        _sync_folder(file.parent)
    except OSError as error:
        raise BackupError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return opening


def _write(file: BinaryIO, opening: Opening, blocks: Iterator[Block], progress: Progress) -> None:
    digest = hashlib.blake2b(digest_size=32)
    rows, whole = 0, sum(opening.counts.values())
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as stream:

        def put(message: Opening | Block | Closing) -> None:
            body = _encode(message)
            body = _LENGTH.pack(len(body)) + body
            digest.update(body)
            stream.write(body)

        put(opening)
        for block in blocks:
            put(block)
            rows += len(block.rows)
            progress("rows", rows, whole)
        put(Closing(rows, digest.digest()))


def restore(
    location: str | os.PathLike[str],
    file: Path,
    progress: Progress = silent,
    *,
    replace: bool = False,
) -> Opening:
    """Make a store of a backup, which is read through to its end before anything is changed."""
    opening = verify(file, progress)
    with closing(open_database(location)) as database:
        load(database, opening, _rows(file), progress, replace=replace)
    return opening


def verify(file: Path, progress: Progress = silent) -> Opening:
    """Read a whole backup, or raise an error that says what is wrong with it."""
    messages = _messages(file)
    opening = next(messages, None)
    if not isinstance(opening, Opening):
        raise BackupError(f"{file} is not a backup of jobsight")
    counts = dict.fromkeys(opening.counts, 0)
    rows, whole = 0, sum(opening.counts.values())
    for message in messages:
        if isinstance(message, Block):
            counts[message.table] = counts.get(message.table, 0) + len(message.rows)
            rows += len(message.rows)
            progress("rows checked", rows, whole)
    if counts != opening.counts:
        raise BackupError(f"{file} does not hold the rows that it announces")
    refuse_newer(opening)
    return opening


def _rows(file: Path) -> Iterator[Block]:
    return (message for message in _messages(file) if isinstance(message, Block))


def _messages(file: Path) -> Iterator[Opening | Block | Closing]:
    """All messages; an error where the last is not the closing of exactly these."""
    digest = hashlib.blake2b(digest_size=32)
    try:
        with file.open("rb") as opened:
            reader = zstandard.ZstdDecompressor().stream_reader(opened, read_size=_PIECE)
            while True:
                length = _take(reader, _LENGTH.size)
                body = _take(reader, *_LENGTH.unpack(length))
                message = _decode(body)
                if isinstance(message, Closing):
                    break
                yield message
                digest.update(length)
                digest.update(body)
            if message.digest != digest.digest() or reader.read(1) or opened.read(1):
                raise BackupError(f"{file} is damaged: its digest is not that of its rows")
            yield message
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, EOFError) as error:
        raise BackupError(
            f"{file} is no backup of jobsight, or damaged, or cut short ({error}); "
            "nothing was changed"
        ) from None
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror}") from None


def _take(reader: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    # Piece by piece: a length that is damaged must not ask for gigabytes at once.
    pieces = []
    while size:
        piece = reader.read(min(size, _PIECE))
        if not piece:
            raise EOFError("it ends in the middle")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
