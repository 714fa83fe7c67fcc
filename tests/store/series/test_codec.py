"""The codec: what goes in comes out bit for bit, and damage is told."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jobsight.model import MISSING
from jobsight.store.series import codec, packing
from jobsight.store.series.codec import ChunkError
from jobsight.store.series.packing import Values
from tests.examples import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
#: Any 64 bits as a float: all NaNs, infinities, both zeros, denormals.
BITS = st.integers(0, 2**64 - 1)

ints = st.one_of(
    INT64,
    st.integers(-3, 3),
    st.sampled_from([MISSING, 2**63 - 1, 0, 4096, 10**18]),
    st.integers(0, 1000).map(lambda pages: pages * 4096),
)
floats = st.one_of(
    BITS,
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, 250.1, 1e-300, 2.0**53]).map(
        lambda value: int(np.float64(value).view(np.uint64))
    ),
    st.integers(0, 5000).map(lambda value: int(np.float64(value / 10).view(np.uint64))),
)


@st.composite
def curves(draw: st.DrawFn) -> tuple[packing.Integers, dict[str, Values]]:
    rows = draw(st.one_of(st.integers(0, 12), st.integers(0, 80)))
    names = draw(st.lists(st.text(max_size=8), unique=True, max_size=4))
    times = draw(arrays.arrays(np.int64, rows, elements=ints))
    if draw(st.booleans()):
        steps = draw(arrays.arrays(np.int64, rows, elements=st.integers(1, 30 * 10**9)))
        times = 1_790_000_000 * 10**9 + np.cumsum(steps)
    columns: dict[str, Values] = {}
    for name in names:
        if draw(st.booleans()):
            columns[name] = draw(arrays.arrays(np.int64, rows, elements=ints))
            if draw(st.booleans()):
                columns[name] = np.cumsum(columns[name].view(np.uint64)).view(np.int64)
        else:
            words = draw(arrays.arrays(np.uint64, rows, elements=floats))
            columns[name] = words.view(np.float64)
    return times, columns


def same(one: Values, other: Values) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


@settings(max_examples=examples(400), deadline=None)
@given(curves())
def test_what_goes_in_comes_out(given: tuple[packing.Integers, dict[str, Values]]) -> None:
    times, columns = given
    for encode in (codec.encode, codec.encode_quickly, codec.encode_plain):
        found_times, found = codec.decode(encode(times, columns))
        assert same(found_times, times)
        assert list(found) == list(columns)
        assert all(same(found[name], columns[name]) for name in columns)


@settings(max_examples=examples(100), deadline=None)
@given(curves())
def test_differences_read_together_and_by_column(
    given: tuple[packing.Integers, dict[str, Values]],
) -> None:
    packed = codec.encode_quickly(*given)
    with mock.patch.object(codec, "MAX_DELTA_VALUES", 0):
        times, columns = codec.decode(packed)
    assert same(times, given[0])
    assert all(same(columns[name], values) for name, values in given[1].items())


@settings(max_examples=examples(100), deadline=None)
@given(curves(), st.data())
def test_stretches_written_in_different_ways_come_out_in_their_order(
    given: tuple[packing.Integers, dict[str, Values]], data: st.DataObject
) -> None:
    times, columns = given
    ways = st.sampled_from([codec.encode, codec.encode_quickly, codec.encode_plain])
    pieces = []
    rest = len(times)
    while rest:
        rows = data.draw(st.integers(1, rest))
        stretch = slice(len(times) - rest, len(times) - rest + rows)
        some = {name: values[stretch] for name, values in columns.items()}
        pieces.append(data.draw(ways)(times[stretch], some))
        rest -= rows
    found = list(codec.decode_many(pieces))
    assert same(np.concatenate([part for part, _ in found] or [times[:0]]), times)
    for name, values in columns.items():
        assert same(np.concatenate([part[name] for _, part in found] or [values[:0]]), values)


@settings(max_examples=examples(100), deadline=None)
@given(curves(), st.data())
def test_one_column_alone(
    given: tuple[packing.Integers, dict[str, Values]], data: st.DataObject
) -> None:
    times, columns = given
    wanted = data.draw(st.sets(st.sampled_from([*columns, "none of these"])))
    _, found = codec.decode(codec.encode(times, columns), wanted)
    assert found.keys() == columns.keys() & wanted
    assert all(same(found[name], columns[name]) for name in found)


@settings(max_examples=examples(400), deadline=None)
@given(curves(), st.data())
def test_damage_is_told(
    given: tuple[packing.Integers, dict[str, Values]], data: st.DataObject
) -> None:
    times, columns = given
    encode = data.draw(st.sampled_from([codec.encode, codec.encode_quickly]))
    packed = bytearray(encode(times, columns))
    how = data.draw(st.sampled_from(["flip", "cut", "add", "noise"]))
    place = data.draw(st.integers(0, len(packed) - 1))
    if how == "flip":
        packed[place] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del packed[place:]
    elif how == "add":
        packed += data.draw(st.binary(min_size=1, max_size=8))
    else:
        packed[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))
    try:
        found_times, found = codec.decode(bytes(packed))
    except ChunkError:
        return
    assert same(found_times, times)
    assert all(same(found[name], columns[name]) for name in columns)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_noise_is_no_chunk(noise: bytes, framed: bool) -> None:
    if framed:
        # The frame and its checksum are right, what is in it is not.
        noise = bytes((codec.VERSION,)) + codec.compress(noise)
    with pytest.raises(ChunkError):
        codec.decode(noise)


def test_another_version_is_named() -> None:
    packed = codec.encode(np.arange(20), {"a": np.arange(20)})
    with pytest.raises(ChunkError, match="version 2, expected 1"):
        codec.decode(b"\x02" + packed[1:])


def test_columns_must_be_equally_long() -> None:
    for rows in (3, 30):
        with pytest.raises(ValueError, match="'a' has 2 rows"):
            codec.encode(np.arange(rows), {"a": np.arange(2)})


def test_constant_columns_cost_almost_nothing() -> None:
    times = 1_790_000_000 * 10**9 + np.arange(2880) * 10**10
    one = len(codec.encode(times, {"m0": np.full(2880, 12345)}))
    many = len(codec.encode(times, {f"m{n}": np.full(2880, 12345) for n in range(51)}))
    assert (many - one) / 50 < 12
    missing = {f"m{n}": np.full(2880, np.nan) for n in range(51)}
    assert len(codec.encode(times, missing)) < 51 * 24


def typical_job(rows: int) -> tuple[packing.Integers, dict[str, Values]]:
    """Four busy cores, memory in pages, some reading and writing, by an agent with jitter."""
    random = np.random.default_rng(1)
    gaps = np.concatenate([np.full(60, 1), np.full(354, 10), np.full(rows, 30)])[:rows]
    times = (1_790_000_000 + np.cumsum(gaps)) * 10**9 + random.integers(0, 400_000, rows)
    elapsed = np.diff(times, prepend=times[0] - 10**9)
    busy = np.clip(3.9 + random.normal(0, 0.05, rows), 0, 4)
    user = np.cumsum((busy * 0.97 * elapsed).astype(np.int64)) // 1000 * 1000
    system = np.cumsum((busy * 0.03 * elapsed).astype(np.int64)) // 1000 * 1000
    anonymous = np.cumsum(random.poisson(3, rows) * (random.random(rows) < 0.3)) * 4096 + 2**31
    file = np.cumsum(random.integers(0, 100, rows) * (random.random(rows) < 0.5)) * 4096
    read = np.cumsum(random.integers(0, 10**7, rows) * (random.random(rows) < 0.5))
    written = np.cumsum(random.integers(0, 10**6, rows))
    return times, {
        "cpu.time": user + system,
        "cpu.user": user,
        "cpu.system": system,
        "memory.used": anonymous,
        "memory.current": anonymous + file,
        "memory.file": file,
        "memory.swap": np.zeros(rows, np.int64),
        "io.read_characters": read,
        "io.written_characters": written,
        "io.written_bytes": written // 4096 * 4096,
        "io.read_calls": read // 65536,
        "tasks.processes": 5 + (random.random(rows) < 0.02).astype(np.int64),
        "gpu.power": np.round(250 + random.normal(0, 5, rows), 1),
    }


def test_a_typical_job_takes_less_than_two_bytes_a_value() -> None:
    times, columns = typical_job(2880)
    packed = codec.encode(times, columns)
    assert len(packed) / (2880 * len(columns)) < 2.0
    few = {name: values[:384] for name, values in columns.items()}
    quickly, well = codec.encode_quickly(times[:384], few), codec.encode(times[:384], few)
    assert len(quickly) < 1.6 * len(well)


def test_a_fully_busy_core_is_cheaper_than_its_clock() -> None:
    """CPU time follows the jitter of the sampling times, which are stored anyway."""
    random = np.random.default_rng(2)
    times = 1_790_000_000 * 10**9 + np.arange(1000) * 10**10 + random.integers(0, 10**7, 1000)
    busy = 4 * (times - times[0]) + random.integers(0, 200, 1000)
    alone = len(codec.encode(times, {}))
    both = len(codec.encode(times, {"cpu.time": busy}))
    assert (both - alone) / 1000 < 1.5


@settings(max_examples=examples(200), deadline=None)
@given(curves(), st.integers(1, 3))
def test_columns_packed_together_are_packed_like_each_alone(
    given: tuple[packing.Integers, dict[str, Values]], width: int
) -> None:
    times, columns = given
    together = codec.encode(times, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_GROUP_SIZE", width * max(1, len(times)))
        assert codec.encode(times, columns) == together


@given(st.lists(curves(), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_many_chunks_are_read_as_one_by_one(
    given: list[tuple[packing.Integers, dict[str, Values]]], plain: list[bool]
) -> None:
    """Neighbours may be put together, but every row and every column stays in its place."""
    packed = [
        (codec.encode_plain if as_it_is else codec.encode)(times, columns)
        for (times, columns), as_it_is in zip(given, plain, strict=False)
    ]
    # Each twice, so that there are neighbours of one shape.
    packed = [data for data in packed for _ in range(2)]
    alone = [codec.decode(data) for data in packed]
    together = list(codec.decode_many(packed))
    assert sum(len(times) for times, _ in together) == sum(len(times) for times, _ in alone)
    times = np.concatenate([times for times, _ in together])
    assert same(times, np.concatenate([times for times, _ in alone]))
    rows = [_rows(*piece) for piece in together]
    assert [row for piece in rows for row in piece] == [
        row for piece in alone for row in _rows(*piece)
    ]


@given(curves(), st.integers(1, 6), st.integers(1, 3000))
def test_chunks_of_one_shape_become_one_up_to_a_size(
    given: tuple[packing.Integers, dict[str, Values]], count: int, limit: int
) -> None:
    """As an agent sends them: the same columns and as many rows each time, other values."""
    times, columns = given
    pieces = []
    for number in range(count):
        moved = {name: np.roll(values, number) for name, values in columns.items()}
        pieces.append((np.roll(times, number), moved))
    with mock.patch.object(codec, "_MAX_TOGETHER", limit):
        together = list(codec.decode_many(codec.encode_plain(*piece) for piece in pieces))
    assert [row for piece in together for row in _rows(*piece)] == [
        row for piece in pieces for row in _rows(*piece)
    ]
    assert same(
        np.concatenate([part for part, _ in together]), np.concatenate([p for p, _ in pieces])
    )


@given(st.integers(1, 700), st.floats(0, 64), st.integers(0, 2**32))
def test_a_counter_with_any_rate_comes_back(rows: int, rate: float, seed: int) -> None:
    """Its rate is found from some of its rows only."""
    numbers = np.random.default_rng(seed)
    steps = numbers.integers(0, 30 * 10**9, rows)
    times = 1_790_000_000 * 10**9 + np.cumsum(steps)
    values = np.cumsum((steps * rate).astype(np.int64) + numbers.integers(0, 1000, rows))
    found_times, found = codec.decode(codec.encode(times, {"cpu.time": values}))
    assert same(found_times, times)
    assert same(found["cpu.time"], values)


def _rows(times: packing.Integers, columns: dict[str, Values]) -> list[tuple[object, ...]]:
    """Each row by its columns' names and bits."""
    bits = {name: values.view(np.uint64).tolist() for name, values in columns.items()}
    return [
        tuple((name, values[place]) for name, values in sorted(bits.items()))
        for place in range(len(times))
    ]
