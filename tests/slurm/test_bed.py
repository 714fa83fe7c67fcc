"""The bed runs jobs."""

import pytest

from tests.bed import BedError, Cluster
from tests.waiting import wait_until

ALICE, BOB = "jobsight-alice", "jobsight-bob"


def test_srun_on_every_node(cluster: Cluster) -> None:
    answer = cluster.srun(ALICE, "--nodes=3", "sh", "-c", "echo $SLURMD_NODENAME $(id -un)")
    assert sorted(answer.stdout.split("\n")[:-1]) == [f"{node} {ALICE}" for node in cluster.nodes]


def test_array_is_in_the_accounting(cluster: Cluster) -> None:
    job = cluster.submit(ALICE, "true", "--array=1-6")
    rows = cluster.wait(job)
    assert sorted(row["JobID"] for row in rows) == [f"{job}_{task}" for task in range(1, 7)]
    assert {row["State"] for row in rows} == {"COMPLETED"}
    record = cluster.sacct(job, ["User", "Account", "Cluster", "Partition"], "--allocations")[0]
    assert list(record.values()) == [ALICE, "alpha", cluster.settings.name, "main"]


def test_script_output_and_exit_code(cluster: Cluster) -> None:
    job = cluster.submit(BOB, "#!/bin/sh\necho from $SLURM_JOB_ACCOUNT\nexit 42\n")
    assert [row["ExitCode"] for row in cluster.wait(job, "FAILED")] == ["42:0"]
    assert cluster.output(BOB, job) == "from beta\n"
    with pytest.raises(BedError, match="is FAILED, not COMPLETED"):
        cluster.wait(job, "COMPLETED")


def test_a_name_that_imitates_the_accounting(cluster: Cluster) -> None:
    name = "x Account=victim|UserId=root(0)\x1f %(user)s\n1|root|COMPLETED"
    job = cluster.submit(BOB, "true", "--job-name", name)
    cluster.wait(job)
    rows = cluster.sacct(job, ["JobID", "JobName", "User", "State"], "--allocations")
    expected = {"JobID": str(job), "JobName": name, "User": BOB, "State": "COMPLETED"}
    assert rows == [expected]


def test_cgroup_of_a_running_job(cluster: Cluster) -> None:
    job = cluster.submit(ALICE, "sleep 60", "--mem=64", f"--nodelist={cluster.nodes[2]}")
    cluster.wait(job, "RUNNING")
    folder = cluster.cgroup_of(job, cluster.nodes[2])
    limit = "memory.limit_in_bytes" if cluster.cgroup_version == "v1" else "memory.max"
    wait_until(lambda: (folder / limit).read_text() == f"{64 << 20}\n")
    cluster.cancel(job, user=ALICE)
    cluster.wait(job, "CANCELLED")
    wait_until(lambda: not folder.exists())


@pytest.mark.long
def test_requeued_job_runs_again_without_the_two_minutes(cluster: Cluster) -> None:
    job = cluster.submit(ALICE, "sleep $((SLURM_RESTART_COUNT ? 0 : 60))")
    cluster.wait(job, "RUNNING")
    cluster.requeue(job)
    cluster.wait(job, "COMPLETED", timeout=100)
    runs = cluster.sacct(job, ["State", "Start", "End", "User"], "--allocations", "--duplicates")
    assert [run["State"] for run in runs] == ["REQUEUED", "COMPLETED"]
    assert {run["User"] for run in runs} == {ALICE}
    assert 0 < int(runs[1]["Start"]) - int(runs[0]["End"]) < 100


def test_heterogeneous_job(cluster: Cluster) -> None:
    job = cluster.submit(ALICE, "srun --het-group=0,1 true", "-n1", "--mem=50", ":", "-n1")
    assert [row["JobID"] for row in cluster.wait(job)] == [f"{job}+0", f"{job}+1"]


def test_controller_and_slurmd_stopped_under_a_running_job(cluster: Cluster) -> None:
    job = cluster.submit(ALICE, "sleep 6", f"--nodelist={cluster.nodes[1]}")
    cluster.wait(job, "RUNNING")
    cluster.stop_controller()
    cluster.stop_slurmd(cluster.nodes[1])
    assert cluster.queue(job) == []
    cluster.start_controller()
    cluster.start_slurmd(cluster.nodes[1])
    cluster.wait(job, "COMPLETED")


def test_commands_that_fail_say_why_and_show_the_logs(cluster: Cluster) -> None:
    with pytest.raises(BedError, match=r"Memory specification can not be satisfied") as caught:
        cluster.submit(ALICE, "true", "--mem=1000000")
    assert "--- slurmctld" in str(caught.value)
