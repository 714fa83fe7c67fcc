"""The samplers on this kernel: real cgroups, real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.agent.job import JobView
from jobsight.agent.launch.cgroup import OwnCgroup, create_cgroup
from jobsight.agent.probes.cgroup import CgroupProbe
from jobsight.agent.probes.cgroup_files import CgroupGone, CgroupV2
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.agent.samplers.cgroup_memory import SlurmCGroup
from jobsight.agent.samplers.cpu import CoreTimes
from jobsight.agent.samplers.disk import IOStats
from jobsight.agent.samplers.energy import Energy
from jobsight.agent.samplers.files import Files
from jobsight.agent.samplers.gpu.sampler import GpuSampler
from jobsight.agent.samplers.network import Network
from jobsight.agent.samplers.node import Node
from jobsight.agent.samplers.pressure import Pressure
from jobsight.agent.samplers.processes import Software, Threads
from jobsight.model import MISSING, SECOND, JobInfo, Sighting

#: Three threads that turn, 60 MB of memory, an open file, until its input ends.
PROGRAM = """
import sys, threading, time
memory = bytearray(60_000_000)
memory[::4096] = b"x" * len(memory[::4096])
file = open(sys.argv[1], "w")
def turn():
    until = time.process_time() + 0.4
    while time.process_time() < until:
        sum(range(1000))
threads = [threading.Thread(target=turn) for _ in range(3)]
for thread in threads: thread.start()
print("ready", flush=True)
for thread in threads: thread.join()
extra = threading.Thread(target=sys.stdin.read)
extra.start()
print("turned", flush=True)
extra.join()
"""


@pytest.fixture
def own() -> Iterator[OwnCgroup]:
    made = create_cgroup(f"jobsight-samplers-{os.getpid()}")
    if made is None:
        pytest.skip("no cgroup can be made here")
    yield made
    made.kill_leftovers()
    made.remove()


class Running:
    """A real program in a real cgroup, with the view of it."""

    def __init__(self, own: OwnCgroup, file: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=own.enter,
        )
        self.wait_for(b"ready\n")
        self.probe = CgroupProbe(
            own.cgroup, ProcessTracker(ExecutableNames()), events=False, reason="polled"
        )
        self.view = JobView(
            sighting=Sighting("c", 5, "n", "b", time.time_ns()),
            info=JobInfo(cluster="c", job_id=5, source="test"),
            probe=self.probe,
            usage=self.probe.usage,
            counters=own.cgroup,
        )
        self.look()

    def wait_for(self, word: bytes) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == word

    def look(self) -> None:
        # A process of several threads is read at every second round only.
        self.probe.sample()
        self.view.row = self.probe.sample()

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def running(own: OwnCgroup, tmp_path: Path) -> Iterator[Running]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = Running(own, scratch / "file")
    yield made
    made.process.kill()
    made.end()
    for process in list(made.probe.usage.members.values()):
        made.probe.tracker.finish_lost(process.tgid)


@pytest.mark.root
def test_a_real_job(running: Running, own: OwnCgroup, tmp_path: Path) -> None:
    node = Node(freshness=0.01)
    view = running.view
    samplers = {
        "cgroup": SlurmCGroup(node=node),
        "cores": CoreTimes(node=node, every=1),
        "files": Files(
            node=node, every=1, links_every=1, scratch_prefixes=[str(tmp_path / "scratch")]
        ),
        "threads": Threads(node=node, states=True, every=1),
        "software": Software(node=node),
        "pressure": Pressure(node=node),
        "network": Network(node=node, interfaces=["*"]),
        "device": IOStats(node=node, iostat_devs=["*"]),
        "energy": Energy(node=node),
        "gpu": GpuSampler(node=node),
    }
    for sampler in samplers.values():
        sampler.columns(view)
        sampler.document(view)
    running.wait_for(b"turned\n")
    running.look()
    rows = {name: sampler.columns(view) for name, sampler in samplers.items()}
    documents = {name: sampler.document(view) for name, sampler in samplers.items()}
    assert all(value != MISSING for row in rows.values() for value in row.values())

    memory = documents["cgroup"]
    assert memory is not None
    assert int(memory["memory_used"]) > 60_000_000
    assert int(memory["memory_max_usage"]) >= int(memory["memory_used"])
    cores = samplers["cores"]
    assert isinstance(cores, CoreTimes)
    total = sum(rows["cores"].values())
    if cores.exact:
        cpu = own.cgroup.cpu()
        assert cpu is not None
        assert total <= cpu.time
        assert total >= view.row["cpu.time"]
    files = samplers["files"]
    assert isinstance(files, Files)
    assert files.scratch_used is True
    assert files.open_now == len(os.listdir(f"/proc/{running.process.pid}/fd"))
    threads = documents["threads"]
    assert threads is not None
    assert sum(one["threads"] for one in threads["programs"].values()) == view.row["tasks.threads"]
    software = documents["software"]
    assert software is not None
    assert view.row["cpu.time"] >= 0.4 * SECOND
    assert software["current"]["total_user"] > 0
    assert documents["device"] is not None
    running.end()
    running.look()
    final = samplers["software"].final(view)
    executable = os.path.realpath(sys.executable)
    # The records begin with the probe, which came after the program; the counter knows all.
    assert 0 < final["execs"][executable]["user"] <= final["current"]["total_user"]
    own.remove()
    with pytest.raises(CgroupGone):
        own.cgroup.cpu()
    for name, sampler in samplers.items():
        sampler.columns(view)
        last = sampler.final(view)
        assert bool(last) == bool(documents[name]), name
        sampler.close()
    node.close()


@pytest.mark.root
def test_pressure_of_a_real_v2_group(tmp_path: Path) -> None:
    mount = next(
        (
            Path(words[1])
            for words in map(str.split, Path("/proc/self/mounts").read_text().splitlines())
            if words[2] == "cgroup2"
        ),
        None,
    )
    if mount is None:
        pytest.skip("no cgroup v2 is mounted")
    folder = mount / f"jobsight-pressure-{os.getpid()}"
    folder.mkdir()
    own = OwnCgroup({"unified": folder}, CgroupV2(folder))
    try:
        if not (folder / "cpu.pressure").exists():
            pytest.skip("this kernel keeps no pressure")
        running = Running(own, tmp_path / "file")
        try:
            node = Node(freshness=0.0)
            sampler, cores = Pressure(node=node), CoreTimes(node=node, every=1)
            sampler.columns(running.view)
            cores.columns(running.view)
            running.wait_for(b"turned\n")
            running.look()
            assert sampler.columns(running.view)["pressure.cpu"] > 0
            # Three threads that hold one lock in turn: all of it lies on some core.
            grown = sum(cores.columns(running.view).values())
            assert 0 < grown <= 3 * SECOND
            assert cores.coverage(running.view)["cores"].quality == "estimate"
        finally:
            running.process.kill()
            running.end()
            for process in list(running.probe.usage.members.values()):
                running.probe.tracker.finish_lost(process.tgid)
        running.view.row = {}
        own.remove()
        assert sampler.final(running.view)["cpu"]["some"]["total"] > 0
        sampler.close()
        cores.close()
        node.close()
    finally:
        own.remove()
