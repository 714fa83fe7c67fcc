"""The identity of jobs: queried from Slurm in a thread, with a backoff while it is unreachable."""

import logging
import queue
import threading

import pytest

from jobsight.agent.jobs.identity import Identity, JobQuery, info_from_prolog, is_complete
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


def test_a_request_is_cancelled_when_its_job_has_ended() -> None:
    queried = threading.Event()
    identity = Identity(lambda: queried.set() or [], lambda infos: None, min_interval=0.001)  # type: ignore[func-returns-value]
    identity.request()
    identity.cancel()
    identity.start()
    # The thread waits for the next request.
    assert not queried.wait(0.1)
    identity.request()
    assert queried.wait(60)
    identity.stop()
    identity.join(60)


# Fault 13: the variables that slurmd sets for a prolog were not read.
@pytest.mark.parametrize(
    ("nodes", "count", "per_node", "cpus"),
    [
        ("n1", "1", "4", 4),
        ("n[1-3]", "3", "4(x2),8", 16),
        ("n[1-3]", "3", "4", None),
        ("n[1-3]", "", "4(x3)", None),
        ("n1", "1", "4(x)", None),
    ],
)
def test_a_prolog_gives_nodes_and_cpus(
    nodes: str, count: str, per_node: str, cpus: int | None
) -> None:
    environment = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_JOB_CPUS_PER_NODE": per_node,
        "SLURM_NODELIST": nodes,
    }
    info = info_from_prolog(environment, "c", 7)
    assert info is not None
    assert info.nodes == (("n1",) if nodes == "n1" else ("n1", "n2", "n3"))
    assert info.cpus == cpus
    # Neither the start nor the name is among the variables.
    assert not is_complete(info)


def test_a_host_list_that_cannot_be_read_is_left_out() -> None:
    info = info_from_prolog({"SLURM_JOB_ID": "7", "SLURM_NODELIST": "n[1-"}, "c", 7)
    assert info is not None
    assert info.nodes is None


def complete_info(start: int) -> JobInfo:
    return JobInfo(
        cluster="c", job_id=7, source="squeue", user="u", account="a", cpus=4, nodes=("n1",),
        start=start, name="j",
    )  # fmt: skip


# Fault 13: Slurm is queried once for each run of the job.
def test_one_query_completes_a_run_and_the_next_run_has_its_own() -> None:
    replies = [complete_info(100), complete_info(200)]
    query = JobQuery(lambda: replies.pop(0))
    known = JobInfo(cluster="c", job_id=7, source="cgroup", user="20001", qos="long")
    (first,) = query.jobs()
    assert query.jobs() == [first]
    done = query.complete(known)
    assert (done.user, done.qos, done.start, done.cpus) == ("u", "long", 100, 4)
    assert query.complete(known).start == 200
    # Nothing is missing, so nothing is queried.
    assert query.complete(first) == first
    assert replies == []


def test_nothing_is_prefetched_for_a_run_that_has_ended() -> None:
    replies = [complete_info(100)]
    query = JobQuery(lambda: replies.pop(0))
    query.complete(JobInfo(cluster="c", job_id=7, source="cgroup"))
    query.prefetch()
    for thread in threading.enumerate():
        if thread.name == "jobsight-job-query":
            thread.join(60)
    # A second query would have found no reply.
    assert replies == []


def test_a_run_ends_without_slurm() -> None:
    def query() -> JobInfo:
        raise JobsightError("slurmctld is unreachable")

    known = JobInfo(cluster="c", job_id=7, source="prolog", user="u")
    assert JobQuery(query).complete(known) == known


def test_the_reply_for_a_pending_job_is_not_kept() -> None:
    pending = JobInfo(cluster="c", job_id=7, source="squeue", user="u", account="a")
    replies = [pending, complete_info(100)]
    query = JobQuery(lambda: replies.pop(0))
    assert query.jobs() == [pending]
    assert query.jobs()[0].start == 100


def test_a_run_that_ends_waits_until_the_job_has_completed() -> None:
    completing = JobInfo(
        cluster="c", job_id=7, source="squeue", account="a", cpus=4, state="COMPLETING",
        tres={"cpu": 4, "node": 2},
    )  # fmt: skip
    replies = [completing, completing, complete_info(100)]
    delays: list[float] = []
    known = JobInfo(cluster="c", job_id=7, source="cgroup", user="u")
    done = JobQuery(lambda: replies.pop(0), delays.append).complete(known)
    assert (done.start, done.name, done.node_count) == (100, "j", 2)
    assert len(delays) == 2


def test_a_run_whose_job_never_completes_is_recorded_without_a_start() -> None:
    completing = JobInfo(cluster="c", job_id=7, source="squeue", user="u", state="COMPLETING")
    delays: list[float] = []
    assert JobQuery(lambda: completing, delays.append).complete(completing).start is None
    assert 0 < sum(delays) < 30
