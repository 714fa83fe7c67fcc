"""``jobsight agent``: one process for all jobs of the node, with SAMS's settings or our own."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.control import Request, send_request
from jobsight.model import JobInfo
from tests.peers.job_tree import JobTree
from tests.ports import free_port
from tests.prometheus.readers import fetch, samples, values
from tests.waiting import wait_until

AGENT = (sys.executable, "-m", "jobsight.cli.main", "agent")
COLLECTOR = (sys.executable, "-m", "jobsight.cli.compat.collector")


@pytest.fixture(autouse=True)
def run_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One agent answers in a run directory, so each test has its own; a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="sight") as name:
        monkeypatch.setenv("JOBSIGHT_AGENT__RUN_DIRECTORY", name)
        yield


@pytest.fixture
def jobs() -> Iterator[list[JobTree]]:
    first = 920_000_000 + os.getpid() * 10
    trees = [JobTree(first), JobTree(first + 1)]
    yield trees
    for tree in trees:
        tree.remove()


def _ready(log: Path, jobs: list[JobTree]) -> bool:
    """Other tests have jobs on this machine as well."""
    said = log.read_text() if log.exists() else ""
    return all(f"job {job.job_id}: following" in said for job in jobs)


@pytest.mark.root
def test_all_jobs_get_a_seeds_samplers_and_outputs(tmp_path: Path, jobs: list[JobTree]) -> None:
    config = tmp_path / "sams.yaml"
    config.write_text(
        f"""
sams-collector:
  samplers: [sams.sampler.Core, sams.sampler.Software]
  outputs: [sams.output.File]
  logfile: {tmp_path}/%(jobid)s.log
  loglevel: INFO
sams.output.File: {{base_path: {tmp_path}/data, spool: ''}}
"""
    )
    for job in jobs:
        job.start("/bin/sleep", "60")
    agent = subprocess.Popen([*AGENT, "--config", str(config), "--pidfile", f"{tmp_path}/pid"])
    try:
        wait_until(lambda: _ready(tmp_path / "agent.log", jobs))
        second = subprocess.run(
            [*AGENT, "--config", str(config), "--pidfile", f"{tmp_path}/pid"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert f"is already running as process {agent.pid}" in second.stderr
        # One ends by itself, the other with the agent.
        jobs[0].remove()
        ended = tmp_path / "data" / f"{jobs[0].job_id}.{jobs[0].node}.json"
        wait_until(ended.exists)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(90) == 0
    for job in jobs:
        document = json.loads((tmp_path / "data" / f"{job.job_id}.{job.node}.json").read_text())
        assert any("sleep" in path for path in document["sams.sampler.Software"]["execs"])
    assert not (tmp_path / "pid").exists()


@pytest.mark.root
def test_a_record_that_is_lost_is_counted_at_metrics(
    tmp_path: Path, jobs: list[JobTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("JOBSIGHT_AGENT__METRICS__LISTEN", f"127.0.0.1:{port}")
    config = tmp_path / "sams.yaml"
    (tmp_path / "file").write_text("")
    config.write_text(
        f"""
sams-collector:
  samplers: [sams.sampler.Core]
  outputs: [sams.output.File]
  logfile: {tmp_path}/%(jobid)s.log
  loglevel: INFO
sams.output.File: {{base_path: {tmp_path}/file/data, spool: '', retry_count: 1}}
"""
    )
    name = "jobsight_agent_output_lost_records_total"

    def lost() -> float:
        found = samples(fetch(f"http://127.0.0.1:{port}/metrics"))
        return sum(values(found, name, output="sams.output.File").values())

    jobs[0].start("/bin/sleep", "60")
    agent = subprocess.Popen([*AGENT, "--config", str(config)])
    try:
        wait_until(lambda: _ready(tmp_path / "agent.log", jobs[:1]))
        assert lost() == 0
        jobs[0].remove()
        # Jobs of other tests on this machine are lost as well.
        wait_until(lambda: lost() >= 1)
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(90) == 1


@pytest.mark.root
def test_a_collector_beside_an_agent_is_its_client(tmp_path: Path, jobs: list[JobTree]) -> None:
    job = jobs[0]
    config = tmp_path / "sams.yaml"
    config.write_text(
        f"""
sams.collector:
  samplers: [sams.sampler.Core, sams.sampler.Software, sams.sampler.SlurmInfo]
  outputs: [sams.output.File]
  loglevel: INFO
