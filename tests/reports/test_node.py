"""The time line of a node and what its jobs used."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import SECOND
from jobsight.reports.build import JobRow
from jobsight.reports.node import _mean_rate, _mean_value, place_in_lanes
from jobsight.reports.queue import explain_reason
from jobsight.store.read.queries import StoredSeries

DAY = 86400 * SECOND


def row(number: int, start: int, end: int | None) -> JobRow:
    empty = dict.fromkeys(
        (
            "name", "user", "account", "partition", "exit_code", "exit_signal", "elapsed",
            "requested_cpus", "cpu_time", "cpu_share", "memory_requested_bytes",
            "memory_used_peak_bytes", "memory_kernel_peak_bytes", "memory_share",
        )
    )  # fmt: skip
    return JobRow(
        run=f"a:{number}", cluster="a", job_id=number, display_id=str(number), state="COMPLETED",
        state_text="", running=end is None, start=start, end=end, node_count=1, provisional=False,
        **empty,  # type: ignore[arg-type]
    )  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(-DAY, DAY), st.one_of(st.none(), st.integers(0, DAY))), max_size=30
    )
)
def test_jobs_in_one_lane_never_overlap(spans: list[tuple[int, int | None]]) -> None:
    rows = [
        row(number, start, None if length is None else start + length)
        for number, (start, length) in enumerate(spans)
    ]
    placed, lanes = place_in_lanes(rows, 0, DAY)
    assert len(placed) == len(rows)
    assert lanes == max((job.lane + 1 for job in placed), default=0)
    for lane in range(lanes):
        inside = sorted((job.since, job.until) for job in placed if job.lane == lane)
        assert all(0 <= since <= until <= DAY or since > DAY for since, until in inside)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(inside))


def test_the_mean_rate_keeps_the_integral_of_the_counter() -> None:
    times = np.array([100, 250, 400, 900]) * SECOND
    values = np.array([0, 300, 300, 1300]) * SECOND
    series = StoredSeries("n", times, {"cpu.time": values})
    bounds = np.linspace(0, 1000 * SECOND, 8)
    rate = _mean_rate(series, "cpu.time", bounds)
    assert rate.min() >= 0
    assert float((rate * np.diff(bounds)).sum()) == pytest.approx(1300 * SECOND)
    assert not _mean_rate(series, "absent", bounds).any()


def test_a_gauge_is_zero_where_the_job_was_not() -> None:
    series = StoredSeries("n", np.array([40, 60]) * SECOND, {"memory.used": np.array([5, 5])})
    value = _mean_value(series, "memory.used", np.linspace(0, 100 * SECOND, 11))
    assert value.tolist() == [0, 0, 0, 0, 5, 5, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("Priority", "higher priority"),
        ("QOSMaxJobsPerUserLimit", "quality of service"),
        ("AssocGrpGRES", "account or user"),
        ("ReqNodeNotAvail, UnavailableNodes:cn[1-3]", "down, drained or reserved"),
    ],
)
def test_reasons_of_slurm_are_explained(reason: str, part: str) -> None:
    assert part in explain_reason(reason)


def test_an_unknown_reason_has_no_invented_sentence() -> None:
    assert explain_reason("SomethingNew") == ""
