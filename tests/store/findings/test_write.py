"""Findings of runs, replaced with exact sums."""

import random

import pytest
from sqlalchemy import select

from jobsight.store.findings.read import (
    FindingFilter,
    findings_of_run,
    last_days,
    list_findings,
    list_kinds,
    sum_findings,
    totals_by_kind,
    worst_of_runs,
)
from jobsight.store.findings.rows import StoredCost
from jobsight.store.findings.shown import (
    MAX_VIEWERS,
    OTHERS,
    Shown,
    record_shown,
    runs_of_work,
    shown_works,
)
from jobsight.store.findings.write import NoSuchFinding, preview_judged, set_reply
from jobsight.store.maintenance.check import Checker
from jobsight.store.read.queries import StoredRun
from jobsight.store.schema.tables import findings_by_day, findings_shown
from jobsight.store.store import Store
from tests.store.findings.sample import DAY, KIND, add_findings, finding, judged, work
from tests.store.sample import START, find, info


def run(store: Store, job: int = 1, **fields: object) -> StoredRun:
    values = {"start": START, "end": START + 60, "user": "anna", "account": "lab", **fields}
    store.record_jobs([info(job, values.pop("start"), state="COMPLETED", **values)])
    return find(store, str(job))


def sums(store: Store) -> list[tuple[object, ...]]:
    with store.database.read() as connection:
        rows = connection.execute(select(findings_by_day).order_by(findings_by_day.c.kind))
        return [tuple(row) for row in rows]


