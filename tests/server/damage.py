"""Batches that something has happened to: in their bytes, below the compression, in the header."""

from __future__ import annotations

import copy
import math
import struct
from array import array
from typing import Any

import msgspec
import zstandard
from hypothesis import strategies as some

from jobsight.model import MISSING, SECOND, Batch, Series
from jobsight.transport import wire
from tests.server.batches import START, batch

YEAR = 365 * 86400 * SECOND


def opened(sent: Batch) -> tuple[dict[str, Any], bytes]:
    """The header of a batch as a tree, and its columns."""
    body = zstandard.ZstdDecompressor().decompress(wire.encode(sent)[len(wire.MAGIC) :])
    (length,) = struct.unpack_from("<I", body)
    return msgspec.msgpack.decode(body[4 : 4 + length]), body[4 + length :]


def sealed(body: bytes) -> bytes:
    return wire.MAGIC + zstandard.ZstdCompressor(write_content_size=True).compress(body)


def packed(header: object, columns: bytes = b"") -> bytes:
    """A tree and columns as a batch, whatever they are."""
    return framed(msgspec.msgpack.encode(header), columns)


def framed(header: bytes, columns: bytes = b"") -> bytes:
    return sealed(struct.pack("<I", len(header)) + header + columns)


def with_field(name: bytes, value: bytes) -> bytes:
    """A right header with one more field, whose value is given as msgpack bytes."""
    tree, columns = opened(batch())
    header = msgspec.msgpack.encode(tree)
    assert header[0] & 0xF0 == 0x80
    header = bytes([header[0] + 1]) + header[1:] + bytes([0xA0 + len(name)]) + name + value
    return framed(header, columns)


def with_values(kind: str, values: list[Any], **changes: Any) -> Batch:
    """A right batch with one column of these values."""
    sent = batch(**changes)
    times = array("q", [START + number * SECOND for number in range(len(values))])
    sent.parts[0].series = Series(times, {"load": array(kind, values)})
    return sent


def moved(sent: Batch, by: int) -> Batch:
    """The same batch from an agent whose clock is off."""
    sent.written += by
    part = sent.parts[0]
    assert part.series is not None
    assert part.totals is not None
    part.sighting = msgspec.structs.replace(part.sighting, birth=part.sighting.birth + by)
    times = array("q", [moment + by for moment in part.series.times])
    part.series = Series(times, part.series.columns)
    part.totals.time += by
    for info in sent.jobs:
        info.start, info.end = (info.start or 0) + by, (info.end or 0) + by
    return sent


#: Values that are wrong in most places and right in some.
STRANGE = some.sampled_from(
    [
        *(None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, MISSING, MISSING + 1),
        *(START, START - YEAR, START + YEAR, 1.5, math.nan, math.inf, -math.inf, 1e308),
        *("", "a\nb", "\x00", "x" * 300, "alpha", "beta", "exact", "é" * 100, "%s{}'\""),
        *(b"", b"\xff" * 10, b"x" * 70_000, [], {}, [[[[[[]]]]]], {"a": {"b": {}}}, ["a", "q"]),
    ]
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a tree."""
    found = [path] if path else []
    if isinstance(tree, dict):
        items: list[tuple[Any, Any]] = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    else:
        items = []
    for key, value in items:
        found += places(value, (*path, key))
    return found


def holder(tree: Any, way: tuple[Any, ...]) -> Any:
    """What holds the value at the end of a way."""
    for key in way[:-1]:
        tree = tree[key]
    return tree


@some.composite
def header_damage(draw: some.DrawFn) -> bytes:
    """Some values of the header are others, twice there, or gone; columns may not fit either."""
    # One spool for all, so that numbers come again, as from a confused agent.
    sent = batch(draw(some.integers(1, 5)), sequence=draw(some.integers(0, 40)), spool="damaged")
    tree, columns = opened(sent)
    for _ in range(draw(some.integers(0, 3))):
        way = draw(some.sampled_from(places(tree)))
        inner, last = holder(tree, way), way[-1]
        match draw(some.sampled_from(["change", "change", "remove", "repeat"])):
            case "change":
                # A copy, since a later round may change it.
                inner[last] = copy.deepcopy(draw(STRANGE))
            case "repeat" if isinstance(inner, list):
                inner.extend([inner[last]] * draw(some.integers(1, 3)))
            case _:
                del inner[last]
    return packed(tree, draw(column_damage(columns)))


@some.composite
def column_damage(draw: some.DrawFn, columns: bytes) -> bytes:
    damaged = bytearray(columns)
    for _ in range(draw(some.integers(0, 3))):
        place = draw(some.integers(0, len(columns) // 8 - 1)) * 8
        damaged[place : place + 8] = draw(some.binary(min_size=8, max_size=8))
    return bytes(damaged[: draw(some.sampled_from([len(columns), len(columns), 0, 8, 17]))])


@some.composite
def byte_damage(draw: some.DrawFn) -> bytes:
    """Bytes are others, missing or too many: in what is sent, or below its compression."""
    data = wire.encode(batch(draw(some.integers(1, 5)), spool="bytes", sequence=1))
    below = draw(some.booleans())
    damaged = bytearray(
        zstandard.ZstdDecompressor().decompress(data[len(wire.MAGIC) :]) if below else data
    )
    for _ in range(draw(some.integers(1, 4))):
        place = draw(some.integers(0, len(damaged) - 1))
        match draw(some.sampled_from(["flip", "cut", "insert", "remove"])):
            case "flip":
                damaged[place] ^= 1 << draw(some.integers(0, 7))
            case "cut":
                del damaged[max(1, place) :]
            case "insert":
                damaged[place:place] = draw(some.binary(min_size=1, max_size=9))
            case _:
                del damaged[place : place + 8]
                damaged += b"\0" * (not damaged)
    return sealed(bytes(damaged)) if below else bytes(damaged)


DAMAGED = header_damage() | header_damage() | byte_damage()
