"""The background work of the findings, with a judge that a test has told what to say."""

from collections.abc import Iterator

import pytest

from jobsight.errors import ConfigError, JobsightError
from jobsight.findings.costs import from_stored
from jobsight.findings.finding import Cost, Verdict
from jobsight.findings.stored import from_row
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import Judge, Measured, ShownFindings, Worker, update_all
from jobsight.scheduler.records import JobRecord
from jobsight.store.dead_letters import drop, list_dead_letters
from jobsight.store.findings import due
from jobsight.store.findings.read import findings_of_run
from jobsight.store.findings.rows import FindingRow
from jobsight.store.findings.shown import Shown
from jobsight.store.history import state_of_array
from jobsight.store.maintenance.check import Checker
from jobsight.store.read.queries import StoredRun
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store
from tests.findings.judge import KIND, ToldJudge, fired
from tests.store.conftest import location as location
from tests.store.sample import START, batch, find, info, part, sighting, totals

SECOND = 10**9


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    with Store.open(location) as opened:
        yield opened


def ended(store: Store, *jobs: int, **fields: object) -> None:
    values = {"end": START + 100, "state": "COMPLETED", "user": "anna", **fields}
    store.record_jobs([info(job, **values) for job in jobs])  # type: ignore[arg-type]


def worker(store: Store, judge: Judge, **fields: object) -> Worker:
    return Worker(store, lambda: judge, clock=lambda: START + 500 * SECOND, **fields)  # type: ignore[arg-type]


def held(store: Store, job: int) -> list[FindingRow]:
    return [row for row in findings_of_run(store.database, find(store, str(job)).id) if row.holds]


def test_an_ended_run_is_judged_once(store: Store) -> None:
    ended(store, 1, 2)
    judge = ToldJudge()
    work = worker(store, judge)
    done = work.once()
    assert (done.runs, done.changes, done.complete) == (2, {(KIND, "new"): 2}, True)
    assert judge.measured == [1, 2]
    (row,) = held(store, 1)
    finding = from_row(row)
    assert (finding.text, finding.change) == (
        "4 GiB of 64 GiB was used (6.3 %).",
        "#SBATCH --mem=5G",
    )
    assert from_stored(row.cost).memory_gb_hours == pytest.approx(100.0)
    work.once()
    assert judge.measured == [1, 2]


def test_what_has_just_ended_comes_before_a_backlog_in_its_order(store: Store) -> None:
    ended(store, 1, 2, 3)
    long_ago = START - 90 * 86400 * SECOND
    store.record_jobs(
        [info(job, long_ago, end=long_ago + SECOND, state="COMPLETED") for job in (4, 5)]
    )
    ended(store, 6)
    judge = ToldJudge()
    worker(store, judge).once()
    assert judge.measured == [1, 2, 3, 6, 4, 5]


def test_a_record_that_comes_late_has_the_run_judged_again(store: Store) -> None:
    ended(store, 1)
    judge = ToldJudge()
    work = worker(store, judge)
    work.once()
    ended(store, 1, state="FAILED")
    judge.say = lambda figures: []
    assert work.once().changes == {(KIND, "gone"): 1}
    assert held(store, 1) == []


def test_a_run_without_a_record_is_judged_when_its_nodes_have_reported_the_end(
    store: Store,
) -> None:
    judge = ToldJudge()
    work = worker(store, judge, running_interval=0.0)
    store.write(batch(part(sighting(1), totals=totals(10, 5))))
    assert work.once().runs == 0
    store.write(batch(part(sighting(1), totals=totals(20, 6), final=True)))
    assert work.once().runs == 1


def test_running_runs_are_judged_every_few_minutes(store: Store) -> None:
    moment = [0.0]
    judge = ToldJudge()
    store.record_jobs([info(1, state="RUNNING")])
    work = worker(store, judge, running_interval=300.0, monotonic=lambda: moment[0])
    work.once()
    work.once()
    assert judge.measured == [1]
    moment[0] = 300.0
    work.once()
    assert judge.measured == [1, 1]


def test_a_pending_job_is_not_measured(store: Store) -> None:
    judge = ToldJudge()
    store.record_jobs([info(1, None, state="CANCELLED", end=START, submit=START - 9)])
    worker(store, judge).once()
    assert judge.measured == []
    assert due.unjudged_runs(store.database, 10) == []


