"""Time series and shares as characters."""

from hypothesis import given
from hypothesis import strategies as st

from jobsight.reports.terminal import bar, spark_line
from jobsight.software.queries import _buckets as buckets


def test_a_line_shows_the_highest_and_leaves_nothing_empty() -> None:
    assert spark_line([0, 1, 4, 8]) == " ▂▅█"
    assert spark_line([0, 0]) == "  "
    assert spark_line([]) == ""


def test_a_bar_shows_what_is_more_than_nothing() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(1e-9, 4) == "▏   "
    assert bar(0, 4) == "    "
    assert bar(2, 4) == "████"


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=100), st.integers(1, 30))
def test_each_value_counts_in_one_bucket(values: list[int], count: int) -> None:
    found = buckets(values, count)
    assert sum(found) == sum(values)
    assert len(found) == min(count, len(values))
