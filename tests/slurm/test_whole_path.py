"""The whole path with real jobs: cgroup, agent, spool, server, API, page, terminal, sacct."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any, NamedTuple

import pytest

from jobsight.util.outer import parse_rfc3339
from tests.slurm.jobs import ALICE, BOB, HOSTILE_NAME, KINDS, agrees, burn, is_exact, script
from tests.slurm.site import REPOSITORY, Site
from tests.waiting import wait_until

SECOND = 1_000_000_000


class Finished(NamedTuple):
    job_id: int
    report: dict[str, Any]
    sacct: list[dict[str, str]]
    output: str


@pytest.fixture(scope="module")
def finished(site: Site) -> dict[str, Finished]:
    """All kinds, submitted together and followed to their end."""
    cluster = site.cluster
    jobs = {
        name: cluster.submit(kind.user, kind.script, *kind.options) for name, kind in KINDS.items()
    }
    done = {}
    for name, job in jobs.items():
        cluster.wait(job, timeout=120)
        done[name] = Finished(
            job,
            site.ended(job),
            cluster.sacct(job, [*FIELDS]),
            cluster.output(KINDS[name].user, job),
        )
    return done


FIELDS = ("JobID", "State", "ExitCode", "User", "Account", "Partition", "NodeList", "Start", "End",
          "TotalCPU", "MaxRSS", "JobName", "NCPUS")  # fmt: skip


def seconds(text: str) -> float:
    """TotalCPU as sacct writes it: [days-]hours:minutes:seconds or minutes:seconds.fraction."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + (int(days) * 86400 if days else 0)


def told_by_node(output: str) -> dict[str, int]:
    """CPU time that a job read from its own cgroup as its last act, by node."""
    found = re.findall(r"^truth (\S+) (\d+) \d+$", output, re.MULTILINE)
    return {node: int(used) for node, used in found}


def told(output: str) -> float:
    """In seconds."""
    (used,) = told_by_node(output).values()
    return used / SECOND


@pytest.mark.parametrize("name", KINDS)
def test_who_when_and_how_it_ended(finished: dict[str, Finished], name: str) -> None:
    job = finished[name]
    row, report = job.sacct[0], job.report
    assert report["user"] == row["User"] == KINDS[name].user
    assert report["account"] == row["Account"]
    assert report["partition"] == row["Partition"]
    assert report["state"] == row["State"].split()[0]
    code, _, number = row["ExitCode"].partition(":")
    assert report["exit_code"] == int(code)
    # Slurm's 0:125 is no signal.
    assert (report["exit_signal"] or 0) == (int(number) if int(number) <= 64 else 0)
    assert parse_rfc3339(report["start"]) // SECOND == int(row["Start"])
    assert parse_rfc3339(report["end"]) // SECOND == int(row["End"])
    assert report["cpu"]["requested_cpus"] == int(row["NCPUS"])


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.tells])
def test_cpu_time_is_the_cgroup_s(finished: dict[str, Finished], name: str) -> None:
    job = finished[name]
    measured = {row["node"]: row["cpu_seconds"] for row in job.report["node_rows"]}
    truth = told_by_node(job.output)
    assert measured.keys() == truth.keys()
    for node, used in truth.items():
        assert agrees(job.report, measured[node], used / SECOND), (measured, truth)


def test_the_cpu_time_of_jobs_is_exact(finished: dict[str, Finished]) -> None:
    # Of one or another job a busy machine may take the last reading, but not of each.
    assert any(is_exact(job.report) for job in finished.values())


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.slurm_is_right])
def test_cpu_time_is_sacct_s(finished: dict[str, Finished], name: str) -> None:
    job = finished[name]
    cpu = job.report["cpu"]
    # Slurm includes the sleep of its extern step.
    used = cpu["cpu_seconds"] + (cpu["overhead_seconds"] or 0)
    assert agrees(job.report, used, seconds(job.sacct[0]["TotalCPU"]))


