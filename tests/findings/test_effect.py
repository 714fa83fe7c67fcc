"""Did it help: runs of a work before and after a finding was shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.findings.effect import measure_effect
from jobsight.store.findings.shown import Shown, record_shown
from jobsight.store.store import Store
from tests.store.findings.sample import KIND, add_findings, finding, work
from tests.store.sample import START, find, info

HOUR = 3600 * 10**9
GIB = 2**30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


def run(store: Store, job: int, *, wasted: int = 0, memory: int, state: str = "COMPLETED") -> None:
    """The job that started so many hours after START."""
    start = START + job * HOUR
    store.record_jobs([info(job, start, end=start + HOUR, state=state, memory=memory)])
    found = find(store, str(job))
    rows = [finding(core_time=wasted)] if wasted else []
    add_findings(store, found, *rows, work=work())


def show(store: Store, job: int, after: int) -> None:
    key = Shown(find(store, str(job)).id, KIND, "anna", "report")
    record_shown(store.database, {key: 1}, START + after * HOUR)


HOURS = 3_600_000_000


def test_a_changed_request_and_its_saving(store: Store) -> None:
    for job in (1, 2):
        run(store, job, wasted=100 * HOURS, memory=64 * GIB)
    show(store, 2, 4)
    run(store, 5, memory=14 * GIB)
    run(store, 6, wasted=10 * HOURS, memory=14 * GIB)
    effect = measure_effect(store)
    (each,) = effect.works
    assert (each.user, each.work, each.kind) == ("anna", "train", KIND)
    assert (each.runs_before, each.runs_after, each.runs_without) == (2, 2, 1)
    assert each.changed == START + 5 * HOUR
    assert each.saved.core_hours == pytest.approx(190)
    assert each.text == (
        "Changed from 64.0 GiB to 14.0 GiB of memory: 1 of 2 runs without the finding, "
        "190 core h saved, no failure."
    )
    (kind,) = effect.kinds
    assert (kind.works, kind.works_again, kind.changed, kind.gone, kind.harmed) == (1, 1, 1, 1, 0)


def test_a_change_that_makes_jobs_fail_is_harm(store: Store) -> None:
    run(store, 1, wasted=100 * HOURS, memory=64 * GIB)
    show(store, 1, 2)
    run(store, 3, memory=2 * GIB, state="OUT_OF_MEMORY")
    effect = measure_effect(store)
    assert effect.kinds[0].harmed == 1
    assert "1 out of memory or time" in effect.works[0].text


def test_advice_that_nobody_follows_saves_nothing(store: Store) -> None:
    run(store, 1, wasted=100 * HOURS, memory=64 * GIB)
    show(store, 1, 2)
    run(store, 3, wasted=100 * HOURS, memory=64 * GIB)
    (each,) = measure_effect(store).works
    assert each.saved.core_hours == pytest.approx(0)
    assert each.text == "The request is unchanged: 0 of 1 runs without the finding, no failure."


def test_a_work_that_has_not_run_again(store: Store) -> None:
    run(store, 1, wasted=HOURS, memory=GIB)
    show(store, 1, 2)
    (each,) = measure_effect(store).works
    assert each.text == "It has not run again."
    assert measure_effect(store, kind="other").works == []
    assert measure_effect(store, since=START + 9 * HOUR).works == []
