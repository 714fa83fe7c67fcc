"""The header of a chunk: which columns it has, in what way each is written, and how many rows."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import msgspec

from jobsight.store.frames import ChunkError
from jobsight.store.transforms import MAX_DECIMALS, MAX_RATE, METHODS, PLAIN
from jobsight.transport.wire import Kind, Layout

MAX_ROWS: Final = 1 << 27
#: The kind of a column by that of numpy's type.
KINDS: Final[dict[str, Kind]] = {"i": "q", "f": "d"}
_LENGTH: Final = struct.Struct("<I")


class ChunkColumn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One column and how to undo what was done to it."""

    name: str
    kind: Kind
    method: int
    #: Which of the eight byte planes are stored, lowest first.
    planes: int
    missing: bool = False
    base: int = 0
    step: int = 0
    scale: int = 1
    rate: float = 0.0
    decimals: int | None = None


class Header(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a chunk begins with."""

    rows: int
    #: The times come first, under an empty name.
    columns: list[ChunkColumn]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Header)


# An agent sends the same metrics again and again.
@lru_cache(maxsize=1024)
def header_of(rows: int, layout: Layout) -> bytes:
    """The header of columns as they came off the wire."""
    return plain_header(rows, layout.kinds)


@lru_cache(maxsize=64)
def plain_header(rows: int, kinds: tuple[tuple[str, Kind], ...]) -> bytes:
    """The header of columns as they are."""
    columns = [ChunkColumn("", "q", PLAIN, 255)]
    columns += [ChunkColumn(name, kind, PLAIN, 255) for name, kind in kinds]
    return _ENCODER.encode(Header(rows, columns))


def join_header(header: bytes) -> bytes:
    """The header with its length before it."""
    return _LENGTH.pack(len(header)) + header


def encode_header(header: Header) -> bytes:
    return _ENCODER.encode(header)


def read_header(body: bytes) -> tuple[Header, int, bool]:
    """The header of unpacked bytes, where the columns begin, and whether they lie there as they
    came."""
    if len(body) < _LENGTH.size:
        raise ChunkError("a chunk of a series ends before its header")
    (length,) = _LENGTH.unpack_from(body)
    position = _LENGTH.size + length
    header, size, plain = _parse_header(body[_LENGTH.size : position])
    if position + size != len(body):
        raise ChunkError(f"a chunk has {len(body)} bytes, its header announces {position + size}")
    return header, position, plain


@lru_cache(maxsize=256)
def _parse_header(packed: bytes) -> tuple[Header, int, bool]:
    try:
        header = _DECODER.decode(packed)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise ChunkError(f"the header of a chunk cannot be read: {error}") from None
    if not 0 <= header.rows <= MAX_ROWS or not header.columns or header.columns[0].kind != "q":
        raise ChunkError("the header of a chunk makes no sense: no rows or no times")
    announced = 0
    for column in header.columns:
        if not _makes_sense(column):
            raise ChunkError(f"the column {column.name!r} of a chunk is written in an unknown way")
        announced += ((header.rows + 7) // 8) * column.missing
        announced += header.rows * column.planes.bit_count()
    plain = {column.method == PLAIN for column in header.columns}
    if len(plain) > 1:
        raise ChunkError("a chunk has columns as they came beside packed ones")
    return header, announced, plain == {True}


def _makes_sense(column: ChunkColumn) -> bool:
    if column.method == PLAIN:
        return column.planes == 255 and not column.missing
    return (
        column.method in METHODS
        and 0 <= column.planes < 256
        and abs(column.rate) < MAX_RATE
        and (column.decimals is None or 0 <= column.decimals <= MAX_DECIMALS)
    )
