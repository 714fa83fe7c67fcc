"""The steps of a run: merged in whatever order they come, and carried along with their node."""

import itertools

from jobsight.model import SECOND, StepUse
from jobsight.store.store import Store
from tests.store.sample import START, batch, find, info, part, sighting, step, totals


def steps(store: Store, text: str = "7") -> list[tuple[str, StepUse]]:
    return [(found.node, found.use) for found in store.steps(find(store, text).id)]


def test_steps_come_back(store: Store) -> None:
    sent = StepUse(
        step="batch",
        tasks=3,
        cpu_time=4 * SECOND,
        cpu_overhead=5,
        memory_peak=6,
        oom_kills=1,
        first_seen=START,
        last_seen=START + SECOND,
        ended=True,
        gpu_time=7 * SECOND,
        gpu_memory_peak=8,
    )
    bare = StepUse(step="x%s'{}é")
    assert store.write(batch(part(steps=[bare, sent]), part(sighting(node="n2"), steps=[bare])))
    assert steps(store) == [("n1", bare), ("n1", sent), ("n2", bare)]
    assert store.info().steps == 3
    assert store.write(batch(part(sighting(8))))
    assert steps(store, "8") == []


def test_readings_of_one_step_in_any_order_give_the_same(store: Store) -> None:
    readings = [
        step("0", 10, second=1, tasks=4, memory_peak=900, oom_kills=0, cpu_overhead=1),
        # An agent that was started again knows neither the peak nor the other tasks.
        step("0", 30, second=5, tasks=1, memory_peak=500, first_seen=START + 4 * SECOND),
        step("0", 35, second=9, tasks=1, oom_kills=2, first_seen=0, ended=True),
        step("0", 20, second=3, tasks=2),
    ]
    expected = step(
        "0", 35, second=9, tasks=4, memory_peak=900, oom_kills=2, cpu_overhead=1, ended=True
    )
    for number, order in enumerate(itertools.permutations(readings)):
        for reading in order:
            assert store.write(batch(part(sighting(100 + number), steps=[reading])))
        assert steps(store, str(100 + number)) == [("n1", expected)], order
        # The same batch may hold them all.
        assert store.write(batch(part(sighting(200 + number), steps=list(order))))
        assert steps(store, str(200 + number)) == [("n1", expected)], order


def test_nothing_known_overwrites_nothing(store: Store) -> None:
    known = step("1", 7, second=2, tasks=2, memory_peak=8, oom_kills=1, cpu_overhead=3)
    assert store.write(batch(part(steps=[known])))
    assert store.write(batch(part(steps=[StepUse(step="1")])))
    assert steps(store) == [("n1", known)]


def test_steps_follow_their_node_to_another_run(store: Store) -> None:
    later = START + 3600 * SECOND
    assert store.write(batch(part(steps=[step("batch", 10)])))
    assert store.write(batch(part(sighting(birth=later), steps=[step("batch", 20)])))
    first, second = store.runs()[::-1]
    assert [run.provisional for run in (first, second)] == [True, True]
    # The scheduler records one run over both sightings: a node that was started again.
    assert store.write(batch(info(end=later + 60 * SECOND)))
    (run,) = store.runs()
    (merged,) = store.steps(run.id)
    assert merged.use.cpu_time == 30
    # Then it corrects itself: the job was requeued.
    assert store.write(batch(info(start=later)))
    booked = store.runs()
    assert [[found.use.cpu_time for found in store.steps(run.id)] for run in booked] == [[20], [10]]


def test_a_step_on_a_cgroup_made_anew_adds_up(store: Store) -> None:
    assert store.write(batch(info()))
    one = step("0", 10, memory_peak=5, oom_kills=1, ended=True)
    other = step("0", 3, second=9, memory_peak=4, first_seen=START + SECOND)
    assert store.write(batch(part(steps=[one], totals=totals(1, 10))))
    assert store.write(batch(part(sighting(birth=START + 5), steps=[other], totals=totals(1, 3))))
    expected = step("0", 13, second=9, memory_peak=5, oom_kills=1)
    assert steps(store) == [("n1", expected)]
    assert find(store).cpu_time == 13


def test_a_batch_that_speaks_twice_of_one_node(store: Store) -> None:
    """Rows are kept in memory until the end of the batch; both parts have to count."""
    assert store.write(
        batch(
            info(),
            part(totals=totals(1, 5, memory_peak=9), steps=[step("0", 1)]),
            part(sighting(birth=START + 5), totals=totals(1, 7, memory_peak=8)),
            part(totals=totals(2, 6), steps=[step("0", 2)], final=True),
            part(sighting(node="n2"), totals=totals(1, 100, memory_peak=1)),
        )
    )
    run = find(store)
    assert (run.cpu_time, run.memory_peak) == (6 + 7 + 100, 9 + 1)
    assert [node.final for node in store.nodes(run.id)] == [True, False, False]
    assert steps(store) == [("n1", step("0", 2))]


def test_gpu_time_of_a_step_adds_up_over_agent_epochs(store: Store) -> None:
    def sent(epoch: str, seconds: int | None, second: int, **more: int) -> None:
        gpu_time = None if seconds is None else seconds * SECOND
        reading = step("0", 10, second=second, gpu_time=gpu_time, **more)
        assert store.write(batch(part(epoch=epoch, steps=[reading])))

    sent("first", None, 1)
    sent("first", 5, 2, gpu_memory_peak=900)
    sent("first", 7, 3, gpu_memory_peak=800)
    # A reading that is late within its epoch takes nothing away.
    sent("first", 6, 2)
    sent("second", 0, 4)
    sent("second", 3, 5)
    sent("second", 4, 6)
    # An epoch that has passed adds nothing.
    sent("first", 6, 2)
    sent("second", None, 7)
    sent("third", 1, 8)
    expected = step("0", 10, second=8, gpu_time=12 * SECOND, gpu_memory_peak=900)
    assert steps(store) == [("n1", expected)]


def test_gpu_time_of_a_step_saturates(store: Store) -> None:
    for number in range(3):
        reading = step("0", 1, second=number, gpu_time=2**62 - 1)
        assert store.write(batch(part(epoch=f"epoch {number}", steps=[reading])))
    ((_, found),) = steps(store)
    assert found.gpu_time == 2**63 - 1
