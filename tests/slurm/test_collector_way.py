"""The prolog's way and the daemon's: one collector a job, and the node's agent, say the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Cluster
from tests.slurm.jobs import ALICE, agrees, burn, script, storm
from tests.slurm.site import HOOKS, Site, wait_for
from tests.waiting import wait_until


def write_hook(folder: Path, name: str) -> str:
    """The deployed hook with this test's places; they would be in the file at a site."""
    hook = folder / name
    hook.write_text(
        "#!/bin/sh\n"
        f"export JOBSIGHT_COLLECTOR={Path(sys.executable).with_name('sams-collector.py')}\n"
        f"export JOBSIGHT_COLLECTOR_CONFIG={folder}/collector.yaml\n"
        f"export JOBSIGHT_COLLECTOR_RUN={folder}\n"
        f"exec {HOOKS / name}\n"
    )
    hook.chmod(0o755)
    return str(hook)


@pytest.fixture(scope="module")
def both(slurm_packages: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster whose prolog starts collectors, with the node's agents alongside them."""
    folder = tmp_path_factory.mktemp("collector")
    folder.chmod(0o755)
    (folder / "collector.yaml").write_text(
        "sams-collector:\n"
        "  pid_finder_update_interval: 30\n"
        "  pid_finder: sams.pidfinder.Slurm\n"
        "  samplers: [sams.sampler.Core, sams.sampler.Software, sams.sampler.SlurmInfo]\n"
        "  outputs: [sams.output.File]\n"
        f"  logfile: {folder}/collector.%(jobid)s.%(node)s.log\n"
        "sams.output.File:\n"
        f"  base_path: {folder}/records\n"
        '  file_pattern: "%(jobid)s.%(node)s.json"\n'
    )
    hooks = {
        "prolog": write_hook(folder, "prolog-collector"),
        "epilog": write_hook(folder, "epilog-collector"),
    }
    (folder / "site").mkdir()
    # A collector looks for its job on the whole machine, where other tests have their own: those of
    # small numbers are many.
    numbers = ("FirstJobId=4200000",)
    with (
        Cluster.unused("c", nodes=3, extra=numbers, **hooks) as cluster,
        Site(cluster, folder / "site") as site,
    ):
        yield site


def record_of(site: Site, job: int) -> dict[str, Any]:
    folder = site.folder.parent / "records"
    found: list[Path] = []

    def written() -> bool:
        found[:] = folder.glob(f"{job}.*.json")
        return bool(found)

    wait_for(written, 90, lambda: f"{list(folder.parent.glob('*.log'))}")
    document: dict[str, Any] = json.loads(found[0].read_text())
    return document


@pytest.mark.long
def test_both_ways_give_the_same_totals(both: Site) -> None:
    job = both.cluster.submit(ALICE, script(burn(3), storm(200)), "--mem=100")
    both.cluster.wait(job, timeout=90)
    report = both.ended(job)
    document = record_of(both, job)
    booked = document["sams.sampler.Software"]["execs"]
    ours = {
        row["path"]: row["cpu_seconds"]
        for row in report["executables"]
        if row["kind"] == "executable"
    }
    theirs = {path: use["user"] + use["system"] for path, use in booked.items()}
    # What slurmstepd's child used before it became the job's script is seen by one or the other.
    (python,) = [path for path in ours if path.rpartition("/")[2].startswith("python3")]
    assert {python, os.path.realpath("/bin/true")} <= ours.keys() & theirs.keys()
    for found in (ours, theirs):
        assert agrees(report, found[python], 3)
        assert sum(found.values()) - found[python] < 2
    assert document["sams.sampler.Core"]["jobid"] == job
    assert document["sams.sampler.SlurmInfo"]["username"] == ALICE
    assert document["sams.sampler.SlurmInfo"]["account"] == "alpha"


# Fault 13: cpus, nodes, start and name were missing, by systemd account and partition as well.
def test_a_record_has_what_slurm_knows_in_either_environment(both: Site) -> None:
    folder = both.folder.parent
    job = both.cluster.submit(
        ALICE,
        script("srun sleep 2"),
        "--mem=50",
        "--nodes=2",
        "--cpus-per-task=2",
        "--job-name=a b",
    )
    environment = os.environ | both.cluster.environment()
    # As a systemd unit: no variable of the job.
    assert "SLURM_JOB_ID" not in environment
    command = [sys.executable, "-m", "jobsight.cli.compat.collector", f"--jobid={job}"]
    command += ["--config", f"{folder}/collector.yaml", "--node=by-systemd"]
    unit = subprocess.Popen(command, env=environment)
    try:
        both.cluster.wait(job, timeout=60)
        fields = ("Partition", "AllocCPUS", "Start")
        (row,) = both.cluster.sacct(job, fields, "--allocations")
        records = folder / "records"
        files = wait_until(lambda: _at_least(3, [*records.glob(f"{job}.*.json")]))
    finally:
        unit.send_signal(signal.SIGHUP)
        assert unit.wait(90) == 0
    sections = [json.loads(file.read_text())["sams.sampler.SlurmInfo"] for file in files]
    for section in sections:
        assert section["username"] == ALICE
        assert (section["account"], section["partition"]) == ("alpha", row["Partition"])
        assert (section["cpus"], section["nodes"]) == (row["AllocCPUS"], "2")
        assert (section["jobname"], section["starttimestamp"]) == ("a b", float(row["Start"]))
        assert section == sections[0]


def _at_least(count: int, files: list[Path]) -> list[Path] | None:
    return files if len(files) >= count else None


def test_no_collector_outlives_its_job(both: Site) -> None:
    job = both.cluster.submit(ALICE, script("sleep 1"), "--mem=50")
    both.cluster.wait(job, timeout=60)
    record_of(both, job)
    pattern = f"sams-collector.*--jobid={job} .*{both.folder.parent}"
    wait_until(lambda: subprocess.run(["pgrep", "--full", pattern], check=False).returncode == 1)


@pytest.mark.parametrize("hook", ["prolog", "epilog", "prolog-collector", "epilog-collector"])
def test_a_hook_never_fails_and_never_waits_long(hook: str, tmp_path: Path) -> None:
    """No agent, no collector, no settings: the job must not notice."""
    answer = subprocess.run(
        [HOOKS / hook],
        env={
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_UID": "20001",
            "SLURMD_NODENAME": "nowhere",
            "JOBSIGHT_SOCKET": str(tmp_path / "none.sock"),
            "JOBSIGHT_COLLECTOR": "/no/such/collector",
            "JOBSIGHT_COLLECTOR_RUN": str(tmp_path),
        },
        capture_output=True,
        # Far from what slurmd allows a prolog; not a figure to be proud of.
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0


def test_a_hook_does_not_wait_for_an_agent_that_hangs(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        answer = subprocess.run(
            [HOOKS / "prolog"],
            env={"SLURM_JOB_ID": "1", "JOBSIGHT_SOCKET": str(path)},
            timeout=60,
            check=False,
        )
    assert answer.returncode == 0


def test_the_clean_up_follows_no_link(tmp_path: Path) -> None:
    """A user who puts a link in place of his scratch directory never loses its target."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "alice.7.0").symlink_to(precious)
    own = scratch / "bob.7.0"
    own.mkdir()
    (own / "link").symlink_to(precious)
    for user, uid in (("alice", "20001"), ("bob", "20002")):
        subprocess.run(["chown", "-h", uid, scratch / f"{user}.7.0"], check=True)
        environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": user, "SLURM_JOB_UID": uid,
                       "SLURMD_NODENAME": "n1", "JOBSIGHT_SCRATCH": str(scratch)}  # fmt: skip
        subprocess.run([HOOKS / "epilog-clean"], env=environment, check=True)
    assert (precious / "file").read_text() == "kept"
    assert not own.exists()
    assert (scratch / "alice.7.0").is_symlink()
