"""Which run a sighting belongs to, where a job was requeued within seconds."""

from __future__ import annotations

import pytest

from jobsight.model import SECOND, JobInfo, Sighting
from jobsight.store.write.runs import RunRow, match_run

BASE = 1_794_723_100 * SECOND


def run(number: int, start: float, end: float | None) -> RunRow:
    begin = BASE + round(start * SECOND)
    stop = None if end is None else BASE + round(end * SECOND)
    info = JobInfo(cluster="c", job_id=1, source="sacct", start=begin, end=stop)
    return RunRow(number, begin, False, info)


def sighting(birth: float) -> Sighting:
    return Sighting("c", 1, "n1", "boot", BASE + round(birth * SECOND))


@pytest.mark.parametrize(
    ("birth", "expected"),
    [
        (29.5, 1),  # the first run's cgroup
        (34.9, 2),  # the second's, seconds later
        (33.4, 2),  # the node's clock is a little behind
        (28.0, 1),  # far behind: the nearest start
        (33.0, 2),  # recorded to the whole second
    ],
)
def test_a_quick_requeue_is_told_apart(birth: float, expected: int) -> None:
    rows = [run(1, 29, 32), run(2, 34, 42)]
    found = match_run(rows, sighting(birth))
    assert found is not None
    assert found.id == expected


def test_a_birth_far_from_every_run_is_nobody_s() -> None:
    assert match_run([run(1, 29, 32)], sighting(500)) is None
