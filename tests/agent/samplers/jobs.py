"""Made-up jobs on made-up machines for the tests of the samplers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobsight.agent.job import Counters, JobView
from jobsight.agent.probes.cgroup_files import CgroupV1, CgroupV2
from jobsight.agent.processes.executables import ExecutableName
from jobsight.agent.processes.process import JobUsage, Process, Segment
from jobsight.agent.samplers.node import Node
from jobsight.model import SECOND, Coverage, ExecutableUse, JobInfo, JobTotals, Sighting

START = 1_700_000_000 * SECOND
MIB = 2**20


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND

    def __call__(self) -> int:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class Books:
    """A probe that says what it is told to."""

    def __init__(self) -> None:
        self.rows: list[ExecutableUse] = []
        self.cpu: int | None = None
        self.user: int | None = None
        self.system: int | None = None

    def sample(self) -> dict[str, int]:
        return {}

    def executables(self) -> list[ExecutableUse]:
        return self.rows

    def totals(self) -> JobTotals:
        return JobTotals(
            time=0,
            cpu_source="test",
            cpu_time=self.cpu,
            cpu_user=self.user,
            cpu_system=self.system,
        )

    def coverage(self, lost: int) -> dict[str, Coverage]:
        return {}

    def close(self) -> None:
        pass


class Job:
    """A view, its clock and its machine below one directory."""

    def __init__(self, root: Path, **view: Any) -> None:
        self.root = root
        self.clock = Clock()
        self.books = Books()
        self.environment: dict[str, str] = {}
        self.node = Node(
            proc=root / "proc",
            sys=root / "sys",
            dev=root / "dev",
            clock=self.clock,
            wall=lambda: START + self.clock.now,
            environment=self.environment,
        )
        self.view = JobView(
            sighting=Sighting("c", 42, "n1", "boot", START),
            info=JobInfo(cluster="c", job_id=42, source="test"),
            probe=self.books,
            usage=JobUsage(),
            **view,
        )

    def another(self, job_id: int) -> JobView:
        return JobView(
            sighting=Sighting("c", job_id, "n1", "boot", START),
            info=JobInfo(cluster="c", job_id=job_id, source="test"),
            probe=Books(),
            usage=JobUsage(),
        )

    def process(self, pid: int, path: bytes = b"/usr/bin/app", threads: int = 1) -> Process:
        process = Process(
            pid, self.view.usage, Segment(ExecutableName(path, True), 0, executed=True)
        )
        process.threads = threads
        self.view.usage.members[pid] = process
        return process

    def on_v1(self, files: dict[str, str] | None = None) -> Counters:
        """Put the job into v1 directories with these files below ``cgroup``."""
        write(self.root / "cgroup", files if files is not None else V1)
        folders = {name: self.root / "cgroup" / name for name in ("cpuacct", "memory")}
        counters = CgroupV1(**folders)
        counters.directories["cpuset"] = self.root / "cgroup" / "cpuset"
        self.view.counters = counters
        return counters

    def on_v2(self, files: dict[str, str] | None = None) -> Counters:
        write(self.root / "cgroup", files if files is not None else V2)
        self.view.counters = CgroupV2(self.root / "cgroup")
        return self.view.counters


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat_line(pid: int, ticks: int, core: int, name: str = "app", state: str = "R") -> str:
    fields = ["0"] * 50
    fields[11], fields[12], fields[36] = str(ticks), "0", str(core)
    return f"{pid} ({name}) {state} {' '.join(fields[1:])}\n"


V1 = {
    "cpuacct/cpuacct.usage": "5000000000\n",
    "cpuacct/cpuacct.stat": "user 300\nsystem 200\n",
    "cpuacct/cpuacct.usage_percpu": "1000000000 4000000000 0 7 \n",
    "cpuset/cpuset.cpus": "0-1\n",
    "memory/memory.usage_in_bytes": "7708672\n",
    "memory/memory.limit_in_bytes": "314572800\n",
    "memory/memory.max_usage_in_bytes": "9523200\n",
    "memory/memory.kmem.usage_in_bytes": "970752\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "memory/memory.stat": "total_cache 1000000\ntotal_rss 5000000\ntotal_shmem 400000\n"
    "total_swap 4096\n",
}

#: Figures of a real job (memory.max = memory.high, as Slurm sets them).
V2 = {
    "cpu.stat": "usage_usec 5129646\nuser_usec 3006893\nsystem_usec 2122752\n",
    "memory.max": "524288000\n",
    "memory.high": "524288000\n",
    "memory.swap.max": "524288000\n",
    "memory.current": "66174976\n",
    "memory.peak": "66699264\n",
    "memory.swap.current": "8192\n",
    "memory.stat": "anon 60000000\nfile 5000000\nkernel 900000\nshmem 1000000\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 1\noom_kill 1\n",
    "cpuset.cpus": "\n",
    "cpuset.cpus.effective": "0-1\n",
    "cpu.pressure": "some avg10=5.55 avg60=2.59 avg300=0.62 total=1973606\n"
    "full avg10=4.08 avg60=1.84 avg300=0.44 total=1409751\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "io.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=10\n"
    "full avg10=0.50 avg60=0.00 avg300=0.00 total=5\n",
}
