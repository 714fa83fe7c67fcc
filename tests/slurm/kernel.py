"""What the kernel itself says of a job of the bed: cgroup v1 and /proc, read by nobody of ours."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.waiting import wait_until

MOUNT = Path("/sys/fs/cgroup")
TICKS = os.sysconf("SC_CLK_TCK")


class Truth(NamedTuple):
    """The figures of one job on one node under petricore's names."""

    figures: dict[str, float]
    cores: dict[str, float]
    threads: dict[str, float]


def truth(node: str, user: str, job_id: int) -> Truth:
    place = f"slurm_{node}/uid_{pwd.getpwnam(user).pw_uid}/job_{job_id}"
    cpuacct, memory = MOUNT / "cpuacct" / place, MOUNT / "memory" / place
    ticks = dict(row.split() for row in (cpuacct / "cpuacct.stat").read_text().splitlines())
    charged = dict(row.split() for row in (memory / "memory.stat").read_text().splitlines())
    usage = int((memory / "memory.usage_in_bytes").read_text())
    used = usage - int(charged["total_cache"]) + int(charged["total_shmem"])
    # The extern step holds a sleep of Slurm's own.
    processes = sorted(
        int(pid)
        for file in cpuacct.glob("step_*/task_*/cgroup.procs")
        if file.parts[-3] != "step_extern"
        for pid in file.read_text().split()
    )
    threads: dict[str, float] = {}
    paths: set[str] = set()
    counts = dict.fromkeys(("syscr", "syscw", "read_bytes", "write_bytes"), 0)
    for pid in processes:
        folder = Path(f"/proc/{pid}")
        name = os.path.basename(os.readlink(folder / "exe"))
        threads[name] = threads.get(name, 0) + len(os.listdir(folder / "task"))
        # Each counts the children it has waited for.
        rows = dict(row.split(": ") for row in (folder / "io").read_text().splitlines())
        for figure in counts:
            counts[figure] += int(rows[figure])
        links = [os.readlink(link) for link in (folder / "fd").iterdir()]
        paths |= {one for one in links if one.startswith("/") and not one.startswith("/dev/")}
    figures = {
        "jobs_cpu_time_total": int((cpuacct / "cpuacct.usage").read_text()) / 1e9,
        # The kernel cuts these to whole ticks; what it stands for is the middle of the last one.
        "jobs_user_time": (int(ticks["user"]) + 0.5) / TICKS,
        "jobs_system_time": (int(ticks["system"]) + 0.5) / TICKS,
        "jobs_rss": used / 2**20,
        "jobs_spawned_processes": len(processes),
        "jobs_opened_files": len(paths),
        "jobs_read_count": counts["syscr"],
        "jobs_write_count": counts["syscw"],
        "jobs_read_mb": counts["read_bytes"] / 2**20,
        "jobs_write_mb": counts["write_bytes"] / 2**20,
    }
    cores = (cpuacct / "cpuacct.usage_percpu").read_text().split()
    by_core = {str(core): int(time) / 1e9 for core, time in enumerate(cores)}
    return Truth(figures, by_core, threads)


#: The weight of a bed among all other processes of the machine, which have 1024 together.
SHARES = 16384


@contextmanager
def cpus_first() -> Iterator[None]:
    """This process and what it starts meanwhile gets the CPUs before all others.

    A job of a real node has its CPUs for itself. Slurm leaves this controller alone on cgroup v1.
    """
    group = MOUNT / "cpu" / f"jobsight-test-{os.getpid()}"
    if not (MOUNT / "cpu" / "cpu.shares").exists():
        yield
        return
    before = MOUNT / "cpu" / own_group("cpu").lstrip("/")
    group.mkdir()
    (group / "cpu.shares").write_text(str(SHARES))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        wait_until(lambda: _is_empty(group, before))
        group.rmdir()


def _is_empty(group: Path, target: Path) -> bool:
    """Move what outlives the bed, which may fork or end meanwhile."""
    pids = (group / "cgroup.procs").read_text().split()
    for pid in pids:
        with suppress(ProcessLookupError):
            (target / "cgroup.procs").write_text(pid)
    return not pids


def own_group(controller: str) -> str:
    """The cgroup v1 of this process below the controller's mount."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if controller in controllers.split(","):
            return place
    return "/"
