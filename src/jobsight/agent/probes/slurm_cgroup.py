"""All cgroups that Slurm made for one job on a node: steps and tasks kept apart and summed.

Slurm removes them as steps end and before the epilog runs. What the directory of the job counts
outlives its steps; what a step counted is kept from its last reading.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Final

from jobsight.agent.probes.cgroup_files import (
    NO_PEAKS,
    CgroupFiles,
    CgroupGone,
    CpuReading,
    MemoryPeaks,
    MemoryReading,
    cpu_v1,
    cpu_v2,
    memory_v1,
    memory_v2,
    peaks_v1,
    peaks_v2,
    processes_below,
)
from jobsight.model import StepUse

V1_CONTROLLERS: Final = ("cpuacct", "memory", "cpuset", "freezer", "devices")
_WHOLE_STEP: Final = ("freezer", "memory", "cpuset", "cpuacct")
#: The process that Slurm's own daemon is, where it shares a directory with the user's.
DAEMON: Final = b"slurmstepd"


class StepCgroup:
    """The directories of one step."""

    def __init__(self, name: str, directories: dict[str, Path], version: str) -> None:
        self.use = StepUse(step=name, first_seen=time.time_ns())
        self.directories = directories
        self._v2 = version == SlurmCounters.V2
        self._files: dict[str, CgroupFiles] = {}
        self._tasks: dict[Path, CgroupFiles] = {}
        #: CPU time of each task at its last reading; a task may go before its step.
        self._task_cpu: dict[Path, int] = {}
        #: The part of the CPU time that was spent in programs; on v2 alone.
        self.cpu_user = 0

    def _open(self, controller: str, below: str = "") -> CgroupFiles | None:
        files = self._files.get(controller)
        if files is None and controller in self.directories:
            files = self._files[controller] = CgroupFiles(self.directories[controller] / below)
        return files

    def refresh(self, directories: dict[str, Path]) -> None:
        """Look for tasks, and for hierarchies in which the step has appeared since."""
        self.directories.update(directories)
        tasks = [] if self._v2 else _directories(self.directories.get("cpuacct"), "task_")
        for directory in tasks:
            if directory not in self._tasks:
                self._tasks[directory] = CgroupFiles(directory)
        self.use.tasks = max(self.use.tasks, len(tasks))

    def read(self) -> None:
        """Take the step's counters; one that is gone keeps its last ones."""
        if self.use.ended:
            return
        try:
            if self._v2:
                self._read_v2()
            else:
                self._read_v1()
            self.use.last_seen = time.time_ns()
        except CgroupGone:
            # On v2 the directories of a new step are made one after the other.
            if not any(directory.exists() for directory in self.directories.values()):
                self.end()

    def _read_v1(self) -> None:
        cpuacct, memory = self._open("cpuacct"), self._open("memory")
        if memory is not None:
            peaks = peaks_v1(memory)
            self.use.memory_peak, self.use.oom_kills = peaks.peak, peaks.oom_kills
        if cpuacct is None:
            return
        whole = int(cpuacct.read("cpuacct.usage", 64))
        if not self._tasks and not self._task_cpu:
            self.use.cpu_time, self.use.cpu_overhead = whole, 0
            return
        complete = bool(self._tasks)
        for directory, files in list(self._tasks.items()):
            try:
                self._task_cpu[directory] = int(files.read("cpuacct.usage", 64))
            except CgroupGone:
                complete = False
                files.close()
                if not directory.exists():
                    del self._tasks[directory]
        tasks = sum(self._task_cpu.values())
        if complete and len(self._tasks) == len(self._task_cpu):
            self.use.cpu_overhead = max(0, whole - tasks)
        # A task that has gone before its last reading is still in the step, and is the user's.
        self.use.cpu_time = max(tasks, whole - (self.use.cpu_overhead or 0))

    def _read_v2(self) -> None:
        user = self._open("unified", "user")
        if user is None:
            return
        used = cpu_v2(user)
        self.use.cpu_time, self.cpu_user = used.time, used.user
        daemon = self._files.setdefault(
            "daemon", CgroupFiles(self.directories["unified"] / "slurm")
        )
        try:
            self.use.cpu_overhead = cpu_v2(daemon).time
        except FileNotFoundError:
            pass
        if (user.directory / "memory.current").exists():
            peaks = peaks_v2(user)
            self.use.memory_peak, self.use.oom_kills = peaks.peak, peaks.oom_kills

    def user_processes(self) -> list[int]:
        if self._v2:
            return processes_below(self.directories["unified"] / "user")
        for controller in ("cpuacct", "memory"):
            tasks = _directories(self.directories.get(controller), "task_")
            if tasks:
                return [pid for directory in tasks for pid in processes_below(directory)]
        return [pid for pid in self._all() if not _is_daemon(pid)]

    def daemons(self) -> list[int]:
        if self._v2:
            return processes_below(self.directories["unified"] / "slurm")
        return [pid for pid in self._all() if _is_daemon(pid)]

    def _all(self) -> list[int]:
        """Everything in the step. slurmstepd stays out of the cpuacct hierarchy."""
        for controller in _WHOLE_STEP:
            if controller in self.directories:
                return processes_below(self.directories[controller])
        return []

    def end(self) -> None:
        self.use.ended = True
        self.close()

    def close(self) -> None:
        for files in (*self._files.values(), *self._tasks.values()):
            files.close()
        self._files.clear()
        self._tasks.clear()