@pytest.mark.parametrize("name", KINDS)
def test_peak_memory_is_the_cgroup_s(finished: dict[str, Finished], name: str) -> None:
    job = finished[name]
    told = dict(re.findall(r"^truth (\S+) \d+ (\d+)$", job.output, re.MULTILINE))
    peak = job.report["memory"]["kernel_peak_bytes"]
    assert peak is not None
    if told:
        nodes = sum(map(int, told.values()))
        assert 0.9 * nodes <= peak <= nodes + 2**25
    largest = max((int(row["MaxRSS"] or 0) for row in job.sacct), default=0)
    # The kernel's peak includes page cache and every step; Slurm samples one step's RSS.
    assert peak >= largest * 0.99


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.executions])
def test_every_execution_is_counted_and_named(finished: dict[str, Finished], name: str) -> None:
    rows = finished[name].report["executables"]
    for end, count in KINDS[name].executions.items():
        found = [row for row in rows if row["path"].endswith(end)]
        assert [row["executions"] for row in found] == [count]


def test_steps_are_kept_apart(finished: dict[str, Finished]) -> None:
    steps = {row["step"]: row for row in finished["steps"].report["steps"]}
    assert {"0", "1", "batch"} <= steps.keys()
    told = dict(re.findall(r"^step (\d+) (\d+)$", finished["steps"].output, re.MULTILINE))
    assert told.keys() == {"0", "1"}
    for step, used in told.items():
        report = finished["steps"].report
        assert agrees(report, steps[step]["cpu_seconds"], int(used) / SECOND)


def test_a_name_cannot_book_on_somebody_else(finished: dict[str, Finished]) -> None:
    report = finished["hostile name"].report
    assert (report["user"], report["account"]) == (ALICE, "alpha")
    # Slurm itself writes a quote as a backtick.
    assert report["name"].replace("`", '"').startswith(HOSTILE_NAME.strip()[:40])


def test_three_nodes_report_and_add_up(finished: dict[str, Finished], site: Site) -> None:
    report = finished["three nodes"].report
    assert sorted(row["node"] for row in report["node_rows"]) == sorted(site.cluster.nodes)
    assert sum(row["cpu_seconds"] for row in report["node_rows"]) == pytest.approx(
        report["cpu"]["cpu_seconds"]
    )


def test_two_users_on_one_node_are_kept_apart(site: Site) -> None:
    node = site.cluster.nodes[0]
    options = (f"--nodelist={node}", "--mem=100", "--ntasks=1")
    jobs = {}
    for user, seconds_of in ((ALICE, 2.0), (BOB, 1.0)):
        # Each runs a program of its own name, so that one recorded on the other would be seen.
        text = script(
            "folder=$(mktemp -d)", f"cp $(readlink -f $(which python3)) $folder/{user}",
            f"$folder/{user} -c 'import time\nwhile time.process_time() < {seconds_of}: pass'",
            "rm -r $folder",
        )  # fmt: skip
        jobs[user] = site.cluster.submit(user, text, *options)
    for user, other, seconds_of in ((ALICE, BOB, 2.0), (BOB, ALICE, 1.0)):
        site.cluster.wait(jobs[user], timeout=90)
        report = site.ended(jobs[user])
        paths = {row["path"].rpartition("/")[2]: row for row in report["executables"]}
        assert agrees(report, paths[user]["cpu_seconds"], seconds_of)
        assert other not in paths


