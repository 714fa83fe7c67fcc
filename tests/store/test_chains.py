"""Jobs that depend on each other belong together, in whatever order they become known."""

from typing import Any

from jobsight.model import SECOND
from jobsight.store import chains
from jobsight.store.chains import Dependency
from jobsight.store.read.queries import GroupKey
from jobsight.store.read.visibility import Visibility, VisibleAccount, VisibleUser
from jobsight.store.store import Store
from tests.store.sample import START, info

DAY = 86400 * SECOND


def after(job_id: int, *ids: int, user: str = "anna", submit: int = START) -> Dependency:
    return Dependency("c1", job_id, user, submit, ids)


def record(store: Store, *dependencies: Dependency, now: int = START) -> int:
    return store.record_dependencies(dependencies, now=now)


def ran(store: Store, job_id: int, user: str = "anna", **more: Any) -> None:
    more = {"start": START + job_id * SECOND, "end": START + (job_id + 1) * SECOND} | more
    store.record_jobs([info(job_id, user=user, state="COMPLETED", **more)])


def grouped(store: Store) -> dict[int, int | None]:
    """The chain of each run."""
    return {run.info.job_id: run.chain_job_id for run in store.runs(limit=100)}


def test_a_chain_is_known_before_its_runs(store: Store) -> None:
    assert record(store, after(8, 7), after(9, 8)) == 2
    for job_id in (7, 8, 9, 10):
        ran(store, job_id)
    assert grouped(store) == {7: 8, 8: 8, 9: 8, 10: None}


def test_a_chain_is_known_after_its_runs_in_any_order(store: Store) -> None:
    for job_id in (7, 8, 9, 10):
        ran(store, job_id)
    assert record(store, after(9, 8)) == 1
    assert grouped(store) == {7: None, 8: 9, 9: 9, 10: None}
    assert record(store, after(8, 7)) == 1
    assert grouped(store) == {7: 9, 8: 9, 9: 9, 10: None}
    # What is known is not written again.
    assert record(store, after(8, 7), after(9, 8)) == 0


def test_a_job_that_gathers_joins_chains(store: Store) -> None:
    for job_id in range(1, 8):
        ran(store, job_id)
    record(store, after(2, 1), after(4, 3))
    assert grouped(store) == {1: 2, 2: 2, 3: 4, 4: 4, 5: None, 6: None, 7: None}
    record(store, after(6, 2, 4, 5))
    assert grouped(store) == {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: None}


def test_jobs_of_others_are_in_no_chain(store: Store) -> None:
    ran(store, 7, user="bob")
    record(store, after(8, 7), after(9, 7, user="bob"))
    ran(store, 8)
    ran(store, 9, user="bob")
    assert grouped(store) == {7: 9, 8: 8, 9: 9}
    groups = [GroupKey.of(run) for run in store.runs()]
    assert len(set(groups)) == 2


def test_an_array_is_one_member(store: Store) -> None:
    ran(store, 21, array_job_id=20, array_task_id=1)
    record(store, after(30, 20))
    # A task that starts later, and the components of a heterogeneous job that follows.
    ran(store, 22, array_job_id=20, array_task_id=2)
    ran(store, 30, het_job_id=30, het_offset=0)
    ran(store, 31, het_job_id=30, het_offset=1)
    assert grouped(store) == {21: 30, 22: 30, 30: 30, 31: 30}
    page, _, groups = store.page_of_groups(limit=10)
    assert [run.info.job_id for run in page.runs] == [31]
    assert groups[GroupKey("chain_job_id", "c1", 30)].runs == 4
    # Within the chain, array and heterogeneous job are rows.
    page, count, groups = store.page_of_groups(limit=10, chain_job_id=30, cluster="c1")
    assert {(group.column, group.id) for group in groups} == {
        ("array_job_id", 20),
        ("het_job_id", 30),
    }
    assert (len(page.runs), count.number) == (2, 4)


def test_an_old_run_with_the_same_id_is_another_job(store: Store) -> None:
    ran(store, 7, start=START - 900 * DAY, end=START - 899 * DAY)
    record(store, after(8, 7))
    assert grouped(store) == {7: None}


def test_a_list_has_a_chain_once_on_all_its_pages(store: Store) -> None:
    record(store, *(after(job_id, job_id - 3) for job_id in range(4, 31)))
    for job_id in range(1, 31):
        ran(store, job_id)
    ran(store, 99)
    seen, position = [], None
    while True:
        page, _, _ = store.page_of_groups(limit=2, after=position)
        seen += [run.chain_job_id for run in page.runs]
        position = page.next
        if position is None:
            break
    assert sorted(seen, key=str) == [4, 5, 6, None]


def test_what_a_viewer_may_not_see_is_not_counted(store: Store) -> None:
    record(store, after(8, 7), after(9, 8))
    ran(store, 7, account="physics")
    ran(store, 8, account="chemistry")
    ran(store, 9, account="physics")
    mentor = Visibility(users=(VisibleUser("mentor"),), accounts=(VisibleAccount("physics"),))
    _, count, groups = store.page_of_groups(limit=10, visibility=mentor)
    assert count.number == 2
    assert [summary.states for summary in groups.values()] == [{"COMPLETED": 2}]
    _, _, groups = store.page_of_groups(limit=10)
    assert [summary.states for summary in groups.values()] == [{"COMPLETED": 3}]


def test_a_chain_is_bounded(store: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr(chains, "MAX_JOBS", 4)
    for job_id in range(1, 9):
        record(store, after(job_id + 1, job_id))
        ran(store, job_id)
    assert grouped(store) == {1: 2, 2: 2, 3: 2, 4: 2, 5: 5, 6: 5, 7: 5, 8: 5}


def test_jobs_that_ran_long_ago_are_forgotten(store: Store) -> None:
    record(store, after(8, 7))
    ran(store, 8)
    with store.database.write() as transaction:
        chains.remove_old(transaction, START + chains.KEPT - 1)
    with store.database.query() as transaction:
        assert len(chains.read_chains(transaction, [("c1", 7), ("c1", 8)])) == 2
    with store.database.write() as transaction:
        chains.remove_old(transaction, START + chains.KEPT + 1)
    with store.database.query() as transaction:
        assert chains.read_chains(transaction, [("c1", 7), ("c1", 8)]) == {}
    assert grouped(store) == {8: 8}
