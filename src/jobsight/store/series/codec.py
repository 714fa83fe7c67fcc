"""The codec of time series: the columns of one run and node over an interval, as bytes.

    version: one byte | zstd( length of header: u32 LE | header: msgpack | columns )

The header lists the columns with their kind and method (:mod:`jobsight.store.series.packing`). The
words of a packed column are stored as byte planes: the lowest byte of every row, then the next;
planes of zeros are omitted, so a constant column is stored in the header alone. The position of
each column follows from the header, hence a column can be read without the others. Damage is
detected by the checksum of the zstd frame.

There are three ways to encode, chosen by how long the chunk will stay:

* :func:`encode_series`: a part as it arrives; columns are stored as they are.
* :func:`encode_quickly`: chunks joined while the job runs; all columns as differences between
  rows. A third larger than the best method, a twentieth of the time to write, a tenth to read.
* :func:`encode`: the final chunk of a node; the best method for each column.

:func:`decode` reads all of them, :func:`decode_many` many chunks in their order.
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
from jobsight.model import Column, Series, format_of
from jobsight.store.series.packing import (
    DELTA,
    MAX_DECIMALS,
    MAX_RATE,
    METHODS,
    MIN_PACKED_ROWS,
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

#: zstd levels of parts as they arrive, of chunks joined while a job runs, and of final chunks.
ARRIVING_LEVEL = -1
JOINED_LEVEL = 3
FINAL_LEVEL = 6
#: No chunk decompresses to more, which bounds the memory that damaged bytes can request.
MAX_UNPACKED = 1 << 30
MAX_ROWS: Final = 1 << 27
VERSION = 1
_VERSION: Final = bytes((VERSION,))
#: A part with this many rows is packed at once.
MIN_ROWS_TO_PACK = 1000
#: Values of neighbouring chunks that are decoded as one.
MAX_JOINED_VALUES = 1 << 20
#: Bytes of chunks as they arrived that are decoded as one.
_MAX_TOGETHER = MAX_JOINED_VALUES
#: Values that are decoded together; longer chunks are decoded by column, in less memory.
MAX_DELTA_VALUES = 1 << 17
#: The kind of a column by that of its numpy type.
KINDS: Final[dict[str, Kind]] = {"i": "q", "f": "d"}
_WORD = 2**64 - 1


class ChunkError(StoreError):
    """The bytes are not a chunk, or are damaged."""


class ChunkColumn(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A column and the parameters that undo its transform."""

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
    """The header of a chunk."""

    rows: int
    #: The times come first, under an empty name.
    columns: list[ChunkColumn]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Header)
_LENGTH: Final = struct.Struct("<I")
_contexts = threading.local()


# Encoding


def encode(times: Integers, columns: Mapping[str, Values], level: int = FINAL_LEVEL) -> bytes:
    """Encode a final chunk; every column must be as long as ``times``."""
    rows = len(times)
    if rows < MIN_PACKED_ROWS:
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
        header.columns.append(
            ChunkColumn(
                name=name,
                kind=kind,
                method=column.method,
                planes=planes,
                missing=column.missing is not None,
                base=column.base,
                step=column.step,
                scale=column.scale,
                rate=column.rate,
                decimals=column.decimals,
            )
        )
        if column.missing is not None:
            blocks.append(np.packbits(column.missing).tobytes())
        blocks.append(block)
    return _join(encode_header(header), blocks, level)


def encode_quickly(times: Integers, columns: Mapping[str, Values]) -> bytes:
    """Encode a chunk that is encoded again when its run ends."""
    rows = len(times)
    if rows < MIN_PACKED_ROWS:
        return encode_plain(times, columns)
    header, planes = encode_delta(times, columns)
    return _join(encode_header(header), [planes], JOINED_LEVEL)


