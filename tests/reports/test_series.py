from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.metrics import METRICS
from jobsight.model import MISSING, SECOND
from jobsight.reports import series as curves

CPU = METRICS["cpu.time"]
READ = METRICS["io.read_bytes"]


class Node(NamedTuple):
    node: str
    times: Any
    columns: dict[str, Any]


def _times(*seconds: float) -> Any:
    return np.array([round(second * SECOND) for second in seconds], dtype=np.int64)


def _integers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def _one(node: Node, points: int = 600) -> curves.NodeSeriesReply:
    return curves.reply("a:1", [node], [], points).nodes[0]


def test_rate_over_irregular_steps() -> None:
    rate, span = curves.rates(_times(0, 1, 11), _integers(0, 2 * SECOND, 32 * SECOND), CPU)
    assert np.isnan(rate[0])
    assert rate[1:].tolist() == [2, 3]
    assert span.tolist() == [0, 1, 10]


def test_a_counter_that_falls_has_no_rate_there() -> None:
    rate, _ = curves.rates(_times(0, 1, 2, 3), _integers(10, 20, 5, 6), READ)
    assert np.isnan(rate).tolist() == [True, False, True, False]
    assert rate[3] == 1


def test_after_a_gap_the_rate_covers_the_gap() -> None:
    rate, span = curves.rates(_times(0, 1, 2, 3), _integers(0, MISSING, MISSING, 30), READ)
    assert np.isnan(rate[:3]).all()
    assert (rate[3], span[3]) == (10, 3)


def test_two_samples_of_one_moment_have_no_rate() -> None:
    rate, _ = curves.rates(_times(1, 1), _integers(0, 5), READ)
    assert np.isnan(rate).all()


def test_missing_values_are_null_in_the_reply() -> None:
    columns = {
        "memory.used": _integers(5, MISSING, 7),
        "third.party": np.array([0.5, np.nan, np.inf]),
    }
    made = curves.reply("a:1", [Node("n", _times(0, 1, 2), columns)], ["cpu.time"], 600)
    text = msgspec.json.decode(msgspec.json.encode(made))
    node = text["nodes"][0]
    assert node["metrics"]["memory.used"]["mean"] == [5, None, 7]
    assert node["metrics"]["third.party"]["maximum"] == [0.5, None, None]
    assert node["metrics"]["memory.used"]["unit"] == "bytes"
    assert text["absent"] == ["cpu.time"]


def test_one_point_and_no_point() -> None:
    one = _one(Node("n", _times(1), {"cpu.time": _integers(5), "memory.used": _integers(6)}))
    assert msgspec.to_builtins(one)["times_seconds"] == [1]
    assert np.isnan(one.metrics["cpu.time"].mean[0] or np.nan)
    assert one.metrics["memory.used"].mean == [6]
    none = _one(Node("n", _times(), {"cpu.time": _integers()}))
    assert none.times_seconds == []
    assert none.metrics["cpu.time"].mean == []
    assert curves.reply("a:1", [], [], 600).nodes == []


def test_peaks_survive_and_means_are_those_of_the_counter() -> None:
    times = _times(*range(1000))
    grown = np.cumsum(np.where(np.arange(1000) == 517, 500, 1)) * SECOND
    made = _one(Node("n", times, {"cpu.time": grown, "memory.used": np.arange(1000)}), points=10)
    cpu, memory = made.metrics["cpu.time"], made.metrics["memory.used"]
    assert len(made.times_seconds) == 10
    assert max(filter(None, cpu.maximum)) == 500
    assert cpu.mean[5] == pytest.approx((99 + 500) / 100)
    assert (memory.minimum[0], memory.maximum[9]) == (0, 999)


def test_means_of_rates_are_weighted_with_time() -> None:
    # One second at 10 cores, then nine at none: one core on average over the stretch of ten.
    made = _one(
        Node("n", _times(0, 1, 10, 11), {"cpu.time": _integers(0, 10, 10, 10) * SECOND}), points=1
    )
    assert made.metrics["cpu.time"].mean[0] == pytest.approx(10 / 11)


def _schedule(length: int) -> list[int]:
    """The seconds at which an agent samples a job."""
    moments, at = [], 0
    while at <= length:
        moments.append(at)
        at += 1 if at < 60 else 10 if at < 3600 else 30
    return moments


