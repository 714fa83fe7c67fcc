"""Whole numbers split without gain or loss."""

from hypothesis import given
from hypothesis import strategies as st

from jobsight.store.rollups.shares import split_evenly, split_integer

AMOUNTS = st.integers(0, 2**60)
WEIGHTS = st.lists(st.integers(0, 2**60), min_size=1, max_size=20)


@given(AMOUNTS, WEIGHTS)
def test_shares_add_up_and_are_next_to_their_exact_value(amount: int, weights: list[int]) -> None:
    shares = split_integer(amount, weights)
    assert sum(shares) == amount
    whole = sum(weights)
    for share, weight in zip(shares, weights, strict=True):
        assert not whole or share - 1 < amount * weight / whole + 1e-6 * share
        assert not whole or abs(share * whole - amount * weight) < whole


def test_the_largest_remainder_gets_what_is_left() -> None:
    assert split_integer(10, [1, 1, 1]) == [4, 3, 3]
    assert split_integer(100, [2, 3, 1]) == [33, 50, 17]
    assert split_integer(5, [0, 0]) == [5, 0]
    assert split_integer(5, [0, 7]) == [0, 5]
    assert split_integer(0, []) == []


@given(st.lists(AMOUNTS, min_size=1, max_size=8), WEIGHTS)
def test_neither_days_nor_programs_gain_or_lose(amounts: list[int], weights: list[int]) -> None:
    table = list(split_evenly(amounts, weights))
    assert [sum(row) for row in table] == amounts
    columns = [sum(column) for column in zip(*table, strict=True)]
    assert columns == split_integer(sum(amounts), weights)
    assert min(map(min, table)) >= 0