def encode_series(series: Series) -> bytes:
    """Encode a part as it arrives. It is joined with others soon, so the search for the best
    method would cost more than it saves."""
    if len(series) < MIN_ROWS_TO_PACK and sys.byteorder == "little":
        # The columns have the same layout in memory and in a chunk.
        if isinstance(series.columns, Table):
            table = series.columns
            start = start_of(len(series), table.layout)
            return _VERSION + compress(b"".join((start, table.block)), ARRIVING_LEVEL)
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
    encode_rows = encode_plain if len(series) < MIN_ROWS_TO_PACK else encode
    return encode_rows(times, columns, ARRIVING_LEVEL)


def encode_plain(
    times: Integers, columns: Mapping[str, Values], level: int = ARRIVING_LEVEL
) -> bytes:
    """Encode columns as they are."""
    kinds = tuple((name, KINDS[values.dtype.kind]) for name, values in columns.items())
    header = plain_header(len(times), kinds)
    blocks = [times.astype("<i8", copy=False).tobytes()]
    for name, values in columns.items():
        if len(values) != len(times):
            raise ValueError(f"column {name!r} has {len(values)} rows, not {len(times)}")
        blocks.append(values.astype(f"<{values.dtype.kind}8", copy=False).tobytes())
    return _join(header, blocks, level)


def _kind(column: Column) -> Kind:
    return "q" if format_of(column) == "q" else "d"


def _join(header: bytes, blocks: Iterable[bytes | Column], level: int) -> bytes:
    return _VERSION + compress(b"".join([join_header(header), *blocks]), level)


def _planes(packed: Sequence[Packed], rows: int) -> Iterator[tuple[int, bytes]]:
    """For each column the mask of the byte planes it uses, and those planes."""
    for group in groups(packed, rows):
        words = np.stack([column.words for column in group]).astype("<u8", copy=False)
        planes = np.ascontiguousarray(
            words.view(np.uint8).reshape(len(group), rows, 8).transpose(0, 2, 1)
        )
        bits: Words = np.bitwise_or.reduce(words, axis=1).astype("<u8", copy=False)
        used = bits[:, None].view(np.uint8) != 0
        masks = np.packbits(used, axis=1, bitorder="little")[:, 0].tolist()
        stored = planes[used].tobytes()
        position = 0
        for mask in masks:
            end = position + mask.bit_count() * rows
            yield mask, stored[position:end]
            position = end


# Decoding


def decode(
    data: bytes, wanted: Collection[str] | None = None
) -> tuple[Integers, dict[str, Values]]:
    """Decode the times and the wanted columns; all columns if ``wanted`` is None."""
    body = _unpack_body(data)
    header, position, plain = read_header(body)
    words = _all_words(body, header, position, plain)
    if words is not None:
        return _columns_of(header, words, wanted)
    return _decode_opened(body, header, position, wanted)


def _decode_opened(
    body: bytes, header: Header, position: int, wanted: Collection[str] | None
) -> tuple[Integers, dict[str, Values]]:
    """Decode columns one by one."""
    rows = header.rows
    times: Integers = np.zeros(0, np.int64)
    elapsed: Floats = np.zeros(0)
    columns: dict[str, Values] = {}
    for index, column in enumerate(header.columns):
        mask_size = (rows + 7) // 8 if column.missing else 0
        size = mask_size + rows * column.planes.bit_count()
        block = np.frombuffer(body, np.uint8, size, position)
        position += size
        if index == 0:
            bits = _decode_column(column, rows, block, mask_size, np.zeros(rows)[1:])
            times = bits.view(np.int64)
            elapsed = _elapsed(times)
        elif wanted is None or column.name in wanted:
            columns[column.name] = _decode_column(column, rows, block, mask_size, elapsed)
    return times, columns