def test_page_terminal_and_api_say_the_same(finished: dict[str, Finished], site: Site) -> None:
    job = finished["cpu"]
    answer = subprocess.run(
        [sys.executable, "-m", "jobsight.cli.main", "report", str(job.job_id), "--json",
         "--store", str(site.store)],
        cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(answer.stdout)["cpu"] == job.report["cpu"]
    request = urllib.request.Request(
        f"{site.url}/jobs/{job.job_id}",
        headers={"Authorization": f"Bearer {site.token_file.read_text().strip()}"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        page = reply.read().decode()
    assert job.report["run"] in page
    assert ALICE in page


@pytest.mark.long
def test_a_requeued_job_is_two_runs(site: Site) -> None:
    cluster = site.cluster
    job = cluster.submit(ALICE, script(burn(1), "truth", "sleep 6"), "--mem=100", "--requeue")
    cluster.wait(job, "RUNNING", timeout=60)
    time.sleep(3)
    cluster.requeue(job)
    cluster.wait(job, "COMPLETED", timeout=120)
    last = site.ended(job)
    listed = [row for row in site.get("/api/v1/jobs?limit=200")["jobs"] if row["job_id"] == job]
    assert len(listed) == 2
    assert len({row["run"] for row in listed}) == 2
    first = site.report(min(row["run"] for row in listed))
    assert first is not None
    assert first["run"] != last["run"]
    assert agrees(last, last["cpu"]["cpu_seconds"], told(cluster.output(ALICE, job)))


def test_a_cancelled_job_keeps_what_it_used(site: Site) -> None:
    node = site.cluster.nodes[0]
    job = site.cluster.submit(BOB, script(burn(60)), "--mem=100", f"--nodelist={node}")
    site.cluster.wait(job, "RUNNING", timeout=60)
    used = site.cluster.cgroup_of(job, node, "cpuacct") / "cpuacct.usage"
    wait_until(lambda: int(used.read_text()) > 2.5 * SECOND)
    known = int(used.read_text()) / SECOND
    site.cluster.cancel(job, user=BOB)
    site.cluster.wait(job, timeout=60)
    report = site.ended(job)
    assert report["state"] == "CANCELLED"
    assert report["cpu"]["cpu_seconds"] >= known - 0.05 or not is_exact(report)


def test_an_array_of_twenty(site: Site) -> None:
    job = site.cluster.submit(ALICE, script(burn(0.1), "truth"), "--array=0-19", "--mem=50")
    site.cluster.wait(job, timeout=180)
    for task in (0, 7, 19):
        report = site.ended(f"{job}_{task}")
        assert report["display_id"] == f"{job}_{task}"
        assert report["state"] == "COMPLETED"
        known = told(site.cluster.output(ALICE, f"{job}_{task}"))
        assert agrees(report, report["cpu"]["cpu_seconds"], known)


def test_a_het_job_is_two_components(site: Site) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --mem=50 --nodes=1\n#SBATCH hetjob\n#SBATCH --mem=60 --nodes=1\n"
        f"srun --het-group=0,1 {burn(0.5)}\n"
    )
    job = site.cluster.submit(ALICE, text)
    site.cluster.wait(job, timeout=120)
    leader, other = site.ended(f"{job}+0"), site.ended(f"{job}+1")
    assert leader["job_id"] != other["job_id"]
    assert other["cpu"]["cpu_seconds"] >= 0.5 or not is_exact(other)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_time_limit_ends_a_job_and_keeps_what_it_used(site: Site) -> None:
    lines = (burn(1), "truth", "sleep 600")
    job = site.cluster.submit(ALICE, script(*lines), "--mem=50", "--time=1")
    site.cluster.wait(job, "TIMEOUT", timeout=240)
    report = site.ended(job, timeout=120)
    assert report["state"] == "TIMEOUT"
    assert report["time"]["requested_seconds"] == 60
    assert agrees(report, report["cpu"]["cpu_seconds"], told(site.cluster.output(ALICE, job)))


# Fault 2: out of memory under a real Slurm.
def test_a_job_out_of_memory_is_said_to_be(finished: dict[str, Finished]) -> None:
    report = finished["out of memory"].report
    assert report["state_text"] == "ended: out of memory"
    memory = report["memory"]
    # A reading that came too late is missing, not zero.
    assert memory["oom_kills"] is None or memory["oom_kills"] >= 1
    assert memory["used_peak_bytes"] == memory["kernel_peak_bytes"]


# Fault 1 and 4: short jobs, whose cgroups Slurm removes within moments.
def test_short_jobs_list_the_user_s_programs_and_claim_nothing_else(site: Site) -> None:
    cluster = site.cluster
    jobs = [cluster.submit(ALICE, "#!/bin/bash\ntrue\n", "--mem=50") for _ in range(6)]
    for job in jobs:
        cluster.wait(job, timeout=120)
        report = site.ended(job)
        named = [row for row in report["executables"] if row["kind"] != "remainder"]
        paths = [row["path"] for row in named]
        assert not [path for path in paths if "slurmstepd" in path or path.endswith("sleep")]
        assert sum(row["cpu_seconds"] for row in named) <= report["cpu"]["cpu_seconds"]
        if report["coverage"]["executables"]["quality"] == "exact":
            assert sum(row["executions"] for row in named) == 1, report["executables"]
        assert not any("more than the CPU time" in note for note in report["coverage_notes"])
