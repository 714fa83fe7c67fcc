from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from jobsight.util.backoff import Backoff, random_fraction

fractions = st.floats(0, 1, exclude_max=True)


@given(st.floats(0.001, 100), st.floats(1, 1000), fractions, fractions, st.integers(1, 2000))
def test_delays_double_up_to_the_limit(
    first: float, factor: float, jitter: float, random: float, failures: int
) -> None:
    most = first * factor
    backoff = Backoff(first, most, jitter, random=lambda: random)
    delays = [backoff.fail() for _ in range(failures)]
    assert backoff.failures == failures
    assert delays[0] == first * (1 + jitter * random)
    assert all(a <= b <= 2.001 * a for a, b in itertools.pairwise(delays))
    assert max(delays) <= most * (1 + jitter)
    backoff.reset()
    assert backoff.fail() == delays[0]


def test_ready_follows_the_clock() -> None:
    now = 100.0
    backoff = Backoff(5, 300, clock=lambda: now, random=lambda: 0)
    assert backoff.ready
    assert backoff.fail() == 5
    assert not backoff.ready
    now = 105.0
    assert backoff.ready
    assert backoff.fail() == 10
    backoff.reset()
    assert backoff.ready


def test_random_fractions_differ() -> None:
    fractions = {random_fraction() for _ in range(50)}
    assert all(0 <= fraction < 1 for fraction in fractions)
    assert len(fractions) > 1
