"""Sightings and records of the scheduler find each other, in whatever order they come."""

import itertools

import pytest

from jobsight.model import SECOND, JobInfo, JobPart
from jobsight.store import Store
from tests.store.sample import START, batch, find, info, part, seconds, series, sighting, totals

HOUR = 3600 * SECOND


def birth_seen(birth: int, second: int, node: str = "n1", **more: object) -> JobPart:
    seen = sighting(node=node, birth=birth, **more)
    return part(seen, series=series([second]), totals=totals(second, 10))


def runs_of(store: Store) -> list[tuple[int, bool, list[str], int | None]]:
    """Start relative to START, whether provisional, nodes that reported, CPU time."""
    return [
        (
            run.start - START,
            run.provisional,
            sorted(node.node for node in store.nodes(run.id)),
            run.cpu_time,
        )
        for run in store.runs()
    ]


def test_a_sighting_alone_makes_a_provisional_run(store: Store) -> None:
    assert store.write(batch(birth_seen(START + 3, 0)))
    run = find(store)
    assert run.provisional
    assert run.run.start == START + 3
    assert run.info.start is None
    assert run.info.source == "sighting"
    # A second node that saw the job begin belongs to it.
    assert store.write(batch(birth_seen(START + 5 * SECOND, 0, "n2"), node="n2"))
    assert runs_of(store) == [(3, True, ["n1", "n2"], 20)]


@pytest.mark.parametrize("order", ["record first", "sighting first"])
def test_both_orders_give_one_run(store: Store, order: str) -> None:
    record = batch(info(user="anna", state="RUNNING"))
    seen = batch(birth_seen(START + 2 * SECOND, 3))
    for sent in (record, seen) if order == "record first" else (seen, record):
        assert store.write(sent)
    assert runs_of(store) == [(0, False, ["n1"], 10)]
    run = find(store)
    assert (run.info.user, run.info.start, run.first_seen) == ("anna", START, START + 3 * SECOND)
    assert seconds(store, run.id) == [3]


def test_a_requeued_job_is_two_runs_in_any_order(store: Store) -> None:
    """Every order of the six messages of a requeue ends in the same two runs."""
    messages: list[JobInfo | JobPart] = [
        info(state="RUNNING"),
        info(state="REQUEUED", end=START + 100 * SECOND),
        info(start=START + HOUR, state="RUNNING"),
        birth_seen(START + SECOND, 1),
        birth_seen(START + HOUR + SECOND, 3601),
    ]
    for number, order in enumerate(itertools.permutations(messages)):
        if number % 7:
            continue
        job_id = 1000 + number
        for message in order:
            if isinstance(message, JobInfo):
                changed: JobInfo | JobPart = JobInfo(
                    **{
                        name: getattr(message, name)
                        for name in message.__struct_fields__
                        if name != "job_id"
                    },
                    job_id=job_id,
                )
            else:
                seen = sighting(job_id, birth=message.sighting.birth)
                changed = part(seen, series=message.series, totals=message.totals)
            assert store.write(batch(changed))
        second, first = store.runs(search=str(job_id))
        assert (first.start, second.start) == (START, START + HOUR), order
        assert not first.provisional
        assert not second.provisional
        assert (first.info.state, second.info.state) == ("REQUEUED", "RUNNING"), order
        assert (seconds(store, first.id), seconds(store, second.id)) == ([1], [3601]), order
        assert (first.cpu_time, second.cpu_time) == (10, 10)


def test_a_record_that_comes_late_ends_the_guess(store: Store) -> None:
    """Two births were taken for two provisional runs; the scheduler knows it was one."""
    assert store.write(batch(birth_seen(START + SECOND, 1)))
    assert store.write(batch(birth_seen(START + 300 * SECOND, 301, "n2"), node="n2"))
    assert len(store.runs()) == 2
    assert store.write(batch(info(end=START + HOUR, state="COMPLETED")))
    assert runs_of(store) == [(0, False, ["n1", "n2"], 20)]


