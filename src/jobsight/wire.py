"""A batch as bytes: what goes through the spool and over the network.

    "JSB1" + zstd( length of header: u32 LE | header: msgpack | columns: int64/float64 LE )

The header is the batch with each series replaced by its shape; the columns follow in the same
order, times first. Columns travel as they lie in memory, so the agent needs no numpy and the
server no loop.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Literal, cast

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

_LENGTH = struct.Struct("<I")


class WireError(ValueError):
    """The bytes are not a batch; the text says where they stop being one."""


class _Shape(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    rows: int
    #: Name and type of each column after the times: "q" for int64, "d" for float64.
    columns: list[tuple[str, Literal["q", "d"]]]


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
        names: list[tuple[str, Literal["q", "d"]]] = []
        columns.append(_column_bytes(part.series.times))
        for name, column in part.series.columns.items():
            if len(column) != len(part.series):
                raise WireError(
                    f"the column {name} has {len(column)} values for {len(part.series)} times"
                )
            names.append((name, _kind(column)))
            columns.append(_column_bytes(column))
        shape = _Shape(len(part.series), names)
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


def _kind(column: Column) -> Literal["q", "d"]:
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
    """Hands out the columns of the payload one after the other, and never past its end."""

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.position = 0

    def take(self, rows: int, kind: str) -> Column:
        end = self.position + rows * 8
        if end > len(self.body):
            raise WireError(
                f"the columns end after {len(self.body)} bytes, {end} were announced: cut short?"
            )
        view = self.body[self.position : end]
        self.position = end
        if sys.byteorder == "big":
            swapped = array(kind, view.tobytes())
            swapped.byteswap()
            return memoryview(swapped)
        return cast(memoryview, view.cast("q") if kind == "q" else view.cast("d"))


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
        if not 0 <= rows <= MAX_ROWS or len(part.shape.columns) > MAX_COLUMNS:
            raise WireError(
                f"a series of {rows} rows and {len(part.shape.columns)} columns is refused; "
                f"{MAX_ROWS} rows and {MAX_COLUMNS} columns are allowed"
            )
        times = reader.take(rows, "q")
        columns = {name: reader.take(rows, kind) for name, kind in part.shape.columns}
        if len(columns) != len(part.shape.columns):
            raise WireError("a series names the same metric twice")
        series = Series(times, columns)
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
