"""The cgroups of one Slurm job on a node: counters of the job, its steps and its tasks.

Slurm removes the cgroup of a step when the step ends, and that of the job before the epilog. The
counters of the job include ended steps; those of an ended step are kept from its last reading.
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
_STEP_CONTROLLERS: Final = ("freezer", "memory", "cpuset", "cpuacct")
#: The command name of Slurm's daemon, which shares a cgroup with the user's processes on v1.
DAEMON: Final = b"slurmstepd"


class StepCgroup:
    """The cgroup of one step, in one or several hierarchies."""

    def __init__(self, name: str, directories: dict[str, Path], version: str) -> None:
        self.use = StepUse(step=name, first_seen=time.time_ns())
        self.directories = directories
        self._v2 = version == SlurmCounters.V2
        self._files: dict[str, CgroupFiles] = {}
        self._tasks: dict[Path, CgroupFiles] = {}
        #: CPU time of each task at its last reading; a task may end before its step.
        self._task_cpu: dict[Path, int] = {}
        #: User time; on v2 only.
        self.cpu_user = 0

    def _open(self, controller: str, below: str = "") -> CgroupFiles | None:
        files = self._files.get(controller)
        if files is None and controller in self.directories:
            files = self._files[controller] = CgroupFiles(self.directories[controller] / below)
        return files

    def refresh(self, directories: dict[str, Path]) -> None:
        """Find tasks, and hierarchies in which the step has appeared since."""
        self.directories.update(directories)
        tasks = [] if self._v2 else _directories(self.directories.get("cpuacct"), "task_")
        for directory in tasks:
            if directory not in self._tasks:
                self._tasks[directory] = CgroupFiles(directory)
        self.use.tasks = max(self.use.tasks, len(tasks))

    def read(self) -> None:
        """Read the counters of the step. A removed step keeps its last ones."""
        if self.use.ended:
            return
        try:
            if self._v2:
                self._read_v2()
            else:
                self._read_v1()
            self.use.last_seen = time.time_ns()
        except CgroupGone:
            # On v2 the cgroups of a new step are created one after the other.
            if not any(directory.exists() for directory in self.directories.values()):
                self.end()

    def _read_v1(self) -> None:
        cpuacct, memory = self._open("cpuacct"), self._open("memory")
        if memory is not None:
            peaks = peaks_v1(memory)
            self.use.memory_peak, self.use.oom_kills = peaks.peak, peaks.oom_kills
        if cpuacct is None:
            return
        total = int(cpuacct.read("cpuacct.usage", 64))
        if not self._tasks and not self._task_cpu:
            self.use.cpu_time, self.use.cpu_overhead = total, 0
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
            self.use.cpu_overhead = max(0, total - tasks)
        # The step still includes a task that ended before its last reading.
        self.use.cpu_time = max(tasks, total - (self.use.cpu_overhead or 0))

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
        """All PIDs of the step. slurmstepd is not in the cpuacct hierarchy."""
        for controller in _STEP_CONTROLLERS:
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
    """The counters of one Slurm job on this node."""

    V1: Final = "cgroup v1"
    V2: Final = "cgroup v2"

    def __init__(self, directories: dict[str, Path]) -> None:
        #: By controller on v1, "unified" on v2; some may be created later.
        self.directories = directories
        self.version = self.V2 if "unified" in directories else self.V1
        self.overhead: int | None = None
        self._files: dict[str, CgroupFiles] = {}
        self._steps: dict[str, StepCgroup] = {}
        self._ended: list[StepUse] = []
        #: User time of the ended steps; on v2 only.
        self._ended_user = 0
        self.refresh()

    def refresh(self) -> None:
        """Find steps and tasks; called after cgroups were created or removed."""
        present: dict[str, dict[str, Path]] = {}
        for controller, directory in self.directories.items():
            for path in _directories(directory, "step_"):
                present.setdefault(path.name.removeprefix("step_"), {})[controller] = path
        for name, directories in present.items():
            step = self._steps.get(name)
            if step is None:
                step = self._steps[name] = StepCgroup(name, directories, self.version)
            step.refresh(directories)
        for name in [name for name in self._steps if name not in present]:
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
        """The CPU time of the job without that of slurmstepd, which is in ``overhead``."""
        files = self._open("unified" if self.version == self.V2 else "cpuacct")
        if files is None:
            return None
        for step in self._steps.values():
            step.read()
        steps = self.steps()
        self.overhead = sum(step.cpu_overhead or 0 for step in steps)
        total = cpu_v2(files) if self.version == self.V2 else cpu_v1(files)
        used = max(0, total.time - self.overhead)
        users = [step.cpu_time for step in steps]
        if self.version == self.V2 and None not in users:
            # slurmstepd runs between two reads, so the sum of the steps is more accurate than
            # the difference. A step that could not be read yet is in the total only.
            used = sum(filter(None, users))
            user = self._ended_user + sum(step.cpu_user for step in self._steps.values())
            return CpuReading(used, user, used - user)
        user = round(used * total.user / total.time) if total.time else used // 2
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
        """Step and PID of each slurmstepd. Their children belong to the user."""
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
