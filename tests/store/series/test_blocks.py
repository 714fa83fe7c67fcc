"""Stretches of time series and their sums."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jobsight.model import MISSING
from jobsight.store.series import packing
from jobsight.store.series.blocks import SeriesBlock, Summary, summarise
from jobsight.store.series.packing import Values
from tests.examples import examples

INTEGERS = st.one_of(st.integers(-(10**15), 10**15), st.just(MISSING))
FLOATS = st.one_of(st.floats(-1e15, 1e15), st.just(np.nan))


@st.composite
def curves(draw: st.DrawFn) -> SeriesBlock:
    rows = draw(st.integers(1, 20))
    gaps = draw(arrays.arrays(np.int64, rows, elements=st.integers(1, 10**11)))
    columns: dict[str, Values] = {}
    for name in draw(st.lists(st.text(max_size=4), unique=True, max_size=6)):
        whole = draw(st.booleans())
        columns[name] = draw(
            arrays.arrays(np.int64, rows, elements=INTEGERS)
            if whole
            else arrays.arrays(np.float64, rows, elements=FLOATS)
        )
    return SeriesBlock(1_790_000_000 * 10**9 + np.cumsum(gaps), columns)


def plainly(times: list[int], values: list[int] | list[float]) -> Summary | None:
    """One metric, row by row."""
    there = [
        (time, value)
        for time, value in zip(times, values, strict=True)
        if value != MISSING and value == value
    ]
    if not there:
        return None
    integral = duration = 0.0
    for (before, _), (time, value) in itertools.pairwise(there):
        integral += value * (time - before) / 1e9
        duration += (time - before) / 1e9
    found = [value for _, value in there]
    return Summary(
        min(found), max(found), found[0], found[-1], there[0][0], there[-1][0], integral, duration
    )


@settings(max_examples=examples(300), deadline=None)
@given(curves(), st.booleans())
def test_metrics_summed_up_together_are_summed_up_like_each_alone(
    given: SeriesBlock, narrow: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if narrow:
            patch.setattr(packing, "_GROUP_SIZE", 2 * len(given.times))
        found = summarise(given)
    expected = {
        name: plainly(given.times.tolist(), values.tolist())
        for name, values in given.columns.items()
    }
    assert list(found) == [name for name, one in expected.items() if one is not None]
    for name, summary in found.items():
        one = expected[name]
        assert one is not None
        assert (summary.minimum, summary.maximum) == (one.minimum, one.maximum)
        assert (summary.first, summary.last) == (one.first, one.last)
        assert (summary.first_time, summary.last_time) == (one.first_time, one.last_time)
        assert type(summary.first) is type(one.first)
        scale = max(map(abs, (one.minimum, one.maximum))) * one.duration
        assert summary.integral == pytest.approx(one.integral, rel=1e-9, abs=1e-12 * scale)
        assert summary.duration == pytest.approx(one.duration)