def test_findings_of_a_run_are_in_the_sums_of_its_day(store: Store) -> None:
    add_findings(store, run(store), finding(core_time=5, memory_time=7), finding("b", gpu_time=1))
    owner = (START // DAY, "c1", "anna", "lab", "")
    assert sums(store) == [
        (*owner, "b", 1, 0, 0, 0, 1, 0, 0),
        (*owner, KIND, 1, 0, 0, 5, 0, 7, 0),
    ]


def test_a_second_judgement_that_finds_the_same_changes_nothing(store: Store) -> None:
    first = run(store)
    assert [change.what for change in add_findings(store, first, finding())] == ["new"]
    before = findings_of_run(store.database, first.id)
    assert add_findings(store, first, finding(), now=START + 99) == []
    assert findings_of_run(store.database, first.id) == before


def test_what_no_longer_holds_is_removed_from_rows_and_sums(store: Store) -> None:
    first = run(store)
    add_findings(store, first, finding(), finding("b"))
    changes = add_findings(store, first, finding("b"))
    assert [(change.kind, change.what) for change in changes] == [(KIND, "gone")]
    assert [row.kind for row in findings_of_run(store.database, first.id)] == ["b"]
    assert [row[5] for row in sums(store)] == ["b"]


@pytest.mark.parametrize(("withheld", "state"), [((), "gone"), ((KIND,), "withheld")])
def test_a_finding_that_was_shown_is_kept_as_gone_or_withheld(
    store: Store, withheld: tuple[str, ...], state: str
) -> None:
    first = run(store)
    add_findings(store, first, finding())
    record_shown(store.database, {Shown(first.id, KIND, "anna", "page"): 1}, START)
    add_findings(store, first, withheld=frozenset(withheld))
    assert [row.state for row in findings_of_run(store.database, first.id)] == [state]
    assert sums(store) == []
    # It holds again: open, and a new one.
    add_findings(store, first, finding(), now=START + 5)
    assert [(row.state, row.first) for row in findings_of_run(store.database, first.id)] == [
        ("open", START + 5)
    ]


def test_a_changed_owner_moves_the_sums(store: Store) -> None:
    first = run(store, account=None)
    add_findings(store, first, finding())
    add_findings(store, run(store, account="physics"), finding())
    assert [row[3] for row in sums(store)] == ["physics"]
    assert Checker(store.database).run().faults == []


def test_replies_stay_while_the_rule_holds(store: Store) -> None:
    first = run(store)
    add_findings(store, first, finding(), finding("b"))
    set_reply(store.database, first.id, KIND, "not helpful", "anna", START)
    set_reply(store.database, first.id, "b", "acknowledged", "root", START)
    add_findings(store, first, finding(core_time=9), finding("b"), now=START + 9)
    rows = {row.kind: row for row in findings_of_run(store.database, first.id)}
    assert (rows[KIND].state, rows[KIND].reply_user, rows[KIND].core_time) == (
        "not helpful",
        "anna",
        9,
    )
    assert [row[6:10] for row in sums(store)] == [(1, 1, 0, 3600), (1, 0, 1, 9)]
    set_reply(store.database, first.id, "b", "open", "root", START)
    assert [row[6:10] for row in sums(store)] == [(1, 0, 0, 3600), (1, 0, 1, 9)]
    assert Checker(store.database).run().faults == []


def test_a_reply_to_a_finding_that_is_not_there_names_those_that_are(store: Store) -> None:
    first = run(store)
    add_findings(store, first, finding())
    with pytest.raises(NoSuchFinding, match=f"no finding 'other'; it has {KIND}"):
        set_reply(store.database, first.id, "other", "acknowledged", "anna", START)


def test_a_preview_says_what_would_change_and_changes_nothing(store: Store) -> None:
    first = run(store)
    add_findings(store, first, finding("a"), finding("b"))
    wanted = judged(first, finding("b", severity=2), finding("c"))
    changes = preview_judged(store.database, [wanted], START)
    assert {change.kind: change.what for change in changes} == {
        "a": "gone",
        "b": "changed",
        "c": "new",
    }
    assert [row.kind for row in findings_of_run(store.database, first.id)] == ["a", "b"]


def test_sums_stay_exact_over_many_changes(store: Store) -> None:
    choose = random.Random(5)
    runs = [run(store, job, start=START + job % 3 * DAY) for job in range(1, 9)]
    for _ in range(60):
        each = choose.choice(runs)
        kinds = choose.sample(["a", "b", "c", "d"], choose.randrange(4))
        add_findings(
            store,
            each,
            *(finding(kind, core_time=choose.randrange(10**12)) for kind in kinds),
            now=choose.randrange(10**6),
        )
        held = [row for row in findings_of_run(store.database, each.id) if row.holds]
        if held:
            state = choose.choice(["open", "acknowledged", "not helpful"])
            set_reply(store.database, each.id, held[0].kind, state, "anna", START)
    assert Checker(store.database).run().faults == []
    rows = list_findings(store.database, FindingFilter(all_states=True), 100)
    listed = [each for each in rows if each.finding.holds]
    (total,) = sum_findings(store.database, (), FindingFilter())
    assert total.runs == len(listed)
    assert total.cost.core_time == sum(each.finding.core_time or 0 for each in listed)


def test_a_check_repairs_the_sums(store: Store) -> None:
    add_findings(store, run(store), finding())
    before = sums(store)
    with store.database.write() as transaction:
        transaction.execute("UPDATE findings_by_day SET runs = runs + 1")
    (fault,) = Checker(store.database, repair=True).run().faults
    assert fault.repaired
    assert "not the sums of findings" in fault.text
    assert sums(store) == before


def test_a_run_that_never_happened_leaves_the_sums(store: Store) -> None:
    from jobsight.store.write.runs import remove_run

    first, second = run(store), run(store, 2)
    add_findings(store, first, finding(), work=work())
    add_findings(store, second, finding())
    with store.database.write() as transaction:
        remove_run(transaction, first.id)
    assert [row[6] for row in sums(store)] == [1]
    assert Checker(store.database).run().faults == []


def test_the_worst_comes_first_and_a_cursor_continues(store: Store) -> None:
    for job in range(1, 6):
        add_findings(store, run(store, job), finding(weight=job * 10), finding("b", weight=job))
    rows = list_findings(store.database, FindingFilter(), 4)
    rows += list_findings(store.database, FindingFilter(), 100, rows[-1].position)
    assert [each.finding.weight for each in rows] == [50, 40, 30, 20, 10, 5, 4, 3, 2, 1]
    assert rows[0].job_id == 5


def test_filters(store: Store) -> None:
    first = run(store, 1, user="anna", account="lab", partition="gpu")
    second = run(store, 2, user="ben", account="physics", start=START + 3 * DAY)
    add_findings(store, first, finding("a", severity=2), finding("b", severity=0))
    add_findings(store, second, finding("a", severity=1))

    def found(**fields: object) -> list[tuple[int, str]]:
        rows = list_findings(store.database, FindingFilter(**fields), 9)  # type: ignore[arg-type]
        return [(each.job_id, each.finding.kind) for each in rows]

    assert found() == [(1, "a"), (1, "b"), (2, "a")]
    assert found(user="anna") == [(1, "a"), (1, "b")]
    assert found(account="physics") == [(2, "a")]
    assert found(partition="gpu", kind="b") == [(1, "b")]
    assert found(severity=1) == [(1, "a"), (2, "a")]
    assert found(since=START // DAY + 1) == [(2, "a")]
    assert found(until=START // DAY + 1) == [(1, "a"), (1, "b")]
    set_reply(store.database, first.id, "a", "acknowledged", "anna", START)
    assert found(user="anna") == [(1, "b")]
    assert found(user="anna", all_states=True) == [(1, "a"), (1, "b")]


def test_sums_by_dimension(store: Store) -> None:
    add_findings(store, run(store, 1), finding("a", core_time=2), finding("b", core_time=3))
    add_findings(store, run(store, 2, user="ben"), finding("a", core_time=5))
    by_kind = sum_findings(store.database, ["kind"], FindingFilter())
    assert [(each.key, each.runs, each.cost.core_time) for each in by_kind] == [
        (("a",), 2, 7),
        (("b",), 1, 3),
    ]
    by_user = sum_findings(store.database, ["user", "kind"], FindingFilter(user="ben"))
    assert [each.key for each in by_user] == [("ben", "a")]
    assert list_kinds(store.database, 0) == {"a": 2, "b": 1}
    assert [(each.kind, each.runs) for each in totals_by_kind(store.database)] == [
        ("a", 2),
        ("b", 1),
    ]


def test_the_newest_run_of_a_kind(store: Store) -> None:
    first, second = run(store, 1), run(store, 2, start=START + 3 * DAY, end=START + 4 * DAY)
    add_findings(store, first, finding("a"), finding("b"))
    add_findings(store, second, finding("a"))
    assert last_days(store.database) == {"a": START // DAY + 3, "b": START // DAY}
    # One that no longer holds was not right.
    add_findings(store, second)
    assert last_days(store.database) == {"a": START // DAY, "b": START // DAY}


def test_a_list_of_runs_has_the_worst_severity(store: Store) -> None:
    first, second = run(store, 1), run(store, 2)
    add_findings(store, first, finding("a", severity=0), finding("b", severity=2))
    with store.database.query() as transaction:
        worst = worst_of_runs(transaction, [first.id, second.id])
    assert worst == {first.id: (2, 2)}


def test_viewers_are_bounded(store: Store) -> None:
    first = run(store)
    add_findings(store, first, finding())
    for number in range(MAX_VIEWERS + 5):
        key = Shown(first.id, KIND, f"viewer{number}", "page")
        record_shown(store.database, {key: 1}, START + number)
    with store.database.read() as connection:
        viewers = connection.execute(select(findings_shown)).all()
    assert len(viewers) == MAX_VIEWERS + 1
    assert {row.count for row in viewers if row.viewer == OTHERS} == {5}


def test_what_was_never_found_is_not_recorded_as_shown(store: Store) -> None:
    first = run(store)
    record_shown(store.database, {Shown(first.id, KIND, "anna", "page"): 1}, START)
    with store.database.read() as connection:
        assert connection.execute(select(findings_shown)).all() == []


def test_the_runs_of_a_work_with_what_a_finding_cost(store: Store) -> None:
    first = run(store, 1, memory=8)
    second = run(store, 2, memory=4, start=START + DAY)
    add_findings(store, first, finding(core_time=7), work=work())
    add_findings(store, second, work=work())
    record_shown(store.database, {Shown(first.id, KIND, "anna", "page"): 3}, START + 5)
    ((work_id, kind, shown, count),) = shown_works(store.database, None, 0)
    assert (kind, shown, count) == (KIND, START + 5, 3)
    runs = runs_of_work(store.database, work_id, KIND)
    assert [(each.memory, each.finding, each.cost) for each in runs] == [
        (8, "open", StoredCost(core_time=7)),
        (4, None, StoredCost()),
    ]
