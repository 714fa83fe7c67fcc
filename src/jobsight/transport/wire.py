"""The encoding of a batch, in the spool and over the network.

    "JSB2" + zstd( header length: u32 LE | header: msgpack | columns: int64/float64 LE )

The header is :class:`jobsight.model.Batch` with the shape of each series in place of its columns.
The columns follow in the order of the series, the times of a series first. They are sent as they
are in memory, so the agent needs no numpy and the server no loop. Agents send the same metrics in
every batch, so the server caches the layout of a shape.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast

import msgspec
import zstandard

from jobsight.model import Batch, Column, Coverage, JobPart, Series, format_of

MAGIC = b"JSB2"
CONTENT_TYPE = "application/vnd.jobsight.batch"
#: The maximum size of an uncompressed batch; agents write smaller ones.
MAX_UNPACKED = 64 * 2**20
#: Decoded records are up to twenty times as large as in the header, so it has its own limit.
MAX_HEADER = 16 * 2**20
MAX_ROWS = 1_000_000
MAX_COLUMNS = 4096

#: Larger layouts are not cached, so that hostile ones cannot fill the memory.
_MAX_CACHED_LAYOUT = 16 * 1024
_MAX_CACHED_COVERAGE = 1024

_LENGTH = struct.Struct("<I")

Kind: TypeAlias = Literal["q", "d"]


class WireError(ValueError):
    """The bytes are not a batch; the text says at which point."""


def encode(batch: Batch, level: int = 3) -> bytes:
    """Encode a batch."""
    header = _ENCODER.encode(_with_series_in_header(batch))
    body = [_LENGTH.pack(len(header)), header]
    for part in batch.parts:
        if part.series is not None:
            body.append(_column_bytes(part.series.times))
            body += map(_column_bytes, part.series.columns.values())
    # With the checksum a bit that changed on a disk is found; without it, it may be a valid value.
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=True)
    return MAGIC + compressor.compress(b"".join(body))


def decode(data: bytes) -> Batch:
    """Decode a batch; raise :class:`WireError` if the data is not one."""
    body = memoryview(_decompress(data))
    if len(body) < _LENGTH.size:
        raise WireError("the batch has no header")
    (length,) = _LENGTH.unpack_from(body)
    if length > len(body) - _LENGTH.size:
        raise WireError(f"the header should have {length} bytes but the batch ends before")
    if length > MAX_HEADER:
        raise WireError(f"the header has {length} bytes; {MAX_HEADER} are allowed")
    try:
        batch = _DECODER.decode(body[_LENGTH.size : _LENGTH.size + length])
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise WireError(f"the header cannot be read: {error}") from None
    columns = _ColumnReader(body[_LENGTH.size + length :])
    for part in batch.parts:
        if isinstance(part.coverage, msgspec.Raw):
            cast(JobPart, part).coverage = _find_coverage(bytes(part.coverage))
        if part.series is not None:
            cast(JobPart, part).series = columns.read(part.series)
    columns.check_end()
    if batch.node_series is not None:
        cast(Batch, batch).node_series = _read_series_in_header(batch.node_series)
    return batch


class Layout:
    """The names and types of the columns after the times, and the index of each."""

    def __init__(self, kinds: list[tuple[str, Kind]]) -> None:
        self.kinds = tuple(kinds)
        self.indexes = {name: index for index, (name, _) in enumerate(kinds, 1)}
        if len(self.indexes) != len(kinds):
            raise WireError("a series names the same metric twice")


class Table(Mapping[str, Column]):
    """The columns of a series in one block of memory, the times first."""

    def __init__(self, layout: Layout, rows: int, block: memoryview) -> None:
        self.layout = layout
        self.block = block
        self._rows = rows

    def __getitem__(self, name: str) -> Column:
        index = self.layout.indexes[name]
        view = self.block[index * self._rows * 8 : (index + 1) * self._rows * 8]
        return cast(memoryview, view.cast(self.layout.kinds[index - 1][1]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.indexes)

    def __len__(self) -> int:
        return len(self.layout.kinds)

    def times(self) -> memoryview:
        return self.block[: self._rows * 8].cast("q")


class _Shape(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A series in the header: its number of rows and the layout of its columns."""

    rows: int
    #: Name and type of each column after the times: "q" for int64, "d" for float64. Decoded by
    #: :func:`_find_layout`.
    layout: msgspec.Raw


class _Part(JobPart, kw_only=True):
    """A part as in the header; :func:`decode` replaces the shape by the series."""

    series: _Shape | None = None  # type: ignore[assignment]
    #: Decoded by :func:`_find_coverage`; the default is that of JobPart.
    coverage: msgspec.Raw = msgspec.field(default_factory=dict)  # type: ignore[assignment]


class _SeriesInHeader(_Shape):
    """A series that is in the header as a whole: its shape and its columns, the times first."""

    block: bytes