def decode_many(
    pieces: Iterable[bytes], wanted: Collection[str] | None = None
) -> Iterator[tuple[Integers, dict[str, Values]]]:
    """Decode chunks in their order; neighbours with the same columns may be joined into one."""
    waiting: list[Integers] = []
    first: Header | None = None
    values = 0
    for body, header, position, plain in _opened_together(pieces):
        words = _all_words(body, header, position, plain)
        together = words is not None and first is not None and _same_columns(first, header)
        if first is not None and not (together and values < MAX_JOINED_VALUES):
            yield _columns_of(first, _joined(waiting), wanted)
            waiting, first, values = [], None, 0
        if words is None:
            yield _decode_opened(body, header, position, wanted)
            continue
        first = first or header
        values += words.size
        waiting.append(words)
    if first is not None:
        yield _columns_of(first, _joined(waiting), wanted)


def _opened_together(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, Header, int, bool]]:
    """Open chunks in their order; neighbours as they arrived, with one header, become one chunk.

    Most chunks that are joined are such: an agent sends few samples at a time, and always as many.
    """
    start = b""
    size = 0
    equal: list[bytes] = []
    for data in pieces:
        body = _unpack_body(data)
        follows = len(body) == size and body.startswith(start)
        if equal and follows and len(equal) * size < _MAX_TOGETHER:
            equal.append(body)
            continue
        if equal:
            yield _concatenated(equal, len(start))
            equal = []
        header, position, plain = read_header(body)
        if plain and header.rows:
            start, size, equal = body[:position], len(body), [body]
        else:
            yield body, header, position, plain
    if equal:
        yield _concatenated(equal, len(start))


def _concatenated(bodies: Sequence[bytes], position: int) -> tuple[bytes, Header, int, bool]:
    """One plain chunk of several with the same header."""
    header, _, plain = read_header(bodies[0])
    if len(bodies) == 1:
        return bodies[0], header, position, plain
    size = len(bodies), len(header.columns), header.rows
    values = b"".join([memoryview(body)[position:] for body in bodies])
    columns = np.frombuffer(values, "<i8").reshape(size).transpose(1, 0, 2).tobytes()
    rows = len(bodies) * header.rows
    return columns, Header(rows, header.columns), 0, plain


def _same_columns(header: Header, other: Header) -> bool:
    if header.columns == other.columns:
        return True
    return [(column.name, column.kind) for column in header.columns] == [
        (column.name, column.kind) for column in other.columns
    ]


def _joined(tables: list[Integers]) -> Integers:
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def _unpack_body(data: bytes) -> bytes:
    if not data or data[0] != VERSION:
        version = data[0] if data else "nothing"
        raise ChunkError(f"a chunk has format version {version}, expected {VERSION}")
    return decompress(memoryview(data)[1:])


def _all_words(body: bytes, header: Header, position: int, plain: bool) -> Integers | None:
    """The bits of all columns, if they can be decoded together."""
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


def _decode_column(
    column: ChunkColumn, rows: int, block: npt.NDArray[np.uint8], mask_size: int, elapsed: Floats
) -> Values:
    missing = None
    if column.missing:
        missing = np.unpackbits(block[:mask_size], count=rows).astype(np.bool_)
    planes = np.zeros((rows, 8), np.uint8)
    used = [plane for plane in range(8) if column.planes >> plane & 1]
    planes[:, used] = block[mask_size:].reshape(len(used), rows).T
    words: Words = planes.reshape(-1).view("<u8").astype(np.uint64, copy=False)
    packed = Packed(
        words=words,
        method=column.method,
        base=column.base,
        step=column.step,
        scale=column.scale,
        rate=column.rate,
        decimals=column.decimals,
        missing=missing,
    )
    bits = unpack(packed, elapsed, floating=column.kind == "d")
    return bits.view(np.int64) if column.kind == "q" else bits.view(np.float64)


def absent(kind: str, rows: int) -> Values:
    """A column in which every value is missing."""
    if kind == "i":
        return np.full(rows, -(2**63), np.int64)
    return np.full(rows, MISSING_FLOAT, np.uint64).view(np.float64)


