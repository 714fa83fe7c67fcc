"""A part of the drill, for `make test-long`; `make drill` runs all of it."""

import pytest

from tests.drill.__main__ import TESTS, page, run
from tests.drill.faults import FAULTS

SHORT = [fault.name for fault in FAULTS.values() if fault.short]


@pytest.mark.long
@pytest.mark.root
@pytest.mark.server
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled() -> None:
    rows = list(run(SHORT))
    assert [row.name for row in rows if not row.passed] == []
    assert len(rows) == len(SHORT)
    # Each is a row of the page.
    assert page(rows).count("\n| ") == len(SHORT) + 1


def test_the_drill_has_forty_faults() -> None:
    assert len(FAULTS) + len(TESTS) >= 40
    assert not FAULTS.keys() & TESTS.keys()
