"""A batch on the wire: what goes in comes out, and nothing else comes out as anything else."""

import math
import struct
import tracemalloc
from array import array
from contextlib import suppress
from typing import Any, get_args, get_origin

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as some

from jobsight.model import (
    MISSING,
    Batch,
    Column,
    Coverage,
    ExecutableUse,
    GpuFault,
    GpuUse,
    JobInfo,
    JobPart,
    JobTotals,
    Series,
    Sighting,
)
from jobsight.transport import wire
from jobsight.transport.wire import WireError, decode, encode
from tests.examples import examples

WORD = some.text(max_size=20)
COUNT = some.integers(0, 2**63 - 1)
VALUE = some.integers(MISSING, 2**63 - 1)


def optional(strategy: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    return some.none() | strategy


def of_struct(
    kind: type[msgspec.Struct], **given: some.SearchStrategy[Any]
) -> some.SearchStrategy[Any]:
    """Every field of a record by its type, so that a new field is tested from its first day."""
    by_type: dict[Any, some.SearchStrategy[Any]] = {
        int: COUNT,
        str: WORD,
        bytes: some.binary(max_size=40),
        bool: some.booleans(),
        int | None: optional(COUNT),
        str | None: optional(WORD),
        float | None: optional(some.floats(0, 1)),
        tuple[str, ...] | None: optional(some.lists(WORD, max_size=3).map(tuple)),
        dict[str, int] | None: optional(some.dictionaries(WORD, COUNT, max_size=3)),
    }

    def of_type(wanted: Any) -> some.SearchStrategy[Any]:
        if wanted in by_type:
            return by_type[wanted]
        if get_origin(wanted) is list:
            return some.lists(of_type(get_args(wanted)[0]), max_size=3)
        return of_struct(wanted)

    fields = {
        field.name: given[field.name] if field.name in given else of_type(field.type)
        for field in msgspec.structs.fields(kind)
    }
    return some.builds(kind, **fields)


COVERAGE = of_struct(
    Coverage, quality=some.sampled_from(["exact", "estimate", "failed", "missing"])
)


@some.composite
def series(draw: some.DrawFn) -> Series:
    rows = draw(some.integers(0, 12))

    def column(kind: str) -> some.SearchStrategy[Column]:
        values = VALUE if kind == "q" else some.floats()
        return some.lists(values, min_size=rows, max_size=rows).map(
            lambda items: array(kind, items)
        )

    columns = some.dictionaries(WORD, some.sampled_from("qd").flatmap(column), max_size=4)
    return Series(draw(column("q")), draw(columns))


GPU = of_struct(
    GpuUse,
    used=optional(some.booleans()),
    faults=optional(some.lists(of_struct(GpuFault), max_size=2)),
    coverage=some.dictionaries(WORD, COVERAGE, max_size=3),
)
PART = of_struct(
    JobPart,
    gpus=some.lists(GPU, max_size=3),
    series=optional(series()),
    totals=optional(of_struct(JobTotals)),
    coverage=some.dictionaries(WORD, COVERAGE, max_size=3),
)
BATCH = of_struct(Batch, parts=some.lists(PART, max_size=3), node_series=optional(series()))


def plain(batch: Batch) -> Any:
    """A batch for comparing: fields by name, since a decoded batch is of a subclass, and columns by
    their type and their bits, since NaN equals nothing."""

    def column(values: Column) -> tuple[str, bytes]:
        kind = values.format if isinstance(values, memoryview) else values.typecode
        return kind, values.tobytes()

    def curves(series: Series | None) -> Any:
        if series is None:
            return None
        columns = {name: column(values) for name, values in series.columns.items()}
        return column(series.times), columns

    parts = [
        (msgspec.structs.asdict(msgspec.structs.replace(part, series=None)), curves(part.series))
        for part in batch.parts
    ]
    rest = msgspec.structs.replace(batch, parts=[], node_series=None)
    return msgspec.structs.asdict(rest), parts, curves(batch.node_series)


def small_batch() -> Batch:
    part = JobPart(
        sighting=Sighting("alpha", 12, "n1", "boot", 1),
        epoch="one",
        series=Series(
            array("q", [1, 2, 3]),
            {"a": array("q", [1, MISSING, 3]), "b": array("d", [0.5, math.nan, -0.0])},
        ),
        totals=JobTotals(time=3, cpu_source="cgroup v2", cpu_time=5),
        executables=[ExecutableUse(path=b"/opt/\xff\x00\n%s{}'\"")],
        coverage={"cpu": Coverage(quality="exact")},
    )
    return Batch(
        cluster="alpha",
        node="n1",
        spool="s",
        sequence=1,
        written=1,
        monotonic=1,
        agent="test",
        jobs=[JobInfo(cluster="alpha", job_id=12, source="test")],
        parts=[part],
    )


def sealed(body: bytes) -> bytes:
    return wire.MAGIC + zstandard.ZstdCompressor(write_content_size=True).compress(body)


def opened(batch: Batch) -> bytes:
    return zstandard.ZstdDecompressor().decompress(encode(batch)[4:])


def with_header(header: object, columns: bytes = b"") -> bytes:
    packed = msgspec.msgpack.encode(header)
    return sealed(struct.pack("<I", len(packed)) + packed + columns)


def header(**changes: object) -> dict[str, object]:
    return {
        "cluster": "alpha",
        "node": "n1",
        "spool": "s",
        "sequence": 1,
        "written": 1,
        "monotonic": 1,
        "agent": "test",
        **changes,
    }


def part_with(rows: int, columns: list[list[str]]) -> dict[str, object]:
    sighting = {"cluster": "a", "job_id": 1, "node": "n", "boot_id": "b", "birth": 1}
    return {"sighting": sighting, "epoch": "e", "series": [rows, columns]}


@given(BATCH)
@settings(max_examples=examples(200), deadline=None)
def test_what_goes_in_comes_out_bit_for_bit(batch: Batch) -> None:
    assert plain(decode(encode(batch))) == plain(batch)


def test_a_view_of_a_column_is_a_column() -> None:
    batch = small_batch()
    again = decode(encode(decode(encode(batch))))
    assert plain(again) == plain(batch)


def test_an_agent_and_a_server_without_gpus_understand_each_other() -> None:
    # A batch without GPUs is what it was before there were any.
    assert b"gpu" not in opened(small_batch())
    with_gpus = small_batch()
    with_gpus.parts[0].gpus = [GpuUse(key="0", held_time=5, active_time=2)]
    with_gpus.parts[0].executables[0].gpu_time = 2

    class OlderPart(msgspec.Struct):
        sighting: Sighting
        epoch: str
        final: bool = False

    class OlderHeader(msgspec.Struct):
        parts: list[OlderPart]

    body = opened(with_gpus)
    (length,) = struct.unpack_from("<I", body)
    older = msgspec.msgpack.decode(body[4 : 4 + length], type=OlderHeader)
    assert older.parts == [OlderPart(small_batch().parts[0].sighting, "one")]
    # A header of an agent that knows no GPUs.
    (part,) = decode(with_header(header(parts=[part_with(0, [])]))).parts
    assert part.gpus == []


def test_every_truncation_is_refused() -> None:
    data = encode(small_batch())
    for length in range(len(data)):
        with pytest.raises(WireError, match=r"^the "):
            decode(data[:length])


def test_every_truncation_of_what_is_packed_is_refused() -> None:
    body = opened(small_batch())
    for length in range(len(body)):
        with pytest.raises(WireError, match=r"^the "):
            decode(sealed(body[:length]))


def test_every_flipped_bit_is_found_or_changes_nothing() -> None:
    """Without a checksum a changed value of a column would be stored as if it were measured."""
    data = encode(small_batch())
    body = opened(small_batch())
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with suppress(WireError):
                decode(bytes(damaged))
                # A bit of the frame that zstd does not use.
                assert zstandard.ZstdDecompressor().decompress(bytes(damaged[4:])) == body


@given(some.data())
@settings(max_examples=examples(300), deadline=None)
def test_damage_below_the_compression_is_a_wire_error_or_a_batch(data: some.DataObject) -> None:
    body = bytearray(opened(small_batch()))
    for _ in range(data.draw(some.integers(1, 4))):
        body[data.draw(some.integers(0, len(body) - 1))] = data.draw(some.integers(0, 255))
    with suppress(WireError):
        decode(sealed(bytes(body)))


@given(some.binary(max_size=200))
def test_any_bytes_are_a_wire_error(data: bytes) -> None:
    for bytes_given in (data, wire.MAGIC + data, sealed(data)):
        with pytest.raises(WireError):
            decode(bytes_given)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "does not start with JSB2"),
        (b"JSB1" + encode(small_batch())[4:], "does not start with JSB2"),
        (encode(small_batch()) + b"x", "cannot be unpacked"),
        (encode(small_batch()) + encode(small_batch())[4:], "cannot be unpacked"),
        (sealed(opened(small_batch()) + b"x"), "1 bytes follow the last column"),
        (sealed(b"\x01"), "has no header"),
        (with_header(header(sequence="one")), "header cannot be read"),
        (with_header(header(cluster=b"\xff")), "header cannot be read"),
        (with_header(header(parts=[part_with(-1, [])])), "-1 rows"),
        (with_header(header(parts=[part_with(10**7, [])])), "rows"),
        (with_header(header(parts=[part_with(0, [["a", "q"]] * 5000)])), "5000 columns"),
        (with_header(header(parts=[part_with(0, [["a", "q"]] * 2)])), "same metric twice"),
        (with_header(header(parts=[part_with(0, [["a", "x"]])])), "header cannot be read"),
        (with_header(header(parts=[part_with(2, [])]), b"\0" * 8), "cut short"),
        (
            wire.MAGIC + zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 9),
            "does not announce",
        ),
    ],
)
def test_what_is_wrong_is_said(data: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        decode(data)


def test_a_deeply_nested_header_is_refused() -> None:
    nested = b"\x91" * 100_000 + b"\xc0"
    packed = msgspec.msgpack.encode(header())
    # One more entry in the map, whose value nests without end.
    packed = bytes([packed[0] + 1]) + packed[1:] + b"\xa1x" + nested
    with pytest.raises(WireError):
        decode(sealed(struct.pack("<I", len(packed)) + packed))


def test_parts_share_a_coverage_and_a_long_one_is_not_kept() -> None:
    known = wire._cached_coverage.cache_info().currsize
    batch = small_batch()
    coverage = {"cpu": Coverage(quality="estimate", time_share=0.25, reason="found here alone")}
    long = {"cpu": Coverage(quality="failed", reason="x" * wire._MAX_CACHED_COVERAGE)}
    sighting = batch.parts[0].sighting
    batch.parts = [
        JobPart(sighting=sighting, epoch="e", coverage=own) for own in (coverage, coverage, long)
    ]
    first, second, third = (part.coverage for part in decode(encode(batch)).parts)
    assert first == coverage
    assert first is second
    assert third == long
    assert wire._cached_coverage.cache_info().currsize == known + 1


@pytest.mark.parametrize(
    "coverage", [7, ["cpu"], {"cpu": 7}, {"cpu": {"quality": "good"}}, {1: {}}]
)
def test_a_coverage_that_is_none_is_refused(coverage: object) -> None:
    data = with_header(header(parts=[{**part_with(0, []), "coverage": coverage}]))
    with pytest.raises(WireError, match="header cannot be read"):
        decode(data)


def test_a_bomb_is_refused_before_it_unpacks() -> None:
    bomb = sealed(b"\0" * (wire.MAX_UNPACKED + 1))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="would unpack to"):
            decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_frame_that_lies_about_its_size_is_refused() -> None:
    data = bytearray(sealed(b"\0" * 300))
    # The two bytes of the content size stand behind the frame's magic and descriptor.
    position = data.index((300 - 256).to_bytes(2, "little"), 4)
    data[position : position + 2] = (10).to_bytes(2, "little")
    with pytest.raises(WireError, match="cannot be unpacked"):
        decode(bytes(data))