def _elapsed(times: Integers) -> Floats:
    # Through uint64, since times may be any value; as int64 a difference has its natural sign.
    return np.diff(times.view(np.uint64)).view(np.int64).astype(np.float64)


# Header


# An agent sends the same metrics in every batch.
@lru_cache(maxsize=1024)
def start_of(rows: int, layout: Layout) -> bytes:
    """The bytes before columns as received: their header and its length."""
    return join_header(plain_header(rows, layout.kinds))


@lru_cache(maxsize=64)
def plain_header(rows: int, kinds: tuple[tuple[str, Kind], ...]) -> bytes:
    """The header of columns that are stored as they are."""
    columns = [ChunkColumn("", "q", PLAIN, 255)]
    columns += [ChunkColumn(name, kind, PLAIN, 255) for name, kind in kinds]
    return _ENCODER.encode(Header(rows, columns))


def join_header(header: bytes) -> bytes:
    """The header, preceded by its length."""
    return _LENGTH.pack(len(header)) + header


def encode_header(header: Header) -> bytes:
    return _ENCODER.encode(header)


def read_header(body: bytes) -> tuple[Header, int, bool]:
    """The header of decompressed bytes, the position of the columns, and whether they are stored
    as they are."""
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
        raise ChunkError("the header of a chunk has no valid number of rows, or no times")
    announced = 0
    for column in header.columns:
        if not _is_valid(column):
            raise ChunkError(f"the column {column.name!r} of a chunk has an unknown encoding")
        announced += ((header.rows + 7) // 8) * column.missing
        announced += header.rows * column.planes.bit_count()
    plain = {column.method == PLAIN for column in header.columns}
    if len(plain) > 1:
        raise ChunkError("a chunk mixes packed and plain columns")
    return header, announced, plain == {True}


def _is_valid(column: ChunkColumn) -> bool:
    if column.method == PLAIN:
        return column.planes == 255 and not column.missing
    return (
        column.method in METHODS
        and 0 <= column.planes < 256
        and abs(column.rate) < MAX_RATE
        and (column.decimals is None or 0 <= column.decimals <= MAX_DECIMALS)
    )


# Differences between rows, all columns together


def encode_delta(times: Integers, columns: Mapping[str, Values]) -> tuple[Header, bytes]:
    """The header and the byte planes of a chunk."""
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
    """Whether :func:`decode_delta` can read a chunk."""
    return 0 < header.rows * len(header.columns) <= MAX_DELTA_VALUES and all(
        column.method == DELTA
        and column.scale == 1
        and column.decimals is None
        and not column.missing
        for column in header.columns
    )


def decode_delta(body: bytes, header: Header, position: int) -> Integers:
    """The bits of all columns, the times first, from the bytes after the header."""
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


# zstd frames


def compress(body: bytes, level: int = JOINED_LEVEL) -> bytes:
    """Compress bytes into a frame."""
    # A context costs more than a small chunk, and threads must not share one.
    try:
        context: zstandard.ZstdCompressor = _contexts.compressors[level]
    except (AttributeError, KeyError):
        context = zstandard.ZstdCompressor(
            level=level, write_checksum=True, write_content_size=True
        )
        _contexts.__dict__.setdefault("compressors", {})[level] = context
    return context.compress(body)


def decompress(data: bytes | memoryview) -> bytes:
    """Decompress a frame, or raise :class:`ChunkError`."""
    if not hasattr(_contexts, "decompressor"):
        _contexts.decompressor = zstandard.ZstdDecompressor()
    context: zstandard.ZstdDecompressor = _contexts.decompressor
    try:
        frame = zstandard.get_frame_parameters(data)
        if not frame.has_checksum or frame.content_size > MAX_UNPACKED:
            raise ChunkError(
                "a chunk of a series is damaged: its frame has no checksum or is too large"
            )
        return context.decompress(data, max_output_size=MAX_UNPACKED, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise ChunkError(f"a chunk of a series is damaged: {error}") from None