def test_changed_rules_are_applied_to_stored_figures(store: Store) -> None:
    ended(store, 1, 2, 3)
    judge = ToldJudge()
    worker(store, judge).once()

    def odd_ones(figures: FigureSet) -> list[Verdict]:
        assert figures.reason("gpu.count") == "the job has no GPU"
        return [fired()] if float(figures.values["run.tasks"]) % 2 else []  # type: ignore[arg-type]

    milder = ToldJudge(odd_ones, "rules 2")
    done = worker(store, milder).once()
    assert (done.runs, done.changes) == (3, {(KIND, "gone"): 1})
    assert milder.measured == []
    assert [bool(held(store, job)) for job in (1, 2, 3)] == [True, False, True]
    assert worker(store, milder).once().runs == 0


def test_history_is_resumed_where_it_was_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobsight.findings.worker.HISTORY_BATCH_SIZE", 2)
    ended(store, *range(1, 8))
    worker(store, ToldJudge()).once()
    changed = ToldJudge(digest="rules 2")
    calls = iter([False, False, True, True, True, True, True])
    first = worker(store, changed).once(lambda: next(calls, True))
    assert not first.complete
    assert 0 < changed.judged < 7
    rest = worker(store, changed).once()
    assert rest.complete
    assert changed.judged == 7


def test_a_run_changed_since_its_figures_is_still_measured_after_a_change_of_rules(
    store: Store,
) -> None:
    ended(store, 1)
    worker(store, ToldJudge()).once()
    ended(store, 1, state="FAILED")
    # The rules are applied before the run is measured again.
    (run,) = due.runs_with_figures(store.database, 10, 0)
    changed = ToldJudge(digest="rules 2")
    from jobsight.findings.worker import Evaluation

    Evaluation(store, changed).runs([run], stored_figures=True)
    worker(store, changed).once()
    assert changed.measured == [1]


def test_a_run_that_fails_stops_nobody(store: Store) -> None:
    ended(store, 1, 2, 3)

    def say(figures: FigureSet) -> list[Verdict]:
        if figures.values["run.tasks"] == 2:
            raise ZeroDivisionError("no such core")
        return [fired()]

    judge = ToldJudge(say)
    work = worker(store, judge)
    done = work.once()
    assert (done.runs, done.failed) == (2, 1)
    (letter,) = list_dead_letters(store.database)
    assert (letter.kind, letter.reason) == ("finding", "ZeroDivisionError: no such core")
    assert letter.run == str(find(store, "2").run)
    work.once()
    assert judge.measured.count(2) == 1
    drop(store.database, letter.name)
    assert work.once().runs == 0


def test_a_value_that_the_database_refuses_sets_one_run_aside(store: Store) -> None:
    ended(store, 1, 2)
    huge = Cost(core_hours=2**61 / 3.6e9 * 1.9)

    def say(figures: FigureSet) -> list[Verdict]:
        return [fired(cost=huge), fired("other")]

    for job in (3, 4, 5):
        ended(store, job)
    done = worker(store, ToldJudge(say)).once()
    # Their sum would run over 63 bits.
    assert done.failed >= 1
    assert done.runs + done.failed == 5
    assert Checker(store.database).run().faults == []


def test_a_run_that_ends_the_process_is_judged_alone_the_next_time(store: Store) -> None:
    ended(store, 1, 2)

    class Killed(BaseException):
        pass

    def say(figures: FigureSet) -> list[Verdict]:
        if figures.values["run.tasks"] == 2:
            raise Killed
        return [fired()]

    judge = ToldJudge(say)
    with pytest.raises(Killed):
        worker(store, judge, owner="host 1").once()
    assert held(store, 1) == []
    # The next process judges them one by one.
    with pytest.raises(Killed):
        worker(store, judge, owner="host 1").once()
    assert [bool(held(store, job)) for job in (1, 2)] == [True, False]
    # A process that is killed leaves its mark, and the next one passes the run over.
    due.mark(store.database, due.due_run(store.database, find(store, "2").id))  # type: ignore[arg-type]
    ended(store, 3)
    worker(store, judge, owner="host 1").once()
    assert judge.measured.count(2) == 2
    assert held(store, 3)


def test_rules_that_cannot_be_read_leave_the_previous_ones_in_force(store: Store) -> None:
    answers: list[Judge | JobsightError] = [ToldJudge()]

    def load() -> Judge:
        answer = answers[-1]
        if isinstance(answer, JobsightError):
            raise answer
        return answer

    work = Worker(store, load)
    work.once()
    answers.append(ConfigError("rules.yaml:3: no"))
    ended(store, 1)
    with pytest.raises(JobsightError, match=r"not loaded: rules\.yaml:3: no"):
        work.once()
    assert held(store, 1)