def test_a_birth_after_the_end_is_no_part_of_the_run(store: Store) -> None:
    assert store.write(batch(info()))
    assert store.write(batch(birth_seen(START + HOUR, 3600)))
    assert runs_of(store) == [(0, False, ["n1"], 10)]
    assert store.write(batch(info(end=START + 60 * SECOND)))
    assert runs_of(store) == [(HOUR, True, ["n1"], 10), (0, False, [], None)]


def test_restart_count_and_sluid_win_over_time(store: Store) -> None:
    first = info(end=START + 50 * SECOND, restart_count=0)
    assert store.write(batch(first, info(start=START + 60 * SECOND, restart_count=1)))
    # Both intervals, widened, hold this birth.
    assert store.write(batch(birth_seen(START + 55 * SECOND, 1, restart_count=0)))
    assert store.write(batch(birth_seen(START + 55 * SECOND, 2, "n2", restart_count=1), node="n2"))
    assert [nodes for _, _, nodes, _ in runs_of(store)] == [["n2"], ["n1"]]
    assert store.write(batch(info(9, sluid="s1", end=START + SECOND), info(9, START + HOUR)))
    late = part(sighting(9, birth=START + 2 * HOUR, sluid="s1"), series=series([7]))
    assert store.write(batch(late))
    earlier = find(store, "c1:9:20260921T141320Z")
    assert seconds(store, earlier.id) == [7]


def test_a_sluid_that_comes_late_brings_both_halves_together(store: Store) -> None:
    """The node's clock is off, so time did not help; the SLUID does."""
    assert store.write(batch(birth_seen(START - HOUR, 1, sluid="s1")))
    assert store.write(batch(info(user="anna")))
    assert len(store.runs()) == 2
    assert store.write(batch(info(sluid="s1")))
    assert runs_of(store) == [(0, False, ["n1"], 10)]
    assert find(store).info.user == "anna"


def test_an_id_that_wrapped_is_not_bound_to_the_run_of_last_year(store: Store) -> None:
    year = 365 * 24 * HOUR
    last_year = info(start=START - year, end=START - year + HOUR, restart_count=0)
    assert store.write(batch(last_year))
    assert store.write(batch(birth_seen(START, 1, restart_count=0)))
    assert runs_of(store) == [(0, True, ["n1"], 10), (-year, False, [], None)]


def test_an_ended_run_does_not_run_again(store: Store) -> None:
    ended = info(state="COMPLETED", end=START + HOUR, exit_code=3)
    assert store.write(batch(info(state="RUNNING", name="a"), ended))
    assert store.write(batch(info(state="RUNNING", name="b", account="physics")))
    run = find(store)
    assert (run.info.state, run.info.end, run.info.exit_code) == ("COMPLETED", START + HOUR, 3)
    assert (run.info.name, run.info.account) == ("a", "physics")


def test_unknown_values_do_not_overwrite(store: Store) -> None:
    assert store.write(batch(info(user="anna", cpus=4, nodes=("n1",))))
    assert store.write(batch(info(cpus=8)))
    run = find(store)
    assert (run.info.user, run.info.cpus, run.info.nodes) == ("anna", 8, ("n1",))


def test_a_job_that_waits_becomes_the_run_that_starts(store: Store) -> None:
    waiting = info(start=None, submit=START - HOUR, state="PENDING", user="anna", cpus=4)
    assert store.write(batch(waiting))
    assert runs_of(store) == [(-HOUR, True, [], None)]
    assert store.write(batch(birth_seen(START + SECOND, 1)))
    assert runs_of(store) == [(SECOND, True, ["n1"], 10)]
    assert store.write(batch(info(state="RUNNING")))
    assert runs_of(store) == [(0, False, ["n1"], 10)]
    assert (find(store).info.user, find(store).info.cpus) == ("anna", 4)
    assert find(store).info.state == "RUNNING"


def test_a_launcher_is_finer_than_the_second(store: Store) -> None:
    exact = START + 123_456_789
    assert store.write(batch(info(start=exact, state="RUNNING")))
    assert store.write(batch(info(start=START, state="COMPLETED", end=START + HOUR)))
    assert len(store.runs()) == 1
    assert find(store).info.state == "COMPLETED"
