"""A batch as bytes: what goes through the spool and over the network.

    "JSB1" + zstd( length of header: u32 LE | header: msgpack | columns: int64/float64 LE )

The header is the batch with each series replaced by its shape; the columns follow in the same
order, times first. Columns travel as they lie in memory, so the agent needs no numpy and the
server no loop: an agent sends the same metrics again and again, so what a shape means is worked out
once, and its columns stay the one piece of memory in which they came.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias, cast

import msgspec
import zstandard

from jobsight.model import (
    Batch,
    Column,
    Coverage,
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
    StepUse,
)

MAGIC = b"JSB1"
#: A batch larger than this once unpacked is refused: no agent writes one.
MAX_UNPACKED = 64 * 2**20
#: Records in memory are up to twenty times as large as in the header, so that has its own bound.
MAX_HEADER = 16 * 2**20
MAX_ROWS = 1_000_000
MAX_COLUMNS = 4096

#: A shape of more bytes is not remembered, so that strange ones cannot fill the memory.
_REMEMBERED = 16 * 1024

_LENGTH = struct.Struct("<I")

Kind: TypeAlias = Literal["q", "d"]


class WireError(ValueError):
    """The bytes are not a batch; the text says where they stop being one."""


class Layout:
    """The names and types of the columns after the times, and the place of each."""

    def __init__(self, kinds: list[tuple[str, Kind]]) -> None:
        self.kinds = tuple(kinds)
        self.places = {name: place for place, (name, _) in enumerate(kinds, 1)}
        if len(self.places) != len(kinds):
            raise WireError("a series names the same metric twice")


class Table(Mapping[str, Column]):
    """The columns of a series in one block of memory, the times first."""

    def __init__(self, layout: Layout, rows: int, block: memoryview) -> None:
        self.layout = layout
        self.block = block
        self._rows = rows

    def __getitem__(self, name: str) -> Column:
        place = self.layout.places[name]
        view = self.block[place * self._rows * 8 : (place + 1) * self._rows * 8]
        return cast(memoryview, view.cast(self.layout.kinds[place - 1][1]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.places)

    def __len__(self) -> int:
        return len(self.layout.kinds)

    def times(self) -> memoryview:
        return self.block[: self._rows * 8].cast("q")


class _Shape(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    rows: int
    #: Name and type of each column after the times: "q" for int64, "d" for float64.
    columns: msgspec.Raw


class _Part(msgspec.Struct, kw_only=True):
    sighting: Sighting
    epoch: str
    shape: _Shape | None = None
    totals: JobTotals | None = None
    executables: list[ExecutableUse] = []
    steps: list[StepUse] = []
    coverage: dict[str, Coverage] = {}
    final: bool = False


class _Header(msgspec.Struct, kw_only=True):
    cluster: str
    node: str
    spool: str
    sequence: int
    written: int
    monotonic: int
    agent: str
    jobs: list[JobInfo] = []
    parts: list[_Part] = []


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)
_DECODE_KINDS = msgspec.msgpack.Decoder(list[tuple[str, Kind]]).decode


def encode(batch: Batch, level: int = 3) -> bytes:
    """Pack a batch for the wire."""
    columns: list[bytes] = []
    parts = [_shape_part(part, columns) for part in batch.parts]
    header = _ENCODER.encode(
        _Header(
            cluster=batch.cluster,
            node=batch.node,
            spool=batch.spool,
            sequence=batch.sequence,
            written=batch.written,
            monotonic=batch.monotonic,
            agent=batch.agent,
            jobs=batch.jobs,
            parts=parts,
        )
    )
    body = b"".join([_LENGTH.pack(len(header)), header, *columns])
    return MAGIC + zstandard.ZstdCompressor(level=level, write_content_size=True).compress(body)


def _shape_part(part: JobPart, columns: list[bytes]) -> _Part:
    shape = None
    if part.series is not None:
        names: list[tuple[str, Kind]] = []
        columns.append(_column_bytes(part.series.times))
        for name, column in part.series.columns.items():
            if len(column) != len(part.series):
                raise WireError(
                    f"the column {name} has {len(column)} values for {len(part.series)} times"
                )
            names.append((name, _kind(column)))
            columns.append(_column_bytes(column))
        shape = _Shape(len(part.series), msgspec.Raw(_ENCODER.encode(names)))
    return _Part(
        sighting=part.sighting,
        epoch=part.epoch,
        shape=shape,
        totals=part.totals,
        executables=part.executables,
        steps=part.steps,
        coverage=part.coverage,
        final=part.final,
    )


def _kind(column: Column) -> Kind:
    kind = column.format if isinstance(column, memoryview) else column.typecode
    if kind not in ("q", "d"):
        raise WireError(f"a column of type {kind!r} cannot be sent; it must be int64 or float64")
    return "q" if kind == "q" else "d"


def _column_bytes(column: Column) -> bytes:
    if sys.byteorder == "big":
        column = array(_kind(column), column)
        column.byteswap()
    return column.tobytes()


class _Reader:
    """Hands out the series of the payload one after the other, and never past its end."""

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.position = 0

    def take(self, rows: int, layout: Layout) -> Series:
        end = self.position + rows * 8 * (1 + len(layout.kinds))
        if end > len(self.body):
            raise WireError(
                f"the columns end after {len(self.body)} bytes, {end} were announced: cut short?"
            )
        table = Table(layout, rows, self.body[self.position : end])
        self.position = end
        if sys.byteorder == "big":
            swapped = {name: _swapped(column) for name, column in table.items()}
            return Series(_swapped(table.times()), swapped)
        return Series(table.times(), table)


def _swapped(column: Column) -> Column:
    made = array(_kind(column), column.tobytes())
    made.byteswap()
    return memoryview(made)


def decode(data: bytes) -> Batch:
    """Unpack a batch, or say in one sentence why these bytes are none."""
    body = memoryview(_decompress(data))
    if len(body) < _LENGTH.size:
        raise WireError("the batch has no header")
    (length,) = _LENGTH.unpack_from(body)
    if length > len(body) - _LENGTH.size:
        raise WireError(f"the header should have {length} bytes but the batch ends before")
    if length > MAX_HEADER:
        raise WireError(f"the header has {length} bytes; {MAX_HEADER} are allowed")
    try:
        header = _DECODER.decode(body[_LENGTH.size : _LENGTH.size + length])
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise WireError(f"the header cannot be read: {error}") from None
    reader = _Reader(body[_LENGTH.size + length :])
    parts = [_read_part(part, reader) for part in header.parts]
    if reader.position != len(reader.body):
        raise WireError(f"{len(reader.body) - reader.position} bytes follow the last column")
    return Batch(
        cluster=header.cluster,
        node=header.node,
        spool=header.spool,
        sequence=header.sequence,
        written=header.written,
        monotonic=header.monotonic,
        agent=header.agent,
        jobs=header.jobs,
        parts=parts,
    )


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


def _read_part(part: _Part, reader: _Reader) -> JobPart:
    series = None
    if part.shape is not None:
        rows = part.shape.rows
        layout = _layout(bytes(part.shape.columns))
        if not 0 <= rows <= MAX_ROWS:
            raise WireError(f"a series of {rows} rows is refused; {MAX_ROWS} rows are allowed")
        series = reader.take(rows, layout)
    return JobPart(
        sighting=part.sighting,
        epoch=part.epoch,
        series=series,
        totals=part.totals,
        executables=part.executables,
        steps=part.steps,
        coverage=part.coverage,
        final=part.final,
    )


def _layout(packed: bytes) -> Layout:
    return _known_layout(packed) if len(packed) <= _REMEMBERED else _new_layout(packed)


def _new_layout(packed: bytes) -> Layout:
    try:
        kinds = _DECODE_KINDS(packed)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise WireError(f"the header cannot be read: {error}") from None
    if len(kinds) > MAX_COLUMNS:
        raise WireError(f"a series of {len(kinds)} columns is refused; {MAX_COLUMNS} are allowed")
    return Layout(kinds)


_known_layout = lru_cache(maxsize=256)(_new_layout)
