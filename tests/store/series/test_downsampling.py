"""Fewer rows, the same totals."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.metrics import METRICS
from jobsight.model import MISSING, SECOND
from jobsight.reports import series as pages
from jobsight.store.read.queries import StoredSeries
from jobsight.store.series import codec
from jobsight.store.series.blocks import (
    MIN_POINTS,
    SeriesBlock,
    Summary,
    downsample,
    downsample_chunks,
    interval_width,
    present,
    summarise,
)
from jobsight.store.series.codec import decompress

CPU = METRICS["cpu.time"]
START = 1_790_000_000 * SECOND


def _day(seconds: int = 86400, step: int = 30) -> SeriesBlock:
    """A counter with a pause in it, and gauges that wander."""
    times = START + np.arange(0, seconds, step) * SECOND
    rows = np.arange(len(times))
    busy = (rows % 100 < 70) * step * SECOND
    return SeriesBlock(
        times,
        {
            "cpu.time": np.cumsum(busy),
            "memory.used": 2**30 + rows * 4096 + (rows == 517) * 2**33,
            "tasks.processes": rows % 3,
            "third.party": np.sin(rows / 50),
        },
    )


def _growth(curves: SeriesBlock) -> float:
    """What a page would add up to: rates times the seconds for which they stand."""
    rates, spans = pages.rates(curves.times, curves.columns["cpu.time"], CPU)
    return float(np.nansum(rates * spans))


def _integral(curves: SeriesBlock, name: str) -> float:
    return summarise(curves)[name].integral


def test_a_day_keeps_its_totals_means_and_ends() -> None:
    day = _day()
    made = downsample(day, 300 * SECOND)
    assert len(made.times) == pytest.approx(len(day.times) / 10, abs=2)
    assert (made.times[0], made.times[-1]) == (day.times[0], day.times[-1])
    counter = day.columns["cpu.time"]
    assert made.columns["cpu.time"].tolist() == counter[np.isin(day.times, made.times)].tolist()
    assert _growth(made) == pytest.approx(_growth(day))
    for name in ("memory.used", "tasks.processes", "third.party"):
        assert _integral(made, name) == pytest.approx(_integral(day, name), rel=1e-6)
    # Small counts keep their decimals, bytes are whole.
    assert made.columns["tasks.processes"].dtype.kind == "f"
    assert made.columns["memory.used"].dtype.kind == "i"


def test_the_summary_is_that_of_all_rows() -> None:
    day = _day()
    (made,) = downsample_chunks([codec.encode(*day)], 300 * SECOND) or ()
    assert made.resolution == 300 * SECOND
    assert (made.first, made.last, made.rows) == (
        day.times[0], day.times[-1], len(codec.decode(made.data)[0]),
    )  # fmt: skip
    kept = msgspec.msgpack.decode(decompress(made.summary), type=dict[str, Summary])
    assert kept == summarise(day)
    assert kept["memory.used"].maximum > 2**33
    assert len(made.data) < len(codec.encode(*day)) / 3


def test_chunks_that_wait_are_joined_first() -> None:
    day = _day()
    pieces = [
        SeriesBlock(day.times[at::7], {name: values[at::7] for name, values in day.columns.items()})
        for at in range(7)
    ]
    apart = downsample_chunks([codec.encode_plain(*piece) for piece in pieces], 300 * SECOND)
    assert apart == downsample_chunks([codec.encode(*day)], 300 * SECOND)


def test_short_runs_keep_what_a_page_draws() -> None:
    assert interval_width(86400 * SECOND, 300 * SECOND) == 300 * SECOND
    hour = _day(3600, 10)
    made = downsample(hour, interval_width(3600 * SECOND, 300 * SECOND))
    assert MIN_POINTS <= len(made.times) <= MIN_POINTS + 2
    minute = _day(60, 1)
    assert downsample_chunks([codec.encode(*minute)], 300 * SECOND) is None


def test_a_page_draws_a_thinned_curve_without_gaps() -> None:
    day = _day()
    made = downsample(day, 300 * SECOND)
    assert pages.find_gaps(made.times).tolist() == []
    whole, few = (
        pages.reply("a:1", [StoredSeries("n", *part)], [], 50).nodes[0] for part in (day, made)
    )
    assert few.metrics["cpu.time"].mean[1:] == pytest.approx(
        whole.metrics["cpu.time"].mean[1:], abs=0.2
    )
    # Where samples were lost, they are still missing.
    lost = (day.times < START + 30000 * SECOND) | (day.times > START + 40000 * SECOND)
    part = SeriesBlock(
        day.times[lost], {name: values[lost] for name, values in day.columns.items()}
    )
    assert len(pages.find_gaps(downsample(part, 300 * SECOND).times)) == 1


_COUNTER = st.lists(
    st.one_of(st.integers(0, 50), st.just("fall"), st.just("missing")), min_size=1, max_size=60
)


@given(_COUNTER, st.integers(1, 70), st.lists(st.integers(1, 9), min_size=60, max_size=60))
def test_counters_grow_by_the_same(steps: list[object], width: int, gaps: list[int]) -> None:
    value, values = 7, []
    for step in steps:
        if step == "missing":
            values.append(MISSING)
            continue
        value = 0 if step == "fall" else value + int(str(step))
        values.append(value)
    times = START + np.cumsum(gaps)[: len(values)] * SECOND
    curves = SeriesBlock(times, {"cpu.time": np.array(values, np.int64) * 1})
    made = downsample(curves, width * SECOND)
    assert _growth(made) == pytest.approx(_growth(curves))
    there = curves.columns["cpu.time"][present(curves.columns["cpu.time"])]
    kept = made.columns["cpu.time"][present(made.columns["cpu.time"])]
    assert len(kept) == len(set(made.times[present(made.columns["cpu.time"])]))
    assert kept[[0, -1]].tolist() == there[[0, -1]].tolist() if len(there) else not len(kept)


@given(
    st.lists(
        st.one_of(st.floats(-1e6, 1e6), st.sampled_from([np.nan, np.inf])), min_size=1, max_size=60
    ),
    st.integers(1, 70),
)
def test_gauges_keep_their_integral(values: list[float], width: int) -> None:
    times = START + np.arange(len(values)) * SECOND
    curves = SeriesBlock(times, {"load": np.array(values)})
    made = downsample(curves, width * SECOND)
    assert (made.times[0], made.times[-1]) == (times[0], times[-1])
    finite = np.array(values)[np.isfinite(values)]
    if len(finite) == len(values):
        assert _integral(made, "load") == pytest.approx(_integral(curves, "load"), abs=1e-3)
        assert made.columns["load"].min() >= finite.min() - 1e-6
        assert made.columns["load"].max() <= finite.max() + 1e-6
