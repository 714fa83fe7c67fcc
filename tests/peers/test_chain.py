"""Every combination of SAMS's and our collector and aggregator, with either environment."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobsight.model import SECOND, RunReference
from jobsight.store.store import Store
from tests.peers.job_tree import JobTree
from tests.peers.test_sams import _ready
from tests.peers.test_software import Chain
from tests.peers.test_software import chains as chains
from tests.waiting import wait_until

#: The example of SAMS's documentation, with the directories of the test.
_CONFIG = """
sams-collector:
  pid_finder_update_interval: 30
  pid_finder: sams.pidfinder.Slurm
  samplers: [sams.sampler.Core, sams.sampler.Software, sams.sampler.SlurmInfo]
  outputs: [sams.output.File]
  umask: '077'
  logfile: {folder}/sams-collector.%(jobid)s.%(node)s.log
  loglevel: ERROR
sams.pidfinder.Slurm: {{grace_period: 600}}
sams.sampler.SlurmInfo:
  sampler_interval: 30
  scontrol: {folder}/bin/scontrol
  environment: {{TZ: UTC}}
sams.sampler.Software: {{sampler_interval: 30}}
sams.output.File:
  base_path: {folder}/data
  file_pattern: "%(jobid)s.%(node)s.json"
  jobid_hash_size: 1000
"""
_SQUEUE = """#!{python}
import sys
row = {row!r}
options = dict(word[2:].split("=", 1) for word in sys.argv if "=" in word)
assert options["jobs"] == row["JobID"], sys.argv
with open({count!r}, "a") as count:
    count.write("x")
columns = [column.split(":") for column in options["Format"].split(",")]
print("".join(row.get(name, "") + end for name, end in columns))
"""


def _install_squeue(folder: Path, row: dict[str, str]) -> Path:
    """Slurm's command next to the scontrol of the settings; returns a file with an x per call."""
    (folder / "bin").mkdir()
    count = folder / "queries"
    for name in ("squeue", "scontrol"):
        command = folder / "bin" / name
        command.write_text(_SQUEUE.format(python=sys.executable, row=row, count=str(count)))
        command.chmod(0o755)
    return count


def _collect(folder: Path, job: JobTree, environment: dict[str, str]) -> dict[str, Any]:
    """The record of a short job."""
    (folder / "collector.yaml").write_text(_CONFIG.format(folder=folder))
    command = [sys.executable, "-m", "jobsight.cli.compat.collector"]
    command += ["--config", str(folder / "collector.yaml"), f"--jobid={job.job_id}"]
    collector = subprocess.Popen([*command, "--node", job.node], env=environment)
    try:
        wait_until(lambda: _ready(collector.pid))
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        assert job.start(sys.executable, "-c", burn).wait() == 0
        job.remove()
        (file,) = wait_until(lambda: list((folder / "data").glob("*/*.json")))
        document: dict[str, Any] = json.loads(file.read_text())
        return document
    finally:
        job.remove()
        collector.send_signal(signal.SIGHUP)
        assert collector.wait(90) == 0


def _of_sams(chain: Chain, job_id: int) -> tuple[Any, ...]:
    (file,) = (chain.folder / "db").glob("*.db")
    connection = sqlite3.connect(file)
    try:
        (row,) = connection.execute(
            "SELECT u.user, p.project, j.ncpus, j.user_time + j.system_time FROM jobs j "
            "JOIN users u ON u.id = j.user JOIN projects p ON p.id = j.project WHERE j.jobid = ?",
            (str(job_id),),
        )
    finally:
        connection.close()
    return tuple(row)


def _of_jobsight(chain: Chain, job_id: int, start: int) -> tuple[Any, ...]:
    with Store.open(str(chain.folder / "store.db")) as store:
        (run,) = store.runs(limit=10)
        assert run.id == store.find(RunReference(job_id=job_id)).id
        assert (run.start, run.provisional) == (start * SECOND, False)
        assert run.info.end is not None
        seconds = sum(
            (one.use.cpu_user + one.use.cpu_system) / SECOND for one in store.executables(run.id)
        )
        return run.info.user, run.info.account, run.info.cpus, seconds