def test_of_two_servers_one_works_and_the_other_takes_over(store: Store) -> None:
    now = [START]
    first, second = ToldJudge(), ToldJudge()
    one = Worker(store, lambda: first, owner="host-a 1", clock=lambda: now[0])
    two = Worker(store, lambda: second, owner="host-b 1", clock=lambda: now[0])
    ended(store, 1)
    one.once()
    ended(store, 2)
    two.once()
    assert second.measured == []
    now[0] += due.LEASE + 1
    two.once()
    assert second.measured == [2]
    two.close()
    ended(store, 3)
    one.once()
    assert first.measured == [1, 3]


def test_of_two_servers_with_different_rules_the_last_adopted_count(store: Store) -> None:
    first, second = ToldJudge(), ToldJudge(digest="rules 2")
    one, two = worker(store, first, owner="a 1"), worker(store, second, owner="b 1")
    one.once()
    one.close()
    two.once()
    ended(store, 1)
    one.once()
    assert first.measured == []
    two.once()
    assert second.measured == [1]


def test_what_was_shown_is_written_by_the_next_round(store: Store) -> None:
    shown = ShownFindings()
    work = worker(store, ToldJudge(), shown=shown)
    ended(store, 1)
    work.once()
    key = Shown(find(store, "1").id, KIND, "anna", "page")
    shown.add([key, key])
    work.once()
    with store.database.query() as transaction:
        rows = transaction.execute("SELECT viewer, place, count FROM findings_shown").fetchall()
    assert [tuple(row) for row in rows] == [("anna", "page", 2)]


def test_an_update_from_the_command_line_judges_everything_and_a_dry_run_nothing(
    store: Store,
) -> None:
    ended(store, 1, 2)
    worker(store, ToldJudge()).once()
    ended(store, 3)
    judge = ToldJudge(lambda figures: [fired("other")], "rules 2")
    expected = {(KIND, "gone"): 2, ("other", "new"): 3}
    seen: list[tuple[int, int]] = []
    dry = update_all(
        store, judge, dry_run=True, progress=lambda done, total: seen.append((done, total))
    )
    assert dry.changes == expected
    assert seen[-1] == (3, 3)
    assert [row.kind for row in held(store, 1)] == [KIND]
    assert update_all(store, judge).changes == expected
    assert [row.kind for row in held(store, 1)] == ["other"]
    assert update_all(store, judge).changes == {}
    assert Checker(store.database).run().faults == []


def _tasks_of_array(judge: ToldJudge, store: Store) -> None:
    """Have the judge measure how many tasks of the array have ended."""
    measure = judge.measure

    def counted(run: StoredRun, now: int) -> Measured:
        measured = measure(run, now)
        if run.info.array_job_id is not None:
            count, _ = state_of_array(store.database, "c1", run.info.array_job_id)
            measured.figures.set("array.tasks", count)
        return measured

    judge.measure = counted  # type: ignore[method-assign]


def test_tasks_are_judged_again_when_the_last_of_the_array_has_ended(store: Store) -> None:
    judge = ToldJudge()
    _tasks_of_array(judge, store)
    work = worker(store, judge, running_interval=0)
    ended(store, 5, 6, array_job_id=5)
    store.record_jobs([info(7, array_job_id=5, state="RUNNING")])
    work.once()
    work.once()
    assert judge.measured == [5, 6]
    ended(store, 7, array_job_id=5)
    work.once()
    assert judge.measured == [5, 6, 7, 5, 6]
    work.once()
    assert len(judge.measured) == 5


def test_tasks_are_not_judged_again_while_others_are_pending(store: Store) -> None:
    judge = ToldJudge()
    _tasks_of_array(judge, store)
    work = worker(store, judge, running_interval=0)
    pending = JobRecord(info=info(5, array_job_id=5, state="PENDING"), array_tasks="8-9")
    snapshot = Snapshot(store.database, "c1")
    snapshot.replace("pending", [("5_[8-9]", pending)])
    ended(store, 6, array_job_id=5)
    work.once()
    ended(store, 7, array_job_id=5)
    work.once()
    assert judge.measured == [6, 7]
    snapshot.replace("pending", [])
    # Another process goes on.
    worker(store, judge, running_interval=0).once()
    assert judge.measured == [6, 7, 6]


def test_an_update_judges_early_tasks_again(store: Store) -> None:
    judge = ToldJudge()
    _tasks_of_array(judge, store)
    ended(store, *range(1, 61), array_job_id=5)
    first = [*range(1, 61)]
    assert update_all(store, judge, clock=lambda: START + 500 * SECOND).runs >= 60
    assert judge.measured == first
    ended(store, 61, array_job_id=5)
    update_all(store, judge, clock=lambda: START + 500 * SECOND)
    assert judge.measured == [*first, 61, *first]
