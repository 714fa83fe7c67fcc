"""Compressed frames: each carries its size and a checksum, and damage is told.

The codec of the series: columns of one run and node over a stretch of time, as bytes.

    version: one byte | zstd( length of header: u32 LE | header: msgpack | planes of each column )

The header names each column with its method (:mod:`jobsight.store.series.packing`). The words of a
column lie transposed: the lowest byte of every row, then the next; planes of zeros only are left
out, so a constant column is its header alone. The place of each column follows from the header,
hence one can be read without the others. Columns of a part that has just arrived lie there as they
came. The checksum of the zstd frame tells damage.

The header of a chunk: which columns it has, in what way each is written, and how many rows.

A stretch of curves by the differences of its rows, all columns at once.

That is how a chunk is written which is packed again when its run ends. It takes a third more room
than the best method for each column, a twentieth of the time to write and a tenth to read.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from jobsight.errors import StoreError
from jobsight.model import Column, Series
from jobsight.store.series.packing import (
    DELTA,
    FEW_ROWS,
    MAX_DECIMALS,
    MAX_RATE,
    METHODS,
    MISSING_FLOAT,
    PLAIN,
    Floats,
    Integers,
    Packed,
    Values,
    Words,
    groups,
    pack,
    unpack,
    unzigzag,
    zigzag,
)
from jobsight.transport.wire import Kind, Layout, Table

#: For parts as they arrive, for a few that are joined while a job runs, and for chunks that stay.
ARRIVING_LEVEL = -1
JOINED_LEVEL = 3
LASTING_LEVEL = 6
#: Nothing of ours unpacks to more; it bounds the memory that damaged bytes can ask for.
MAX_UNPACKED = 1 << 30

_contexts = threading.local()


class ChunkError(StoreError):
    """The bytes are not a chunk, or no longer."""


def compress(body: bytes, level: int = JOINED_LEVEL) -> bytes:
    """Pack bytes into a frame."""
    # A context costs more than a small chunk, and must not be shared between threads.
    known: dict[int, zstandard.ZstdCompressor] = _contexts.__dict__.setdefault("compressors", {})
    if level not in known:
        known[level] = zstandard.ZstdCompressor(
            level=level, write_checksum=True, write_content_size=True
        )
    return known[level].compress(body)


def decompress(data: bytes) -> bytes:
    """Unpack a frame, or say that it is damaged."""
    if not hasattr(_contexts, "decompressor"):
        _contexts.decompressor = zstandard.ZstdDecompressor()
    context: zstandard.ZstdDecompressor = _contexts.decompressor
    try:
        frame = zstandard.get_frame_parameters(data)
        if not frame.has_checksum or frame.content_size > MAX_UNPACKED:
            raise ChunkError("a chunk of a series is damaged: its frame is not one of ours")
        return context.decompress(data, max_output_size=MAX_UNPACKED, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise ChunkError(f"a chunk of a series is damaged: {error}") from None


VERSION = 1
#: A part of so many rows is packed well at once.
MANY_ROWS = 1000
#: Values of neighbouring chunks that are put together at once.
MAX_TOGETHER = 1 << 20


def encode(times: Integers, columns: Mapping[str, Values], level: int = LASTING_LEVEL) -> bytes:
    """Pack one stretch of curves to stay; every column must be as long as ``times``."""
    rows = len(times)
    if rows < FEW_ROWS:
        return encode_plain(times, columns, level)
    for name, values in columns.items():
        if len(values) != rows:
            raise ValueError(f"column {name!r} has {len(values)} rows, the times have {rows}")
    packed = pack([times], np.zeros(rows)[1:]) + pack([*columns.values()], _elapsed(times))
    kinds = [KINDS[values.dtype.kind] for values in columns.values()]
    header = Header(rows, [])
    blocks: list[bytes] = []
    written = zip(["", *columns], ["q", *kinds], packed, _planes(packed, rows), strict=True)
    for name, kind, column, (planes, block) in written:
        header.columns.append(_described(name, kind, column, planes))
        if column.missing is not None:
            blocks.append(np.packbits(column.missing).tobytes())
        blocks.append(block)
    return _join(encode_header(header), blocks, level)


def encode_quickly(times: Integers, columns: Mapping[str, Values]) -> bytes:
    """Pack a stretch that is packed again when its run ends."""
    rows = len(times)
    if rows < FEW_ROWS:
        return encode_plain(times, columns)
    header, planes = encode_delta(times, columns)
    return _join(encode_header(header), [planes], JOINED_LEVEL)


def encode_series(series: Series) -> bytes:
    """Pack a part as it arrives: it is joined with others soon, so the search for the best
    method would cost more than it saves."""
    if len(series) < MANY_ROWS and sys.byteorder == "little":
        # The columns lie in memory as they lie in a chunk.
        if isinstance(series.columns, Table):
            table = series.columns
            header = header_of(len(series), table.layout)
            return _join(header, [table.block], ARRIVING_LEVEL)
        kinds = tuple((name, _kind(column)) for name, column in series.columns.items())
        blocks = [series.times, *series.columns.values()]
        return _join(plain_header(len(series), kinds), blocks, ARRIVING_LEVEL)
    times = np.frombuffer(series.times, np.int64)
    columns: dict[str, Values] = {}
    for name, column in series.columns.items():
        if _kind(column) == "q":
            columns[name] = np.frombuffer(column, np.int64)
        else:
            columns[name] = np.frombuffer(column, np.float64)
    encode_rows = encode_plain if len(series) < MANY_ROWS else encode
    return encode_rows(times, columns, ARRIVING_LEVEL)


def encode_plain(
    times: Integers, columns: Mapping[str, Values], level: int = ARRIVING_LEVEL
) -> bytes:
    """Pack columns as they are."""
    kinds = tuple((name, KINDS[values.dtype.kind]) for name, values in columns.items())
    header = plain_header(len(times), kinds)
    blocks = [times.astype("<i8", copy=False).tobytes()]
    for name, values in columns.items():
        if len(values) != len(times):
            raise ValueError(f"column {name!r} has {len(values)} rows, not {len(times)}")
        blocks.append(values.astype(f"<{values.dtype.kind}8", copy=False).tobytes())
    return _join(header, blocks, level)


def _kind(column: Column) -> Kind:
    kind = column.format if isinstance(column, memoryview) else column.typecode
    return "q" if kind == "q" else "d"


def _join(header: bytes, blocks: Iterable[bytes | Column], level: int) -> bytes:
    return bytes((VERSION,)) + compress(b"".join([join_header(header), *blocks]), level)


def decode(
    data: bytes, wanted: Collection[str] | None = None
) -> tuple[Integers, dict[str, Values]]:
    """Unpack the times and the wanted columns (all where ``wanted`` is None)."""
    body, header, position, plain = _open(data)
    rows = header.rows
    words = _all_words(body, header, position, plain)
    if words is not None:
        return _columns_of(header, words, wanted)
    times: Integers = np.zeros(0, np.int64)
    elapsed: Floats = np.zeros(0)
    columns: dict[str, Values] = {}
    for place, column in enumerate(header.columns):
        mask_size = (rows + 7) // 8 if column.missing else 0
        size = mask_size + rows * column.planes.bit_count()
        block = np.frombuffer(body, np.uint8, size, position)
        position += size
        if place == 0:
            bits = _decode_column(column, rows, block, mask_size, np.zeros(rows)[1:])
            times = bits.view(np.int64)
            elapsed = _elapsed(times)
        elif wanted is None or column.name in wanted:
            columns[column.name] = _decode_column(column, rows, block, mask_size, elapsed)
    return times, columns


def decode_many(
    pieces: Iterable[bytes], wanted: Collection[str] | None = None
) -> Iterator[tuple[Integers, dict[str, Values]]]:
    """Unpack chunks in their order; neighbours that lie there as they came are given as one."""
    waiting: list[Integers] = []
    first: Header | None = None
    values = 0
    for data in pieces:
        body, header, position, plain = _open(data)
        words = _all_words(body, header, position, plain)
        together = words is not None and first is not None and _same_columns(first, header)
        if first is not None and not (together and values < MAX_TOGETHER):
            yield _columns_of(first, _beside(waiting), wanted)
            waiting, first, values = [], None, 0
        if words is None:
            yield decode(data, wanted)
            continue
        first = first or header
        values += words.size
        waiting.append(words)
    if first is not None:
        yield _columns_of(first, _beside(waiting), wanted)


def _same_columns(one: Header, other: Header) -> bool:
    if one.columns == other.columns:
        return True
    return len(one.columns) == len(other.columns) and all(
        mine.name == its.name and mine.kind == its.kind
        for mine, its in zip(one.columns, other.columns, strict=True)
    )


def _beside(tables: list[Integers]) -> Integers:
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def _open(data: bytes) -> tuple[bytes, Header, int, bool]:
    if not data or data[0] != VERSION:
        found = data[0] if data else "nothing"
        raise ChunkError(f"a chunk starts with {found}; this jobsight reads version {VERSION}")
    body = decompress(data[1:])
    return body, *read_header(body)


def _all_words(body: bytes, header: Header, position: int, plain: bool) -> Integers | None:
    """The bits of all columns where they can be read at once."""
    if plain:
        return _plain_words(body, header, position)
    if is_delta_encoded(header):
        return decode_delta(body, header, position)
    return None


def _plain_words(body: bytes, header: Header, position: int) -> Integers:
    words = np.frombuffer(body, "<i8", header.rows * len(header.columns), position)
    return words.astype(np.int64, copy=False).reshape(len(header.columns), header.rows)


def _columns_of(
    header: Header, words: Integers, wanted: Collection[str] | None
) -> tuple[Integers, dict[str, Values]]:
    columns: dict[str, Values] = {
        column.name: values if column.kind == "q" else values.view(np.float64)
        for column, values in zip(header.columns[1:], words[1:], strict=True)
        if wanted is None or column.name in wanted
    }
    return words[0], columns


def absent(kind: str, rows: int) -> Values:
    """A column in which every reading is missing."""
    if kind == "i":
        return np.full(rows, -(2**63), np.int64)
    return np.full(rows, MISSING_FLOAT, np.uint64).view(np.float64)


def _planes(packed: Sequence[Packed], rows: int) -> Iterator[tuple[int, bytes]]:
    """Which byte planes each column uses, and those planes."""
    for some in groups(packed, rows):
        words = np.stack([column.words for column in some]).astype("<u8", copy=False)
        planes = np.ascontiguousarray(
            words.view(np.uint8).reshape(len(some), rows, 8).transpose(0, 2, 1)
        )
        used: npt.NDArray[np.bool_] = np.any(planes, axis=2)
        masks = np.packbits(used, axis=1, bitorder="little")[:, 0].tolist()
        for mask, own, wanted in zip(masks, planes, used, strict=True):
            yield mask, own[wanted].tobytes()


def _described(name: str, kind: Kind, packed: Packed, planes: int) -> ChunkColumn:
    return ChunkColumn(
        name,
        kind,
        packed.method,
        planes,
        packed.missing is not None,
        packed.base,
        packed.step,
        packed.scale,
        packed.rate,
        packed.decimals,
    )


def _decode_column(
    column: ChunkColumn, rows: int, block: npt.NDArray[np.uint8], mask_size: int, elapsed: Floats
) -> Values:
    missing = None
    if column.missing:
        missing = np.unpackbits(block[:mask_size], count=rows).astype(np.bool_)
    planes = np.zeros((rows, 8), np.uint8)
    places = [place for place in range(8) if column.planes >> place & 1]
    planes[:, places] = block[mask_size:].reshape(len(places), rows).T
    words: Words = planes.reshape(-1).view("<u8").astype(np.uint64, copy=False)
    packed = Packed(
        words,
        column.method,
        column.base,
        column.step,
        column.scale,
        column.rate,
        column.decimals,
        missing,
    )
    bits = unpack(packed, elapsed, floating=column.kind == "d")
    return bits.view(np.int64) if column.kind == "q" else bits.view(np.float64)


def _elapsed(times: Integers) -> Floats:
    # Through uint64, since times may be anything; then as int64 a gap has its natural sign.
    return np.diff(times.view(np.uint64)).view(np.int64).astype(np.float64)


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


#: Values that are read at once; longer stretches are read by column, in less memory.
MOST_VALUES = 1 << 17

_WORD = 2**64 - 1


def encode_delta(times: Integers, columns: Mapping[str, Values]) -> tuple[Header, bytes]:
    """The header and the planes of a chunk."""
    rows = len(times)
    bits = np.stack([values.view(np.uint64) for values in (times, *columns.values())])
    words = zigzag(np.diff(bits, axis=1).view(np.int64))
    planes = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, rows, 8)
    used = np.bitwise_or.reduce(planes, axis=1) != 0
    kinds = [KINDS[values.dtype.kind] for values in columns.values()]
    masks = np.packbits(used, axis=1, bitorder="little")[:, 0].tolist()
    firsts = bits[:, 0].view(np.int64).tolist()
    described = [
        ChunkColumn(name, kind, DELTA, mask, base=first)
        for name, kind, mask, first in zip(
            ["", *columns], ["q", *kinds], masks, firsts, strict=True
        )
    ]
    return Header(rows, described), planes.transpose(0, 2, 1)[used].tobytes()


def is_delta_encoded(header: Header) -> bool:
    """Whether :func:`unpack` can read such a chunk."""
    return 0 < header.rows * len(header.columns) <= MOST_VALUES and all(
        column.method == DELTA
        and column.scale == 1
        and column.decimals is None
        and not column.missing
        for column in header.columns
    )


def decode_delta(body: bytes, header: Header, position: int) -> Integers:
    """The bits of all columns, the times first, from the bytes behind the header."""
    rows, columns = header.rows, header.columns
    masks = np.array([column.planes for column in columns], np.uint8)
    used = np.unpackbits(masks[:, None], axis=1, bitorder="little").astype(np.bool_)
    planes = np.zeros((len(columns), 8, rows), np.uint8)
    stored = np.frombuffer(body, np.uint8, int(used.sum()) * rows, position)
    planes[used] = stored.reshape(-1, rows)
    words = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<u8")[..., 0]
    changes = unzigzag(words.astype(np.uint64, copy=False))
    changes[:, 0] = np.array([column.base & _WORD for column in columns], np.uint64)
    result: Words = np.cumsum(changes, axis=1, dtype=np.uint64)
    return result.view(np.int64)
