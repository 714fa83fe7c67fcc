"""What the agent asks: one question for all jobs, and no name that passes for another field."""

import re
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.adapters.squeue import NodeJobs, job_by_id, jobs_of_node
from jobsight.scheduler.records import SourceError
from jobsight.scheduler.sources.commands import run_command

HOSTILE = b'x Account=victim UserId=root(0) %(user)s "\n|\x01\xff~~\n1'
ROW = {
    "JobID": "7", "ArrayJobID": "2", "ArrayTaskID": "1", "UserName": "alice", "UserID": "1002",
    "Account": "alpha", "Partition": "main", "State": "RUNNING", "RestartCnt": "1",
    "NodeList": "cn[1-2]", "NumCPUs": "4", "tres-alloc": "cpu=4,mem=1.50G,node=2,billing=4",
    "TimeLimit": "1-00:10:00", "SubmitTime": "1794720980", "StartTime": "1794720981",
    "EndTime": "1794807981", "exit_code": "0", "QOS": "normal", "HetJobID": "N/A",
    "HetJobOffset": "N/A", "Reason": "None", "Command": "/home/alice/job.sh", "Name": "arr",
}  # fmt: skip


class Squeue:
    """Answers as squeue does: each value with the mark that the caller chose behind it."""

    def __init__(self, *rows: dict[str, str | bytes], refuse: str = "") -> None:
        self.rows = rows
        self.refuse = refuse
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], timeout: float) -> bytes:
        self.commands.append(command)
        wanted = next(word for word in command if word.startswith("--Format="))
        columns = re.findall(r"([\w-]+):(~\w+~)", wanted)
        if self.refuse and self.refuse in [name for name, _ in columns]:
            raise SourceError(f"squeue failed with 1: Invalid job format: {self.refuse}")
        output = b""
        for row in self.rows:
            for name, mark in columns:
                value = row[name]
                output += (value.encode() if isinstance(value, str) else value) + mark.encode()
            output += b"\n"
        return output


def ask(squeue: Squeue) -> NodeJobs:
    return jobs_of_node("cn1", 5, cluster="c", run=squeue)


def test_a_job_that_completes_has_all_its_nodes_or_none() -> None:
    """Slurm lists the nodes that are not free yet: cn1 has been freed already."""

    def completing(nodes: str) -> JobInfo:
        row = ROW | {"State": "COMPLETING", "NodeList": nodes}
        return job_by_id(7, cluster="c", run=Squeue(row))

    job = completing("cn2")
    assert (job.nodes, job.node_count, job.cpus) == (None, 2, 4)
    job = completing("cn[1-2]")
    assert (job.nodes, job.node_count) == (("cn1", "cn2"), 2)


def test_a_row_becomes_a_record() -> None:
    answer = ask(Squeue(ROW))
    assert answer.known
    (job,) = answer.jobs
    assert (job.cluster, job.job_id, job.array_job_id, job.array_task_id) == ("c", 7, 2, 1)
    assert (job.user, job.uid, job.account, job.partition) == ("alice", 1002, "alpha", "main")
    assert (job.nodes, job.cpus, job.memory) == (("cn1", "cn2"), 4, 3 * 2**29)
    assert (job.qos, job.gpus) == ("normal", 0)
    assert (job.restart_count, job.state, job.name) == (1, "RUNNING", "arr")
    assert job.time_limit == (86400 + 600) * SECOND
    assert job.start == 1794720981 * SECOND
    # squeue's end of a running job is its limit, and its exit code is not one yet.
    assert (job.end, job.exit_code, job.het_job_id) == (None, None, None)


def test_an_ended_job_and_a_component() -> None:
    ended = ROW | {"JobID": "4", "ArrayTaskID": "N/A", "HetJobID": "3", "HetJobOffset": "0"}
    ended |= {"State": "FAILED", "exit_code": "10752"}
    (job,) = ask(Squeue(ended)).jobs
    assert (job.exit_code, job.exit_signal, job.end) == (42, None, 1794807981 * SECOND)
    assert (job.het_job_id, job.het_offset, job.array_job_id) == (3, 0, None)


def test_jobs_that_wait_are_no_runs() -> None:
    assert ask(Squeue(ROW | {"State": "PENDING"})) == NodeJobs()
    assert ask(Squeue(ROW | {"State": "CANCELLED", "NodeList": ""})) == NodeJobs()


def test_a_hostile_name_is_only_a_name() -> None:
    answer = ask(Squeue(ROW | {"Name": HOSTILE}, ROW | {"JobID": "8"}))
    first, second = answer.jobs
    assert first.name == HOSTILE.decode("utf-8", "backslashreplace")
    assert (first.user, first.account, first.job_id) == ("alice", "alpha", 7)
    assert (second.job_id, second.name) == (8, "arr")


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_any_bytes_may_be_a_name(names: list[bytes]) -> None:
    rows = [ROW | {"JobID": str(number), "Name": name} for number, name in enumerate(names, 1)]
    jobs = ask(Squeue(*rows)).jobs
    assert [job.name for job in jobs] == [
        name.decode("utf-8", "backslashreplace") for name in names
    ]
    assert {job.user for job in jobs} == {"alice"}


def test_an_older_squeue_without_het_columns() -> None:
    squeue = Squeue(ROW, refuse="HetJobID")
    assert [job.job_id for job in ask(squeue).jobs] == [7]
    assert len(squeue.commands) == 2


def test_failures_are_a_value() -> None:
    def away(command: Sequence[str], timeout: float) -> bytes:
        raise SourceError("squeue gave no answer within 5 s")

    answer = jobs_of_node("cn1", 5, cluster="c", run=away)
    assert answer == NodeJobs(reason="squeue gave no answer within 5 s")
    assert not answer.known

    def changed(command: Sequence[str], timeout: float) -> bytes:
        return b"JOBID PARTITION\n1 main\n"

    assert "columns have changed" in jobs_of_node("cn1", 5, cluster="c", run=changed).reason
    assert ask(Squeue()) == NodeJobs()
    assert "cannot be run" in jobs_of_node("a", 5, cluster="c", run=_missing).reason


def _missing(command: Sequence[str], timeout: float) -> bytes:
    return run_command(["/nonexistent/squeue"], timeout)


def test_a_command_that_hangs_is_ended() -> None:
    with pytest.raises(SourceError, match=r"no answer within 0\.2 s"):
        run_command(["sleep", "60"], 0.2)


def test_the_agent_carries_nothing_heavy_for_it() -> None:
    code = (
        "import sys, jobsight.scheduler.adapters.squeue\n"
        "heavy = {'numpy', 'sqlalchemy', 'fastapi', 'typer', 'rich', 'http', 'asyncio'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
