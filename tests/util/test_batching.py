from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.util.batching import batched


@given(st.lists(st.integers(), max_size=50), st.integers(1, 60))
def test_batches_joined_are_the_items(items: list[int], size: int) -> None:
    batches = list(batched(iter(items), size))
    assert [item for batch in batches for item in batch] == items
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(0 < len(batch) <= size for batch in batches[-1:])


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        next(batched([1], 0))
