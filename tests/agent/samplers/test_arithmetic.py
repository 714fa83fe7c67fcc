"""Averages by time, counters that wrap, errors that are told once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.agent.samplers.readings import _WORD, Counter, Errors, Gauge, growth
from jobsight.model import SECOND


def test_an_average_begins_with_the_first_reading() -> None:
    gauge = Gauge()
    assert gauge.average is None
    gauge.add(100 * SECOND, 50)
    assert gauge.average == 50
    gauge.add(110 * SECOND, 50)
    assert gauge.average == 50
    gauge.add(140 * SECOND, 100)
    # 10 s at 50 and 30 s at 75 on the middle.
    assert gauge.average == pytest.approx((500 + 2250) / 40)
    assert gauge.integral == pytest.approx(2750)
    assert (gauge.minimum, gauge.last, gauge.maximum) == (50, 100, 100)


def test_a_failed_reading_and_a_clock_that_went_back_change_nothing() -> None:
    gauge = Gauge()
    gauge.add(0, None)
    gauge.add(10 * SECOND, 4)
    gauge.add(15 * SECOND, None)
    gauge.add(5 * SECOND, 1000)
    gauge.add(20 * SECOND, 4)
    assert (gauge.average, gauge.maximum, gauge.seconds) == (4, 4, 10)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.floats(-1e9, 1e9, allow_subnormal=False)), min_size=1
    )
)
def test_an_average_lies_between_the_readings(steps: list[tuple[int, float]]) -> None:
    gauge = Gauge()
    time = 0
    for step, value in steps:
        time += step * 1_000_000
        gauge.add(time, value)
    assert gauge.average is not None
    assert gauge.minimum is not None
    assert gauge.maximum is not None
    slack = 1e-6 * (abs(gauge.minimum) + abs(gauge.maximum) + 1)
    assert gauge.minimum - slack <= gauge.average <= gauge.maximum + slack


def test_growth_over_a_wrap_and_over_a_new_beginning() -> None:
    assert growth(10, 15) == 5
    assert growth(2**18 - 1, 3, 2**18) == 4
    assert growth(_WORD - 6, 4) == 10
    assert growth(2**40, 7) == 7
    assert growth(1000, 7) == 7


@given(st.integers(2, 2**40), st.lists(st.integers(0, 2**30), max_size=20), st.integers(0, 2**40))
def test_a_counter_that_wraps_adds_up(modulus: int, steps: list[int], start: int) -> None:
    value = start % modulus
    counter = Counter(modulus)
    counter.update(value)
    expected = 0
    for step in steps:
        step %= modulus
        value = (value + step) % modulus
        expected += step
        assert counter.update(value) == expected


@given(st.lists(st.integers(0, 2**64)))
def test_a_counter_never_falls(values: list[int]) -> None:
    counter = Counter()
    totals = [counter.update(value) for value in values]
    assert totals == sorted(totals)


def test_errors_are_told_once_per_cause() -> None:
    errors = Errors()
    errors.add("a", OSError(13, "Permission denied", "/x"))
    errors.add("a", "again")
    assert errors.unreported() == ["a: Permission denied: /x"]
    errors.add("b", ValueError("odd"))
    assert errors.unreported() == ["b: odd"]
    assert errors.unreported() == []
    assert errors.count == 3
    for number in range(1000):
        errors.add(str(number), "x")
    assert len(errors.causes) == 64
