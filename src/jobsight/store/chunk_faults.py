"""What is wrong with one chunk: its bytes, and the columns that speak of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from jobsight.store import chunks, frames
from jobsight.store.compaction import ARRIVED
from jobsight.store.curves import Curves, Summary, join, summarise
from jobsight.store.frames import ChunkError, decompress

_decode = msgspec.msgpack.Decoder(dict[str, Summary]).decode
_encode = msgspec.msgpack.Encoder().encode


class ChunkRow(NamedTuple):
    """A row of ``chunks``."""

    id: int
    run_node_id: int
    first: int
    last: int
    rows: int
    level: int
    data: bytes
    summary: bytes | None
    resolution: int | None


class Damaged(Exception):
    """The bytes cannot be read; nothing can be worked out from them."""


class Right(NamedTuple):
    """What the columns should say."""

    first: int
    last: int
    rows: int
    #: The one that is stored where that is right.
    summary: bytes | None


def look(row: ChunkRow) -> tuple[list[str], Right]:
    """What is wrong with a chunk, in words, and what would be right."""
    try:
        curves = Curves(*chunks.decode(row.data))
    except ChunkError as error:
        raise Damaged(str(error)) from None
    if not len(curves.times):
        raise Damaged("a chunk of a series holds no rows")
    faults = []
    right = Right(int(curves.times.min()), int(curves.times.max()), len(curves.times), row.summary)
    for name in ("first", "last", "rows"):
        stored, found = getattr(row, name), getattr(right, name)
        if stored != found:
            faults.append(f"its column {name} says {stored}, its bytes {found}")
    if row.level > ARRIVED and bool((curves.times[1:] <= curves.times[:-1]).any()):
        faults.append("its times are not in order")
    wrong = _summary_fault(row, curves, right)
    if wrong:
        faults.append(wrong)
        # The extremes of what was thinned away are lost; those of what is left are the best.
        made = summarise(join([curves]))
        right = right._replace(summary=frames.compress(_encode(made)))
    return faults, right


def _summary_fault(row: ChunkRow, curves: Curves, right: Right) -> str:
    if row.summary is None:
        return "" if row.level == ARRIVED else "its summary is missing"
    try:
        stored = _decode(decompress(row.summary))
    except (ChunkError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"its summary cannot be read ({error})"
    if row.resolution is not None:
        # Of rows that are no longer there; what is left must lie within.
        outside = [
            name
            for name, part in stored.items()
            if part.first_time < right.first or part.last_time > right.last
        ]
        if outside or stored.keys() != summarise(curves).keys():
            return "its summary is not that of a thinned series"
        return ""
    expected = summarise(curves)
    if stored.keys() != expected.keys():
        return "its summary names other metrics than its bytes"
    wrong = [name for name in stored if not _agree(stored[name], expected[name])]
    return f"its summary of {', '.join(sorted(wrong))} is not that of its bytes" if wrong else ""


def _agree(one: Summary, other: Summary) -> bool:
    """The same to the last digits: another processor may add up in another order."""
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9)
        for a, b in pairs
    )
