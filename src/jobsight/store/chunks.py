"""The codec of the series: columns of one run and node over a stretch of time, as bytes.

    version: one byte | zstd( length of header: u32 LE | header: msgpack | planes of each column )

The header names each column with its method (:mod:`jobsight.store.transforms`). The words of a
column lie transposed: the lowest byte of every row, then the next; planes of zeros only are left
out, so a constant column is its header alone. The place of each column follows from the header,
hence one can be read without the others. Columns of a part that has just arrived lie there as they
came. The checksum of the zstd frame tells damage.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from jobsight.model import Column, Series
from jobsight.store import differences
from jobsight.store.chunk_header import (
    KINDS,
    ChunkColumn,
    Header,
    encode_header,
    header_of,
    join_header,
    plain_header,
    read_header,
)
from jobsight.store.frames import (
    ARRIVING_LEVEL,
    JOINED_LEVEL,
    LASTING_LEVEL,
    ChunkError,
    compress,
    decompress,
)
from jobsight.store.packing import groups, pack
from jobsight.store.transforms import (
    FEW_ROWS,
    MISSING_FLOAT,
    Floats,
    Integers,
    Packed,
    Values,
    Words,
    unpack,
)
from jobsight.transport.wire import Kind, Table

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
    header, planes = differences.pack(times, columns)
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
    if differences.is_packed_so(header):
        return differences.unpack(body, header, position)
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
