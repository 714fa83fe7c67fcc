"""Interchange with SAMS 1.10: its aggregator takes our records and records what we measured."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jobsight.agent.outputs.file import FileOptions, FileOutput
from jobsight.cli.compat.collector import view_of
from jobsight.sams.node.settings import load_sams_settings
from tests.agent.outputs.conftest import HOSTILE
from tests.peers.aggregator import Aggregator, Booked
from tests.peers.job_tree import JobTree
from tests.waiting import wait_until

INFO = {
    "account": "p1",
    "cpus": "4",
    "jobname": "j",
    "nodes": "1",
    "partition": "batch",
    "starttime": "2024-01-01T10:00:00",
    "starttimestamp": 1704103200.0,
    "uid": "1001",
    "username": "u1",
}


@pytest.fixture
def aggregator(sams: Path, tmp_path: Path) -> Aggregator:
    return Aggregator(sams, tmp_path)


def write(aggregator: Aggregator, job_id: int, execs: dict[str, Any]) -> None:
    view = view_of(job_id, "n1")
    options = FileOptions(base_path=str(aggregator.data), jobid_hash_size=1000, spool="")
    output = FileOutput(options, view)
    output.store(view, "sams.sampler.SlurmCGroup", {"memory_usage": "12"})
    software = {"execs": execs, "start_time": 1704103200, "end_time": 1704106800}
    output.write(
        view,
        {
            "sams.sampler.Core": {"jobid": job_id, "node": "n1"},
            "sams.sampler.SlurmInfo": INFO,
            "sams.sampler.Software": software,
            "sams.sampler.SlurmCGroup": {},
        },
    )


def said(document: dict[str, Any]) -> Booked:
    execs = document["sams.sampler.Software"]["execs"]
    return {path: (use["user"], use["system"]) for path, use in execs.items()}


def test_a_record_is_booked_as_it_stands(aggregator: Aggregator) -> None:
    execs = {
        "/sw/GROMACS/2023.1/bin/gmx": {"user": 100.123456789, "system": 0.1 + 0.2},
        "/usr/bin/bash": {"user": 0.0, "system": 1e-9},
    }
    write(aggregator, 1234, execs)
    aggregator.run()
    assert aggregator.names("archive") == ["1234.n1.json"]
    # Equal to the last bit: both sides keep 64-bit floats.
    assert aggregator.booked(1234) == {p: (u["user"], u["system"]) for p, u in execs.items()}
    assert aggregator.owner(1234) == ("u1", "p1")


def test_hostile_paths_are_booked_and_not_refused(aggregator: Aggregator) -> None:
    execs = {f"/home/{text}": {"user": 1.5, "system": 0.5} for text in HOSTILE}
    write(aggregator, 77, execs)
    aggregator.run()
    assert aggregator.names("error") == []
    assert len(aggregator.booked(77)) == len(HOSTILE)
    assert aggregator.totals(77) == (1.5 * len(HOSTILE), 0.5 * len(HOSTILE))


def test_half_written_files_are_none_of_its_business(aggregator: Aggregator) -> None:
    """SAMS's loader takes every name that ends in .json, hidden ones too."""
    write(aggregator, 5, {"/bin/x": {"user": 1.0, "system": 0.0}})
    (folder,) = aggregator.data.iterdir()
    (folder / ".6.n1.json.n1.new").write_text('{"half')
    aggregator.run()
    assert aggregator.names("error") == []
    assert aggregator.names("data") == [".6.n1.json.n1.new"]


_CONFIG = """
sams.collector:
  samplers: [sams.sampler.Core, sams.sampler.Software, sams.sampler.SlurmInfo]
  outputs: [sams.output.File]
sams.output.File: {{base_path: {data}, jobid_hash_size: 1000, spool: ''}}
"""


@pytest.mark.root
def test_a_measured_job_is_booked_as_measured(aggregator: Aggregator, tmp_path: Path) -> None:
    """A real job in real cgroups, followed by our collector, recorded by SAMS's aggregator."""
    config = tmp_path / "collector.yaml"
    config.write_text(_CONFIG.format(data=aggregator.data))
    job = JobTree(910_000_000 + os.getpid() * 10 + int(time.time()) % 10)
    environment = os.environ | {
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOB_USER": "root",
        "SLURM_JOB_UID": "0",
        "SLURM_JOB_ACCOUNT": "staff",
        "SLURM_JOB_START_TIME": str(int(time.time())),
    }
    command = [sys.executable, "-m", "jobsight.cli.compat.collector", "--config", str(config)]
    collector = subprocess.Popen(
        [*command, f"--jobid={job.job_id}", "--node", job.node], env=environment
    )
    try:
        burn = "import time\nwhile time.process_time() < 0.7: pass"
        storm = f"for i in 1 2 3 4 5 6 7 8; do /bin/true; done; {sys.executable} -c '{burn}'; :"
        wait_until(lambda: _ready(collector.pid))
        assert job.start("/bin/sh", "-c", storm).wait() == 0
        counter = job.cpu_time()
        job.remove()
        (file,) = wait_until(lambda: list(aggregator.data.glob("*/*.json")))
        document = json.loads(file.read_text())
    finally:
        job.remove()
        collector.send_signal(signal.SIGHUP)
        assert collector.wait(90) == 0
    aggregator.run()
    booked = aggregator.booked(job.job_id)
    assert aggregator.names("error") == []
    assert booked == said(document)
    assert aggregator.owner(job.job_id) == ("root", "staff")
    # The program that spun for 0.7 s has them, and the counter has no less.
    (spun,) = [sum(times) for path, times in booked.items() if "python" in path]
    assert spun >= 0.6
    assert counter >= 0.7e9
    assert aggregator.totals(job.job_id) == pytest.approx(
        (sum(user for user, _ in booked.values()), sum(system for _, system in booked.values()))
    )


def _ready(pid: int) -> bool:
    """The engine waits for directories when it holds an inotify descriptor."""
    links = Path(f"/proc/{pid}/fd")
    try:
        return any("inotify" in os.readlink(link) for link in links.iterdir())
    except OSError:
        return False


def test_a_sams_plugin_of_a_site_runs_in_our_engine(
    sams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's own classes stand on SAMS's base classes, which their environment has."""
    (packages,) = sams.parent.glob("lib/python*/site-packages")
    (tmp_path / "site_sams.py").write_text(
        """
import sams.base
class Output(sams.base.Output):
    written = []
    def __init__(self, id, config):
        super().__init__(id, config)
        self.seen = {"size": config.get([id, "size"], 7), "jobid": self.jobid}
    def store(self, data): self.seen.update(data)
    def write(self): Output.written.append(self.seen)
class Sampler(sams.base.Sampler):
    def do_sample(self): return True
    def sample(self): self.store({"interval": self.sampler_interval})
    def final_data(self): return {"done": True}
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    (tmp_path / "c.yaml").write_text(
        "sams.collector: {samplers: [site_sams], outputs: [site_sams]}\n"
        "site_sams: {size: 0, sampler_interval: 9}\n"
    )
    settings = load_sams_settings(tmp_path / "c.yaml")
    view = view_of(1234, "n1")
    sampler = settings.samplers[0].make(view)
    output = settings.outputs[0].factory(view)
    document = sampler.document(view)
    assert document == {"interval": 9}
    output.store(view, "site_sams", document)
    output.write(view, {"site_sams": sampler.final(view)})
    written = sys.modules["site_sams"].Output.written
    assert written == [{"size": 0, "jobid": 1234, "site_sams": {"done": True}}]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("sams", "site_sams")]:
        monkeypatch.delitem(sys.modules, name)
