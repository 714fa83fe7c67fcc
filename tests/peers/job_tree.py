"""A job's cgroups as Slurm makes them on v1, with real processes in them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

_CONTROLLERS = ("cpuacct", "memory", "freezer")
_MOUNT = Path("/sys/fs/cgroup")


class JobTree:
    """One job under a root of its own (several slurmd on a node have such roots)."""

    def __init__(self, job_id: int) -> None:
        if not all((_MOUNT / name / "tasks").exists() for name in _CONTROLLERS):
            pytest.skip("needs the cgroup v1 hierarchies cpuacct, memory and freezer")
        self.job_id = job_id
        self.node = f"test{os.getpid()}x{job_id}"
        self._children: list[subprocess.Popen[bytes]] = []

    def _folders(self, *below: str) -> list[Path]:
        roots = [_MOUNT / name / f"slurm_{self.node}" for name in _CONTROLLERS]
        return [root.joinpath("uid_0", f"job_{self.job_id}", *below) for root in roots]

    def start(self, *arguments: str | bytes, step: str = "step_0") -> subprocess.Popen[bytes]:
        """Start a command as a task of the job: it is moved in before it execs."""
        tasks = self._folders(step, "task_0")
        for folder in tasks:
            folder.mkdir(parents=True, exist_ok=True)

        def enter() -> None:
            for folder in tasks:
                (folder / "cgroup.procs").write_text(str(os.getpid()))

        child = subprocess.Popen(arguments, preexec_fn=enter)
        self._children.append(child)
        return child

    def cpu_time(self) -> int:
        """The kernel's counter of the job, in nanoseconds."""
        return int((self._folders()[0] / "cpuacct.usage").read_text())

    def remove(self) -> None:
        """End what still runs and remove the directories, as Slurm does before the epilog."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for root in {folder.parent.parent for folder in self._folders()}:
            for folder, _, _ in os.walk(root, topdown=False):
                _remove(folder)


def _remove(folder: str) -> None:
    for _ in range(3000):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            return
        except OSError:
            # The last process has been waited for but not yet left.
            time.sleep(0.02)
        else:
            return
