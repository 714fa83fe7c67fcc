"""States of jobs that mislead: holds, requeues while completing, states of later releases."""

from typing import Any

import pytest

from jobsight.model import SECOND
from jobsight.scheduler.adapters.json import adapt_jobs
from jobsight.scheduler.adapters.pyslurm import adapt_queue
from jobsight.scheduler.adapters.squeue import jobs_from_rows
from tests.scheduler import shapes
from tests.scheduler.adapters.test_squeue import ROW


def live(state: Any) -> Any:
    shape = shapes.new_controller if isinstance(state, list) else shapes.old_controller
    (record,) = adapt_jobs(shapes.reply(shape(job_state=state)), "c").records
    return record


# Fault 8: the start of a job that is held after a requeue is the expected one.
@pytest.mark.parametrize("hold", ["SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD", "REQUEUE_FED"])
def test_a_held_job_has_not_started(hold: str) -> None:
    for state in (hold, [hold], ["PENDING", hold], [hold, "PENDING"]):
        record = live(state)
        assert (record.info.state, record.info.start, record.info.end) == ("PENDING", None, None)
        assert record.state_flags == (hold,)
        assert record.expected_start == shapes.START * SECOND
    (text,) = jobs_from_rows([ROW | {"State": hold}], "c").records
    document = {"job_id": 7, "job_state": hold, "start_time": shapes.START, "nodes": None}
    (pyslurm,) = adapt_queue([document], "c").records
    assert not text.ran
    assert not pyslurm.ran


# Fault 8: a job that is being requeued already has the start of its next run.
@pytest.mark.parametrize(
    ("state", "ran"),
    [
        ("COMPLETING", False),
        (["PENDING", "COMPLETING"], False),
        (["COMPLETING", "REQUEUED", "CANCELLED"], False),
        (["COMPLETED", "COMPLETING", "REQUEUE_HOLD"], False),
        (["COMPLETED", "COMPLETING"], True),
        (["RUNNING", "REQUEUED"], True),
    ],
)
def test_a_job_that_is_requeued_while_completing(state: Any, ran: bool) -> None:
    assert live(state).ran == ran


def test_pyslurm_and_a_job_that_is_completing() -> None:
    document = {"job_id": 7, "job_state": "COMPLETING", "start_time": shapes.START, "nodes": "n1"}
    assert not adapt_queue([document], "c").records[0].ran


# Fault 11: a state that is not known is reported, and the recorded end stays.
def test_an_unknown_state_is_reported_and_keeps_the_end() -> None:
    jobs = adapt_jobs(shapes.reply(shapes.new_accounting(state={"current": ["VANISHED"]})), "c")
    (record,) = jobs.records
    assert (record.info.state, record.info.end) == ("VANISHED", shapes.END * SECOND)
    assert [problem.field for problem in jobs.problems] == ["state.current"]
    for flag in ("LAUNCH_FAILED", "RECONFIG_FAIL", "EXPEDITING"):
        known = adapt_jobs(shapes.reply(shapes.new_controller(job_state=["RUNNING", flag])), "c")
        assert known.records[0].info.state == "RUNNING"
        assert known.problems == []


# Fault 11: a job that ended without a node list, or without a start, is reported.
def test_an_ended_job_that_contradicts_itself_is_reported() -> None:
    jobs = adapt_jobs(shapes.reply(shapes.new_accounting(nodes="")), "c")
    assert jobs.records[0].ran
    assert [problem.field for problem in jobs.problems] == ["nodes"]
    times = shapes.new_accounting()["time"]
    for start in (0, -5, 10**12):
        jobs = adapt_jobs(shapes.reply(shapes.new_accounting(time=times | {"start": start})), "c")
        assert not jobs.records[0].ran
        assert "start" in " ".join(problem.field for problem in jobs.problems)