@pytest.mark.parametrize("length", [2, 10, 61, 65, 70, 130, 3600, 3640, 9000])
def test_the_schedule_of_an_agent_has_no_gaps(length: int) -> None:
    jitter = np.random.default_rng(length)
    seconds = [at + jitter.uniform(0, 0.2) for at in _schedule(length)]
    # The last sample is taken when the job ends, whenever that is.
    for end in (0.001, 0.9, 29):
        assert curves.find_gaps(_times(*seconds, seconds[-1] + min(end, 1))).tolist() == []
    assert curves.find_gaps(_times(*np.arange(0, 6000, 60))).tolist() == []


@pytest.mark.parametrize(
    ("lost", "place"),
    [((3, 9), 3), ((30, 40), 30), ((55, 75), 55), ((100, 140), 64), ((3590, 3800), 413)],
)
def test_lost_samples_are_a_gap(lost: tuple[int, int], place: int) -> None:
    kept = [at for at in _schedule(9000) if not lost[0] <= at < lost[1]]
    assert curves.find_gaps(_times(*kept)).tolist() == [place]


def test_lonely_samples_between_gaps() -> None:
    found = curves.find_gaps(_times(0, 10, 20, 30, 500, 1000, 1010, 1020, 1030))
    assert found.tolist() == [4, 5]


def test_a_gap_is_a_point_without_values() -> None:
    seconds = (0, 1, 2, 3, 4, 24, 25, 26, 27)
    values = np.arange(len(seconds))
    node = Node("n", _times(*seconds), {"memory.used": values, "cpu.time": values * SECOND})
    made = _one(node)
    assert made.times_seconds == [0, 1, 2, 3, 4, 14, 24, 25, 26, 27]
    for curve in made.metrics.values():
        assert curve.mean[5] is None or np.isnan(curve.mean[5])
    assert made.metrics["memory.used"].mean[6] == 5
    # Still true of the whole: the rate after the gap is that over the gap.
    assert made.metrics["cpu.time"].mean[6] == pytest.approx(1 / 20)
    # In few points it stays visible as long as a stretch falls into it, and no point is added.
    few = _one(node, points=9)
    assert len(few.times_seconds) == 5
    assert np.isnan(few.metrics["memory.used"].mean[2])
    two = _one(node, points=2)
    assert not np.isnan(two.metrics["memory.used"].mean).any()


def test_nodes_share_their_stretches() -> None:
    nodes = [
        Node("a", _times(*np.arange(0, 100, 0.5)), {"memory.used": np.arange(200)}),
        Node("b", _times(*np.arange(0.2, 100, 0.5)), {"memory.used": np.arange(200)}),
    ]
    made = curves.reply("a:1", nodes, [], 20)
    assert made.nodes[0].times_seconds == made.nodes[1].times_seconds


def test_a_clock_that_stepped_back() -> None:
    made = _one(Node("n", _times(5, 6, 4), {"memory.used": _integers(5, 6, 4)}))
    assert made.times_seconds == [4, 5, 6]
    assert made.metrics["memory.used"].mean == [4, 5, 6]


def test_wide_jobs_get_fewer_points() -> None:
    assert curves.points_allowed(600, 20) == 600
    assert curves.points_allowed(600, 64 * 20) == 156
    assert curves.points_allowed(600, 1_000_000) == 50
    assert curves.points_allowed(10, 1_000_000) == 10


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(MISSING, 2**63 - 1)), max_size=60),
    st.integers(1, 30),
)
def test_any_column_gives_sound_json(rows: list[tuple[int, int]], points: int) -> None:
    times = np.array([row[0] for row in rows], dtype=np.int64)
    values = np.array([row[1] for row in rows], dtype=np.int64)
    node = Node("n", times, {"cpu.time": values, "memory.used": values})
    made = msgspec.json.decode(msgspec.json.encode(curves.reply("a:1", [node], [], points)))
    made = made["nodes"][0]
    assert made["times_seconds"] == sorted(made["times_seconds"])
    for curve in made["metrics"].values():
        assert len(curve["mean"]) == len(made["times_seconds"]) <= max(points, 1)
        for mean, low, high in zip(curve["mean"], curve["minimum"], curve["maximum"], strict=True):
            if mean is not None:
                slack = 1e-3 + abs(mean) * 1e-9
                assert low - slack <= mean <= high + slack