sams.output.File: {{base_path: {tmp_path}/data, spool: ''}}
"""
    )
    (tmp_path / "agent.yaml").write_text("sams.collector: {samplers: [], outputs: []}\n")
    agent = subprocess.Popen([*AGENT, "--config", f"{tmp_path}/agent.yaml"])
    wait_until(lambda: _holds_inotify(agent.pid))
    environment = os.environ | {
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOB_USER": "root",
        "SLURM_JOB_ACCOUNT": "staff",
    }
    collector = subprocess.Popen(
        [
            *COLLECTOR,
            "--config",
            config,
            f"--jobid={job.job_id}",
            "--logfile",
            tmp_path / "log",
        ],
        env=environment,
    )
    try:
        # As in a prolog: the job comes after its collector.
        wait_until(lambda: (tmp_path / "log").exists())
        time.sleep(1)
        child = job.start("/bin/sh", "-c", "sleep 3; :")
        wait_until(lambda: "attached to the node's agent" in (tmp_path / "log").read_text())
        # It lists the cgroups once; one that measures by itself would watch them.
        wait_until(lambda: not _holds_inotify(collector.pid))
        child.wait()
        job.remove()
        (file,) = wait_until(lambda: list((tmp_path / "data").glob(f"{job.job_id}.*.json")))
        document = json.loads(file.read_text())
    finally:
        collector.send_signal(signal.SIGHUP)
        assert collector.wait(90) == 0
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(90) == 0
    assert any("sleep" in path for path in document["sams.sampler.Software"]["execs"])
    assert document["sams.sampler.SlurmInfo"]["account"] == "staff"


# Fault 17: a collector next to an agent did not use what the agent knew of the job.
@pytest.mark.root
def test_an_attached_collector_has_the_agents_knowledge_and_is_current_at_hup(
    tmp_path: Path, jobs: list[JobTree]
) -> None:
    job = jobs[0]
    config = tmp_path / "sams.yaml"
    config.write_text(
        f"""
sams.collector:
  samplers: [sams.sampler.Core, sams.sampler.Software, sams.sampler.SlurmInfo, threads]
  outputs: [sams.output.File, sams.output.Prometheus]
  loglevel: INFO
sams.output.File: {{base_path: {tmp_path}/data, spool: ''}}
sams.output.Prometheus:
  path: {tmp_path}/%(jobid)s.prom
  map: {{account: sams.sampler.SlurmInfo/account, user: sams.sampler.SlurmInfo/username}}
  metrics:
    '^/sams.sampler.Software/current/(?P<metric>total_user)$':
      'cpu{{account="%(account)s", user="%(user)s"}}'
"""
    )
    (tmp_path / "agent.yaml").write_text("sams.collector: {samplers: [], outputs: []}\n")
    agent = subprocess.Popen([*AGENT, "--config", f"{tmp_path}/agent.yaml"])
    directory = Path(os.environ["JOBSIGHT_AGENT__RUN_DIRECTORY"])
    info = JobInfo(cluster="c", job_id=job.job_id, source="squeue", account="p1", user="alice",
                   cpus=4, name="wave")  # fmt: skip
    collector = None
    try:
        wait_until(lambda: send_request(directory, Request("job", job.job_id, info)))
        go = tmp_path / "go"
        shell = "while [ ! -e {go} ]; do read -t 0.2 x <> <(:); done; /bin/date >{done}; sleep 90"
        job.start("/bin/bash", "-c", shell.format(go=go, done=tmp_path / "done"))
        # Without the prolog's environment: the collector of a systemd unit.
        command = [*COLLECTOR, "--config", config, f"--jobid={job.job_id}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        collector = subprocess.Popen([*command, "--logfile", tmp_path / "log"], env=environment)
        series = tmp_path / f"{job.job_id}.prom"
        # Series with these labels, well before the first interval of 60 s is over.
        text = wait_until(lambda: series.exists() and series.read_text())
        assert 'cpu{account="p1",user="alice"}' in text
        # A program that ran since the last part of the agent is in the record of a HUP.
        (tmp_path / "done").touch()
        go.touch()
        # The shell creates the file before it executes the program, which then writes.
        wait_until(lambda: (tmp_path / "done").read_bytes())
        collector.send_signal(signal.SIGHUP)
        assert collector.wait(90) == 0
        (file,) = (tmp_path / "data").glob(f"{job.job_id}.*.json")
        document = json.loads(file.read_text())
    finally:
        if collector is not None and collector.poll() is None:
            collector.kill()
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(90) == 0
    assert any(path.endswith("/date") for path in document["sams.sampler.Software"]["execs"])
    known = document["sams.sampler.SlurmInfo"]
    assert (known["account"], known["username"], known["cpus"]) == ("p1", "alice", "4")
    assert known["jobname"] == "wave"
    # The agent sends no processes; the collector reads them itself for the samplers that use them.
    assert "bash" in document["jobsight.threads"]["programs"]


def _holds_inotify(pid: int) -> bool:
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any("inotify" in link for link in links)


@pytest.mark.root
def test_our_own_settings_fill_the_spool(tmp_path: Path, jobs: list[JobTree]) -> None:
    config = tmp_path / "jobsight.toml"
    config.write_text(
        f"""
[agent]
spool = "{tmp_path}/spool"
query_slurm = false
[store]
location = "{tmp_path}/store.db"
"""
    )
    jobs[0].start("/bin/sleep", "60")
    command = [*AGENT, "--config", str(config), "--daemon", "--pidfile", f"{tmp_path}/pid"]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (started.returncode, started.stderr) == (0, "")
    pid = int((tmp_path / "pid").read_text())
    folder = Path(os.environ["JOBSIGHT_AGENT__RUN_DIRECTORY"])
    wait_until(
        lambda: (found := send_request(folder, Request("status"))) and (found.status or {})["jobs"]
    )
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert list((tmp_path / "spool").glob("*.batch"))
