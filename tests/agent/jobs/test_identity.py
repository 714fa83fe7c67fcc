"""The identity of jobs: queried from Slurm in a thread, with a backoff while it is unreachable."""

import logging
import queue

import pytest

from jobsight.agent.jobs.identity import Identity
from jobsight.errors import JobsightError
from jobsight.model import JobInfo


def test_a_failed_query_is_repeated_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answers: list[list[JobInfo] | Exception] = [
        JobsightError("slurmctld is unreachable"),
        JobsightError("slurmctld is unreachable"),
        [JobInfo(cluster="c", job_id=7, source="squeue")],
    ]
    failures: list[int] = []

    def query() -> list[JobInfo]:
        failures.append(identity.failures)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    delivered: queue.SimpleQueue[list[JobInfo]] = queue.SimpleQueue()
    identity = Identity(query, delivered.put, min_interval=0.001)
    identity.start()
    identity.request()
    (info,) = delivered.get(timeout=60)
    assert info.job_id == 7
    assert failures == [0, 1, 2]
    identity.stop()
    identity.join(60)
    assert not identity.is_alive()
    assert identity.failures == 0
    assert [record.getMessage() for record in caplog.records if "Slurm" in record.message] == [
        "Slurm cannot be queried for the node's jobs: slurmctld is unreachable",
        "Slurm can be queried again",
    ]


def test_nothing_is_queried_without_a_request() -> None:
    queries: list[None] = []
    identity = Identity(lambda: queries.append(None) or [], lambda infos: None)  # type: ignore[func-returns-value]
    identity.start()
    identity.stop()
    identity.join(60)
    assert not identity.is_alive()
    assert queries == []