class _Header(Batch, kw_only=True):
    parts: list[_Part] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    node_series: _SeriesInHeader | None = None  # type: ignore[assignment]


def _with_series_in_header(batch: Batch) -> Batch:
    series = batch.node_series
    if series is None:
        return batch
    shape = _encode_series(series)
    block = b"".join(map(_column_bytes, (series.times, *series.columns.values())))
    whole = _SeriesInHeader(shape.rows, shape.layout, block)
    return msgspec.structs.replace(batch, node_series=whole)


def _read_series_in_header(whole: _SeriesInHeader) -> Series:
    columns = _ColumnReader(memoryview(whole.block))
    series = columns.read(whole)
    columns.check_end()
    return series


def _encode_series(series: Any) -> _Shape:
    if not isinstance(series, Series):
        raise NotImplementedError(f"a batch cannot contain a {type(series).__name__}")
    rows = len(series)
    kinds: list[tuple[str, Kind]] = []
    for name, column in series.columns.items():
        if len(column) != rows:
            raise WireError(f"the column {name} has {len(column)} values for {rows} times")
        kinds.append((name, _kind(column)))
    return _Shape(rows, msgspec.Raw(_ENCODER.encode(kinds)))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_series)
_DECODER = msgspec.msgpack.Decoder(_Header)
_DECODE_COVERAGE = msgspec.msgpack.Decoder(dict[str, Coverage]).decode
_DECODE_KINDS = msgspec.msgpack.Decoder(list[tuple[str, Kind]]).decode


def _kind(column: Column) -> Kind:
    kind = format_of(column)
    if kind not in ("q", "d"):
        raise WireError(f"a column of type {kind!r} cannot be sent; expected int64 or float64")
    return "q" if kind == "q" else "d"


def _column_bytes(column: Column) -> bytes:
    return (_swap_bytes(column) if sys.byteorder == "big" else column).tobytes()


def _swap_bytes(column: Column) -> Column:
    swapped = array(_kind(column), column.tobytes())
    swapped.byteswap()
    return memoryview(swapped)


def _decompress(data: bytes) -> bytes:
    if data[:4] != MAGIC:
        raise WireError(f"the data does not start with {MAGIC.decode()}: not a jobsight batch")
    try:
        size = zstandard.frame_content_size(data[4:])
        if size < 0:
            raise WireError("the batch does not announce its unpacked size")
        if size > MAX_UNPACKED:
            raise WireError(f"the batch would unpack to {size} bytes; {MAX_UNPACKED} are allowed")
        return zstandard.ZstdDecompressor().decompress(
            data[4:], max_output_size=MAX_UNPACKED, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise WireError(f"the batch cannot be unpacked: {error}") from None


class _ColumnReader:
    """Reads the series after the header in order, and never beyond the end."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._position = 0

    def read(self, shape: _Shape) -> Series:
        layout, rows = _find_layout(bytes(shape.layout)), shape.rows
        if not 0 <= rows <= MAX_ROWS:
            raise WireError(f"a series of {rows} rows is refused; {MAX_ROWS} rows are allowed")
        end = self._position + rows * 8 * (1 + len(layout.kinds))
        if end > len(self._body):
            raise WireError(
                f"the columns end after {len(self._body)} bytes, {end} were announced: cut short?"
            )
        table = Table(layout, rows, self._body[self._position : end])
        self._position = end
        if sys.byteorder == "big":
            columns = {name: _swap_bytes(column) for name, column in table.items()}
            return Series(_swap_bytes(table.times()), columns)
        return Series(table.times(), table)

    def check_end(self) -> None:
        if self._position != len(self._body):
            raise WireError(f"{len(self._body) - self._position} bytes follow the last column")


def _find_layout(packed: bytes) -> Layout:
    return _cached_layout(packed) if len(packed) <= _MAX_CACHED_LAYOUT else _decode_layout(packed)


def _decode_layout(packed: bytes) -> Layout:
    try:
        kinds = _DECODE_KINDS(packed)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise WireError(f"the header cannot be read: {error}") from None
    if len(kinds) > MAX_COLUMNS:
        raise WireError(f"a series of {len(kinds)} columns is refused; {MAX_COLUMNS} are allowed")
    return Layout(kinds)


_cached_layout = lru_cache(maxsize=256)(_decode_layout)


def _find_coverage(packed: bytes) -> dict[str, Coverage]:
    """The coverage of a part. Most parts have the same one, and share it; it is never changed."""
    if len(packed) <= _MAX_CACHED_COVERAGE:
        return _cached_coverage(packed)
    return _decode_coverage(packed)


def _decode_coverage(packed: bytes) -> dict[str, Coverage]:
    try:
        return _DECODE_COVERAGE(packed)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise WireError(f"the header cannot be read: {error}") from None


_cached_coverage = lru_cache(maxsize=256)(_decode_coverage)