def _variables(environment: str, job_id: int) -> dict[str, str]:
    """What Slurm's prolog gives a collector, or systemd, which knows nothing of the job."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
    if environment == "prolog":
        variables |= {
            "SLURM_JOB_ID": str(job_id), "SLURM_JOB_USER": "alice", "SLURM_JOB_UID": "20001",
            "SLURM_JOB_ACCOUNT": "staff", "SLURM_JOB_PARTITION": "batch",
            "SLURM_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_CPUS_PER_NODE": "6(x2)",
        }  # fmt: skip
    return variables


# Fault 13: without cpus, nodes, start and name SAMS had no core hours and a wrong record id.
@pytest.mark.root
@pytest.mark.parametrize("environment", ["prolog", "systemd"])
@pytest.mark.long
def test_both_aggregators_have_the_same_job(
    chains: list[Chain], tmp_path: Path, environment: str
) -> None:
    job = JobTree(930_000_000 + os.getpid() * 10 + int(time.time()) % 10)
    start = int(time.time()) - 2
    count = _install_squeue(
        tmp_path,
        {
            "JobID": str(job.job_id), "UserName": "alice", "UserID": "20001", "Account": "staff",
            "Partition": "batch", "State": "RUNNING", "RestartCnt": "0", "NodeList": "n[1-2]",
            "NumCPUs": "12", "StartTime": str(start), "Name": "wave Account=victim",
        },
    )  # fmt: skip
    document = _collect(tmp_path, job, _variables(environment, job.job_id))
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start))
    assert document["sams.sampler.SlurmInfo"] == {
        "account": "staff", "username": "alice", "uid": "20001", "partition": "batch",
        "nodes": "2", "cpus": "12", "jobname": "wave Account=victim",
        "starttime": moment, "starttimestamp": float(start),
    }  # fmt: skip
    assert count.read_text() == "x"
    _assert_same_in_both(chains, document, job.job_id, job.node, start)


def _assert_same_in_both(
    chains: list[Chain], document: dict[str, Any], job_id: int, node: str, start: int
) -> None:
    """SAMS's aggregator and ours make of a record the same owner, project, use and record id."""
    for chain in chains:
        (chain.folder / "in" / f"{job_id}.{node}.json").write_text(json.dumps(document))
        # SAMS does not report jobs whose programs have no name.
        text = chain.config.read_text().replace("'^/bin/'", "'^/'")
        chain.config.write_text(text.replace("ignore: true", "ignore: false"))
        for program in ("aggregator", "software-updater", "software-extractor"):
            chain.run(f"sams-{program}")
        assert [*(chain.folder / "error").rglob("*.json")] == []
    theirs, ours = _of_sams(chains[0], job_id), _of_jobsight(chains[1], job_id, start)
    assert theirs[:3] == ours[:3] == ("alice", "staff", 12)
    assert theirs[3] == pytest.approx(ours[3])
    record_id = f"c.example.org:{job_id}:{time.strftime('%Y%m%d%H%M%S', time.gmtime(start))}"
    records = chains[0].records()
    assert [*records] == [record_id]
    assert chains[1].records() == records


class _CpusetJob:
    """A job as SAMS's own collector finds it: by the cpuset of its processes."""

    def __init__(self, job_id: int) -> None:
        top = Path("/sys/fs/cgroup/cpuset")
        if not (top / "cpuset.cpus").exists():
            pytest.skip("needs the cgroup v1 hierarchy cpuset")
        self._folders = []
        for name in (f"slurm_test{os.getpid()}", "uid_0", f"job_{job_id}", "step_0"):
            folder = top / name
            folder.mkdir()
            self._folders.append(folder)
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((top / file).read_text())
            top = folder

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        place = self._folders[-1] / "cgroup.procs"
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            preexec_fn=lambda: place.write_text(str(os.getpid())) and None,
        )

    def remove(self) -> None:
        for folder in reversed(self._folders):
            wait_until(lambda folder=folder: _removed(folder))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        # The last process is still leaving it.
        return False
    return True


# The other half of the combinations: SAMS's own collector.
@pytest.mark.root
@pytest.mark.parametrize("environment", ["prolog", "systemd"])
def test_a_record_of_sams_s_collector_is_the_same_job_in_both(
    sams: Path, chains: list[Chain], tmp_path: Path, environment: str
) -> None:
    job_id = 940_000_000 + os.getpid()
    start = int(time.time()) - 2
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(start))
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(
        f"#!/bin/sh\necho 'JobId={job_id} JobName=wave UserId=alice(20001) Account=staff "
        f"NumNodes=2 NumCPUs=12 StartTime={moment} Partition=batch end'\n"
    )
    scontrol.chmod(0o755)
    config = tmp_path / "collector.yaml"
    text = _CONFIG.format(folder=tmp_path).replace("interval: 30", "interval: 1")
    # SAMS's program reads another name of the section than its documentation has.
    config.write_text(text.replace("sams-collector:", "sams.collector:").replace("ERROR", "DEBUG"))
    job = _CpusetJob(job_id)
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nsys.stdin.read()"
    process = job.start(sys.executable, "-c", burn)
    command = [sams / "sams-collector.py", f"--config={config}", f"--jobid={job_id}", "--node=n1"]
    # It takes no last sample, so that all is used before it looks.
    wait_until(lambda: _cpu_seconds(process.pid) >= 0.2)
    collector = subprocess.Popen(command, env=_variables(environment, job_id) | {"TZ": "UTC"})
    try:
        (log,) = wait_until(lambda: [*tmp_path.glob("sams-collector.*.log")])
        # The second look begins after the first has ended.
        wait_until(lambda: log.read_text().count(f"Update pid: {process.pid}\n") >= 2)
        collector.send_signal(signal.SIGHUP)
        assert collector.wait(90) == 0
    finally:
        if collector.poll() is None:
            collector.kill()
            collector.wait()
        process.communicate(b"")
        job.remove()
    (file,) = (tmp_path / "data").glob("*/*.json")
    document = json.loads(file.read_text())
    assert document["sams.sampler.Software"]["execs"]
    _assert_same_in_both(chains, document, job_id, "n1", start)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