class SlurmCounters:
    """The counters of one job of Slurm on this node."""

    V1: Final = "cgroup v1"
    V2: Final = "cgroup v2"

    def __init__(self, directories: dict[str, Path]) -> None:
        #: By controller on v1, "unified" on v2; hierarchies may appear later.
        self.directories = directories
        self.version = self.V2 if "unified" in directories else self.V1
        self.overhead: int | None = None
        self._files: dict[str, CgroupFiles] = {}
        self._steps: dict[str, StepCgroup] = {}
        self._ended: list[StepUse] = []
        #: Of the ended steps; their time in programs, where it is counted by step.
        self._ended_user = 0
        self.refresh()

    def refresh(self) -> None:
        """Look for steps and tasks; called when a directory has come or gone."""
        found: dict[str, dict[str, Path]] = {}
        for controller, directory in self.directories.items():
            for place in _directories(directory, "step_"):
                found.setdefault(place.name.removeprefix("step_"), {})[controller] = place
        for name, directories in found.items():
            step = self._steps.get(name)
            if step is None:
                step = self._steps[name] = StepCgroup(name, directories, self.version)
            step.refresh(directories)
        for name in [name for name in self._steps if name not in found]:
            step = self._steps.pop(name)
            step.end()
            self._ended.append(step.use)
            self._ended_user += step.cpu_user

    def _open(self, controller: str) -> CgroupFiles | None:
        files = self._files.get(controller)
        directory = self.directories.get(controller)
        if files is None and directory is not None and directory.exists():
            files = self._files[controller] = CgroupFiles(directory)
        return files

    def cpu(self) -> CpuReading | None:
        """The job's CPU time without slurmstepd's, which is in ``overhead``."""
        files = self._open("unified" if self.version == self.V2 else "cpuacct")
        if files is None:
            return None
        for step in self._steps.values():
            step.read()
        steps = self.steps()
        self.overhead = sum(step.cpu_overhead or 0 for step in steps)
        whole = cpu_v2(files) if self.version == self.V2 else cpu_v1(files)
        used = max(0, whole.time - self.overhead)
        users = [step.cpu_time for step in steps]
        if self.version == self.V2 and None not in users:
            # slurmstepd runs on between two reads, so the users' own sums are taken as they are;
            # a step that could not be read yet is in the whole alone.
            used = sum(filter(None, users))
            user = self._ended_user + sum(step.cpu_user for step in self._steps.values())
            return CpuReading(used, user, used - user)
        user = round(used * whole.user / whole.time) if whole.time else used // 2
        return CpuReading(used, user, used - user)

    def memory(self) -> MemoryReading | None:
        files = self._memory_files()
        if files is None:
            return None
        return memory_v2(files) if self.version == self.V2 else memory_v1(files)

    def memory_peaks(self) -> MemoryPeaks:
        files = self._memory_files()
        if files is None:
            return NO_PEAKS
        return peaks_v2(files) if self.version == self.V2 else peaks_v1(files)

    def _memory_files(self) -> CgroupFiles | None:
        if self.version == self.V1:
            return self._open("memory")
        files = self._open("unified")
        if files is not None and (files.directory / "memory.current").exists():
            return files
        return None

    def steps(self) -> list[StepUse]:
        return [*self._ended, *(step.use for step in self._steps.values())]

    def processes(self) -> list[int]:
        return [pid for _, pids in self.processes_by_step() for pid in pids]

    def processes_by_step(self) -> list[tuple[str, list[int]]]:
        return [(name, step.user_processes()) for name, step in self._steps.items()]

    def daemons(self) -> list[tuple[str, int]]:
        """Slurm's own processes: their children are the user's."""
        return [(name, pid) for name, step in self._steps.items() for pid in step.daemons()]

    def close(self) -> None:
        for step in self._steps.values():
            step.close()
        for files in self._files.values():
            files.close()
        self._files.clear()


def _directories(directory: Path | None, prefix: str) -> list[Path]:
    if directory is None:
        return []
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
            return []
        raise


def _is_daemon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip() == DAEMON
    except OSError:
        return False
