"""Records of the scheduler that come outside of batches."""

import pytest

from jobsight.model import SECOND
from jobsight.scheduler.records import JobDetails, JobRecord, StepInfo
from jobsight.store.snapshot import unpack
from jobsight.store.store import Store
from jobsight.store.write.scheduler import ReportedRun, changed_runs, record_jobs, running_runs
from jobsight.store.write.validation import BatchError
from tests.store.sample import START, batch, find, info, part, sighting, totals


def test_a_record_completes_what_a_node_saw(store: Store) -> None:
    assert store.write(batch(part(sighting(birth=START + 2), totals=totals(5, 10))))
    assert store.record_jobs([info(user="anna", state="RUNNING", nodes=("n1",))]) == 1
    run = find(store)
    assert (run.provisional, run.info.user, run.info.start, run.cpu_time) == (
        False, "anna", START, 10,
    )  # fmt: skip


def test_the_same_record_again_is_no_news(store: Store) -> None:
    record = info(user="anna", state="RUNNING", nodes=("n1", "n2"))
    assert store.record_jobs([record]) == 1
    assert store.record_jobs([record]) == 0
    assert store.record_jobs([info(state="COMPLETED", end=START + SECOND)]) == 1
    # What comes late does not make it run again.
    assert store.record_jobs([record]) == 0
    assert find(store).info.state == "COMPLETED"


def test_a_requeue_is_two_runs(store: Store) -> None:
    later = START + 200 * SECOND
    records = [
        info(state="REQUEUED", end=START + 100 * SECOND),
        info(start=later, state="RUNNING", restart_count=1),
    ]
    assert store.record_jobs(records) == 2
    assert [(run.start, run.info.state) for run in store.runs()] == [
        (later, "RUNNING"),
        (START, "REQUEUED"),
    ]
    assert [(run.job_id, run.start, run.state) for run in store.open_runs("c1")] == [
        (7, later, "RUNNING")
    ]


def test_open_runs_are_those_without_an_end(store: Store) -> None:
    store.record_jobs([info(1), info(2, end=START + SECOND, state="FAILED"), info(3)])
    store.write(batch(part(sighting(job_id=4))))
    found = [(run.job_id, run.start, run.source) for run in store.open_runs("c1")]
    assert found == [(1, START, "slurm"), (3, START, "slurm"), (4, None, "sighting")]
    assert store.open_runs("c2") == []


def test_many_records_go_in_parts(store: Store) -> None:
    records = [info(number, state="RUNNING") for number in range(1, 1202)]
    assert store.record_jobs(records) == 1201
    assert store.record_jobs(records) == 0


def test_what_no_batch_may_hold_is_refused_whole(store: Store) -> None:
    with pytest.raises(BatchError, match="not between 1990 and 2200"):
        store.record_jobs([info(1), info(2, end=5)])
    assert store.count_runs() == 0


def reported(store: Store, after: int = 0) -> list[ReportedRun]:
    with store.database.query() as transaction:
        return changed_runs(transaction, (after, 0), 10)


def test_details_are_stored_with_their_run(store: Store) -> None:
    def record(now: int, **more: object) -> None:
        values = {"reservation": "maint", "steps": [StepInfo(step="batch", memory_peak=7)]} | more
        state = {"state": str(values.pop("state", "RUNNING"))}
        job = JobRecord(info=info(user="anna", **state), **values)  # type: ignore[arg-type]
        record_jobs(store.database, [job.info], [job.details], now)

    record(1, elapsed=5)
    (run,) = reported(store)
    assert (run.changed, run.info.user, run.info.start) == (1, "anna", START)
    details = unpack(run.details, JobDetails)
    assert (details.reservation, details.steps[0].memory_peak) == ("maint", 7)
    # The elapsed time of a running job differs in each reply, and is not a change.
    record(2, elapsed=9)
    assert reported(store)[0].changed == 1
    record(3, comment="more")
    assert reported(store)[0].changed == 3
    # A change of the run alone is one for sinks, too.
    record(4, comment="more", state="SUSPENDED")
    (run,) = reported(store)
    assert (run.changed, run.info.state) == (4, "SUSPENDED")
    assert reported(store, after=5) == []
    with store.database.query() as transaction:
        assert [run.run_id for run in running_runs(transaction, 0, 10)] == [run.run_id]
        assert running_runs(transaction, run.run_id, 10) == []


def test_what_is_no_run_or_is_refused_has_no_details(store: Store) -> None:
    record_jobs(store.database, [info(8, start=None, state="PENDING")], [JobDetails(comment="x")])
    with pytest.raises(BatchError):
        record_jobs(store.database, [info(9), info(10, end=5)], [JobDetails(), JobDetails()])
    assert reported(store) == []


def test_details_do_not_repeat_the_columns_of_the_run() -> None:
    job = JobRecord(info=info(user="anna"))
    assert not hasattr(job.details, "info")
    assert set(JobRecord.__struct_fields__) - set(JobDetails.__struct_fields__) == {"info"}
