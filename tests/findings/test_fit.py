"""The request of least expected waste: bounds, hostile values, arrays, and options of Slurm."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.findings import fit
from jobsight.findings.fit import PastRun, find_growth, fit_count, fit_request, split_array

GIB = 2.0**30
_needs = st.lists(st.floats(1e-3, 1e15), min_size=1, max_size=120)


def _runs(needs: list[float], request: float | None = None) -> list[PastRun]:
    return [PastRun(need, 1.0, request) for need in needs]


def test_nothing_is_recommended_without_runs() -> None:
    assert fit_request([]) is None
    assert fit_count([]) is None
    assert split_array([], []) is None
    assert find_growth([], []) is None


@given(_needs)
def test_a_request_is_never_below_the_largest_of_the_last_three(needs: list[float]) -> None:
    found = fit_request(_runs(needs))
    assert found is not None
    assert found.request >= max(needs[-3:])
    assert found.runs == len(needs)
    assert found.passed == sum(need <= found.request for need in needs)
    assert found.largest == max(needs)


@given(_needs, st.floats(1e-3, 1e3))
def test_a_request_scales_with_the_needs(needs: list[float], factor: float) -> None:
    first = fit_request(_runs(needs))
    second = fit_request(_runs([need * factor for need in needs]))
    assert first is not None
    assert second is not None
    assert math.isclose(second.request, first.request * factor, rel_tol=1e-6)


@given(
    st.lists(
        st.builds(
            PastRun,
            st.one_of(st.floats(), st.just(0.0), st.just(-1.0), st.just(math.inf)),
            st.floats(),
            st.one_of(st.none(), st.floats()),
            st.booleans(),
            st.one_of(st.none(), st.floats()),
        ),
        max_size=30,
    )
)
def test_hostile_values_raise_nothing(runs: list[PastRun]) -> None:
    found = fit_request(runs)
    assert found is None or found.request > 0


def test_the_margin_of_a_steady_work_is_small_and_that_of_a_noisy_one_larger() -> None:
    generator = random.Random(4)
    steady = [100 * generator.uniform(0.99, 1.0) for _ in range(60)]
    noisy = [100 * generator.lognormvariate(0, 0.3) for _ in range(60)]
    first, second = fit_request(_runs(steady)), fit_request(_runs(noisy))
    assert first is not None
    assert second is not None
    assert first.request < 1.05 * max(steady)
    assert second.request / max(noisy[-20:]) > first.request / max(steady[-20:])


def test_the_first_runs_give_marked_advice_with_room() -> None:
    """Of two runs, the second needs more in half of all works; nothing says how much more."""
    requests = []
    for count in (1, 2, 3, 4, 5, 6):
        found = fit_request([PastRun(10.0)] * count)
        assert found is not None
        assert found.few == (count < 3)
        requests.append(found.request)
    assert requests[:5] == [25.0, 18.0, 15.0, 13.5, 12.5]
    assert requests[5] < 12.5


def test_after_one_failure_too_many_the_largest_step_has_room_again() -> None:
    """The second run needed twice as much as the first and failed; the next such step passes."""
    runs = [PastRun(10.0, 1.0, 640.0), PastRun(25.0, 1.0, 640.0, False, 20.0)]
    followed = [*runs, *[PastRun(20.0, 1.0, 640.0, False, 60.0)] * 8]
    found = fit_request(followed, request=640.0)
    assert found is not None
    assert found.request == pytest.approx(25 * 2.5**1.5)
    # Until another failure would be one in 20 runs.
    later = fit_request([*followed, *[PastRun(20.0, 1.0, 640.0, False, 160.0)] * 40])
    assert later is not None
    assert later.request < 60
    # The request of the user held all runs.
    kept = fit_request(followed, request=90.0)
    assert kept is not None
    assert kept.request == 90
    unknown = fit_request([run._replace(request=None) for run in followed])
    assert unknown is not None
    assert unknown.request == 75


def test_a_run_that_was_killed_needs_at_least_its_limit() -> None:
    runs = [*_runs([8.0] * 10, 16.0), PastRun(16.0, 1.0, 16.0, censored=True)]
    found = fit_request(runs)
    assert found is not None
    assert found.request > 16
    # A later success says how much it was.
    later = fit_request([*runs, PastRun(21.0, 1.0, 32.0)])
    assert later is not None
    assert later.request >= 21
    assert later.largest == 21


def test_old_runs_lose_their_weight() -> None:
    runs = _runs([50.0] * 20 + [10.0] * 150, 64.0)
    found = fit_request(runs)
    assert found is not None
    assert found.request < 20


def test_advice_that_failed_too_often_becomes_careful() -> None:
    generator = random.Random(8)
    needs = [10 * generator.lognormvariate(0, 0.2) for _ in range(60)]
    followed = [PastRun(need, 1.0, 40.0, False, 100.0) for need in needs]
    failed = [run._replace(advised=1.0) if i > 50 else run for i, run in enumerate(followed)]
    first, second = fit_request(followed, request=40.0), fit_request(failed, request=40.0)
    assert first is not None
    assert second is not None
    assert second.request >= first.request


def test_the_saving_is_that_of_runs_that_would_have_passed() -> None:
    found = fit_request([PastRun(10.0, 2.0, 64.0)] * 20, rounded=math.ceil)
    assert found is not None
    assert found.unused == 20 * 54 * 2
    assert found.saving == 20 * (64 - found.request) * 2


def test_cores_are_the_usual_number_and_at_least_those_of_the_last_three() -> None:
    assert fit_count([3.9] * 30) == 4
    assert fit_count([4.04] * 30) == 4
    assert fit_count([30.0, *[2.0] * 60]) == 2
    assert fit_count([2.0] * 60 + [6.3, 2.0]) == 7
    assert fit_count([0.0, 0.2]) == 1
    assert fit_count([math.nan, -1.0, math.inf]) is None


def test_an_array_is_split_where_least_is_allotted() -> None:
    needs = [float(6 + task % 3) for task in range(500)]
    for task in (12, 77, 301):
        needs[task] = 46.0
    split = split_array(needs, [1.0] * 500)
    assert split is not None
    assert (split.request, split.tasks, split.rest_request) == (8.0, 497, 46.0)
    assert sorted(split.rest) == [12, 77, 301]
    assert split.saving == pytest.approx(1 - (497 * 8 + 3 * 46) / (500 * 46))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=2, max_size=12))
def test_no_other_split_is_better(tasks: list[tuple[int, int]]) -> None:
    needs, times = [float(need) for need, _ in tasks], [float(time) for _, time in tasks]
    split = split_array(needs, times)
    costs = [
        sum((low if need <= low else max(needs)) * time for need, time in tasks) for low in {*needs}
    ]
    one = max(needs) * sum(times)
    if split is None:
        assert min(costs) >= one
    else:
        assert split.allotted - split.saved == pytest.approx(min(costs))
        assert len(split.rest) + split.tasks == len(tasks)


def test_growth_is_tested_before_it_is_used() -> None:
    generator = random.Random(3)
    indices = [float(index) for index in range(40)]
    grown = [2 + 0.5 * index + generator.random() for index in indices]
    growth = find_growth(indices, grown)
    assert growth is not None
    assert all(growth.at(index) >= need - 1e-9 for index, need in zip(indices, grown, strict=True))
    assert find_growth(indices, [generator.random() for _ in indices]) is None
    assert find_growth(indices, [5.0] * 40) is None
    assert find_growth([1.0] * 40, grown) is None
    assert find_growth(indices[:5], grown[:5]) is None


@given(st.floats(1, 1e16))
def test_rounded_sizes_are_higher_and_readable_by_slurm(size: float) -> None:
    rounded = fit.round_memory(size)
    assert size <= rounded <= max(size * 1.13, 64 * 2**20)
    option = fit.memory_option(rounded)
    assert int(option[:-1]) * {"M": 2**20, "G": 2**30}[option[-1]] == rounded


def test_options_of_slurm() -> None:
    assert fit.memory_option(14 * GIB) == "14G"
    assert fit.memory_option(3.75 * GIB) == "3840M"
    assert fit.time_option(5400) == "01:30:00"
    assert fit.time_option(2 * 86400) == "2-00:00:00"
    assert fit.time_option(fit.round_time(61)) == "00:02:00"