def test_a_header_of_small_things_cannot_fill_the_memory() -> None:
    # Eight bytes on the wire become a record of more than a hundred in memory.
    tiny = [{"path": b""}] * 3_000_000
    data = with_header(header(parts=[{**part_with(0, []), "executables": tiny}]))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="header"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * wire.MAX_UNPACKED
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("column", [array("l", [1]), array("f", [1.0]), memoryview(b"1")])
def test_a_column_of_another_type_is_refused_by_the_writer(column: Column) -> None:
    batch = small_batch()
    batch.parts[0].series = Series(array("q", [1]), {"a": column})
    with pytest.raises(WireError, match="int64 or float64"):
        encode(batch)


def test_columns_of_unequal_length_are_refused_by_the_writer() -> None:
    batch = small_batch()
    batch.parts[0].series = Series(array("q", [1]), {"a": array("q", [1, 2])})
    with pytest.raises(WireError, match="2 values for 1 times"):
        encode(batch)


def test_a_server_that_does_not_know_series_of_nodes_reads_the_rest() -> None:
    """As the server of 0.2.0 does: it ignores the field, and no column is left over."""
    sent = small_batch()
    sent.node_series = Series(array("q", [1, 2]), {"node.load.1m": array("d", [0.5, 1.5])})
    body = opened(sent)
    (length,) = struct.unpack_from("<I", body)
    fields = msgspec.msgpack.decode(body[4 : 4 + length])
    assert fields.pop("node_series")[0] == 2
    read = decode(with_header(fields, body[4 + length :]))
    assert plain(read) == plain(small_batch())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([2, [["a", "q"]], b"x" * 8], "columns end after 8 bytes, 32 were announced"),
        ([1, [["a", "q"]], b"x" * 24], "8 bytes follow the last column"),
        ([10**9, [["a", "q"]], b""], "1000000000 rows is refused"),
        ([1, [["a", "z"]], b"x" * 16], "header cannot be read"),
        ([1, [["a", "q"]]], "header cannot be read"),
    ],
)
def test_series_of_a_node_that_are_not_what_they_announce(given: object, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(with_header(header(node_series=given)))
