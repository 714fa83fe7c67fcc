"""Works by their keys and by what their runs held, and the samples of runs, on both databases."""

from __future__ import annotations

from jobsight.model import SECOND, JobInfo
from jobsight.store.findings.shown import Shown, ShownTo, record_shown, shown_works
from jobsight.store.findings.works import WorkKey, find_or_add_work
from jobsight.store.findings.write import store_judged
from jobsight.store.history import count_samples, find_work, largest_works, works_of_key
from jobsight.store.read.queries import run_filter
from jobsight.store.store import Store
from tests.store.findings.sample import finding, judged
from tests.store.sample import START

HOUR = 3600 * SECOND


def fill(store: Store) -> list[int]:
    """Two works of ada with three runs and one, and one of bob."""
    shapes = [("ada", 2, "COMPLETED"), ("ada", 2, "FAILED"), ("ada", 2, "COMPLETED"),
              ("ada", 100, "CANCELLED"), ("bob", 4, "COMPLETED")]  # fmt: skip
    store.record_jobs(
        [
            JobInfo(
                cluster="c1", source="slurm", job_id=number, user=user, start=START + number,
                end=START + number + HOUR, cpus=cpus, state=state,
            )
            for number, (user, cpus, state) in enumerate(shapes, 1)
        ]
    )  # fmt: skip
    keys = [("ada", b"\x01\xff"), ("ada", b"\x02\x00"), ("bob", b"\xff\xff")]
    ids = [
        find_or_add_work(store.database, WorkKey("c1", user, "", "script", key, f"work {key!r}"))
        for user, key in keys
    ]
    runs = sorted(store.runs(limit=10), key=lambda run: run.info.job_id)
    for run, work_id in zip(runs, [ids[0]] * 3 + ids[1:], strict=True):
        store_judged(store.database, [judged(run, finding(), work_id=work_id)], START)
    return ids


def test_a_work_is_found_by_the_beginning_of_its_key(store: Store) -> None:
    one, two, three = fill(store)
    found = {
        prefix: [work.id for work in works_of_key(store.database, prefix)]
        for prefix in (
            b"\x01",
            b"\x01\xff",
            b"\x02",
            b"\xff",
            b"\xff\xff",
            b"\x03",
            b"\xff\xff\x00",
        )
    }
    assert found == {
        b"\x01": [one], b"\x01\xff": [one], b"\x02": [two], b"\xff": [three], b"\xff\xff": [three],
        b"\x03": [], b"\xff\xff\x00": [],
    }  # fmt: skip
    work = find_work(store.database, two)
    assert work is not None
    assert (work.key, work.user, work.kind) == (b"\x02\x00", "ada", "script")
    assert find_work(store.database, 10**6) is None


def test_works_are_ordered_by_what_they_held(store: Store) -> None:
    one, two, _ = fill(store)
    uses = largest_works(store.database, run_filter(user="ada"), 100, 10)
    assert [(use.work_id, use.runs, use.failed) for use in uses] == [(two, 1, 0), (one, 3, 1)]
    assert [round(use.held / HOUR) for use in uses] == [100, 6]
    assert len(largest_works(store.database, run_filter(), 100, 2)) == 2
    # Only the newest runs count.
    assert [use.runs for use in largest_works(store.database, run_filter(user="ada"), 2, 10)] == [
        1,
        1,
    ]


def test_runs_are_filtered_by_their_work(store: Store) -> None:
    one, two, _ = fill(store)
    jobs = [run.info.job_id for run in store.runs(limit=10, work_ids=[one])]
    assert jobs == [3, 2, 1]
    assert len(store.runs(limit=10, work_ids=[one, two])) == 4
    assert store.runs(limit=10, work_ids=[]) == []
    # Nothing of these runs was measured.
    assert count_samples(store.database, [run.id for run in store.runs(limit=10)]) == 0


def test_shown_works_are_those_of_an_owner(store: Store) -> None:
    one, _, three = fill(store)
    shown = {
        Shown(run.id, "memory-request-unused", run.info.user or "", "mail"): 1
        for run in store.runs(limit=10)
        if run.info.job_id in (1, 5)
    }
    record_shown(store.database, shown, START)

    def works(owner: ShownTo, limit: int = 10) -> set[int]:
        return {work.work_id for work in shown_works(store.database, None, 0, owner, limit=limit)}

    assert works(ShownTo()) == {one, three}
    assert works(ShownTo(user="ada")) == {one}
    assert works(ShownTo(cluster="c1", user="bob")) == {three}
    assert works(ShownTo(account="none")) == set()
    assert len(works(ShownTo(), limit=1)) == 1
