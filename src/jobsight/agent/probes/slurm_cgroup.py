"""The cgroups of one Slurm job on a node: counters of the job, its steps and its tasks.

Slurm removes the cgroup of a step when the step ends, and that of the job before the epilog. The
counters of the job include ended steps; those of an ended step are kept from its last reading.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
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
    processes_in,
)
from jobsight.agent.processes.procfs import real_uid
from jobsight.model import StepUse

V1_CONTROLLERS: Final = ("cpuacct", "memory", "cpuset", "freezer", "devices")
_STEP_CONTROLLERS: Final = ("freezer", "memory", "cpuset", "cpuacct")
#: The command name of Slurm's daemon, which shares a cgroup with the user's processes on v1.
DAEMON: Final = b"slurmstepd"
#: The step in which Slurm itself keeps a sleep, and which processes from outside are moved into.
EXTERN: Final = "extern"
#: The counters of steps and job are read within some 50 us, in which slurmstepd may run; the
#: smallest program uses more than this.
UNLISTED_CPU: Final = 500_000


_TITLE: Final = re.compile(rb"slurmstepd: \[\d+\.([^\]]+)\]")


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
        #: v1 counts an OOM kill in the cgroup of the killed process only: the files by directory,
        #: and the last reading of each.
        self._memory_tasks: dict[Path, CgroupFiles] = {}
        self._oom_kills: dict[Path, int] = {}
        #: All observed processes have ended: now, and at the last reading.
        self.is_empty = self.read_after_exit = False
        #: CPU time with that of slurmstepd.
        self._total = 0
        #: All of its processes are Slurm's own.
        self.is_overhead = False
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
        if not self._v2:
            for directory in _directories(self.directories.get("memory"), "task_"):
                if directory not in self._memory_tasks:
                    self._memory_tasks[directory] = CgroupFiles(directory)
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
            if self.is_overhead:
                self.use.cpu_overhead = self._total
                self.use.cpu_time = self.cpu_user = 0
            self.use.last_seen = time.time_ns()
            self.read_after_exit = self.is_empty
        except CgroupGone:
            # On v2 the cgroups of a new step are created one after the other.
            if not any(directory.exists() for directory in self.directories.values()):
                self.end()

    def _read_v1(self) -> None:
        cpuacct, memory = self._open("cpuacct"), self._open("memory")
        if memory is not None:
            self._read_memory_v1(memory)
        if cpuacct is None:
            return
        total = self._total = int(cpuacct.read("cpuacct.usage", 64))
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

    def _read_memory_v1(self, memory: CgroupFiles) -> None:
        peaks = peaks_v1(memory)
        self.use.memory_peak = peaks.peak
        if peaks.oom_kills is None:
            return
        self._oom_kills[memory.directory] = peaks.oom_kills
        for directory, files in list(self._memory_tasks.items()):
            try:
                self._oom_kills[directory] = peaks_v1(files).oom_kills or 0
            except CgroupGone:
                files.close()
                del self._memory_tasks[directory]
        self.use.oom_kills = sum(self._oom_kills.values())

    def _read_v2(self) -> None:
        user = self._open("unified", "user")
        if user is None:
            return
        used = cpu_v2(user)
        self.use.cpu_time, self.cpu_user = used.time, used.user
        self._total = used.time
        daemon = self._files.setdefault(
            "daemon", CgroupFiles(self.directories["unified"] / "slurm")
        )
        try:
            self.use.cpu_overhead = cpu_v2(daemon).time
            self._total += self.use.cpu_overhead
        except FileNotFoundError:
            pass
        if (user.directory / "memory.current").exists():
            peaks = peaks_v2(user)
            self.use.memory_peak, self.use.oom_kills = peaks.peak, peaks.oom_kills

    def user_processes(self) -> list[int]:
        if self._v2:
            return processes_below(self.directories["unified"] / "user")
        tasks = self._in_tasks()
        return [pid for pid in self._all() if not _is_daemon(pid)] if tasks is None else tasks

    def _in_tasks(self) -> list[int] | None:
        """The PIDs in the cgroups of the tasks, which slurmstepd never enters; None without."""
        for controller in ("cpuacct", "memory"):
            tasks = _directories(self.directories.get(controller), "task_")
            if tasks:
                return [pid for directory in tasks for pid in processes_below(directory)]
        return None

    def daemons(self) -> list[int]:
        if self._v2:
            return processes_below(self.directories["unified"] / "slurm")
        # In the freezer hierarchy slurmstepd is in the cgroup of the job, not of the step.
        pids = dict.fromkeys(self._all())
        for controller in ("memory", "cpuset"):
            pids.update(dict.fromkeys(processes_in(self.directories.get(controller))))
        # A comm file is not read for each of thousands of processes of the user.
        for pid in self._in_tasks() or ():
            pids.pop(pid, None)
        return [pid for pid in pids if _is_daemon(pid)]

    def _all(self) -> list[int]:
        """All PIDs of the step in one hierarchy; slurmstepd is not in that of cpuacct."""
        for controller in _STEP_CONTROLLERS:
            if controller in self.directories:
                return processes_below(self.directories[controller])
        return []

    def end(self) -> None:
        self.use.ended = True
        if not self.use.oom_kills and not self.read_after_exit:
            # A zero that was read before its last process ended is no count.
            self.use.oom_kills = None
        self.close()

    def close(self) -> None:
        for group in (self._files, self._tasks, self._memory_tasks):
            for files in group.values():
                files.close()
        self._files.clear()
        self._tasks.clear()
        self._memory_tasks.clear()


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
        #: The extern step contains processes that are not Slurm's own.
        self.has_extern_user = False
        #: The job has used CPU time, and no step is known that could have.
        self.ran_unlisted = False
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
            step.is_overhead = step.use.step == EXTERN and not self.has_extern_user
            step.read()
        steps = self.steps()
        self.overhead = sum(step.cpu_overhead or 0 for step in steps)
        total = cpu_v2(files) if self.version == self.V2 else cpu_v1(files)
        used = max(0, total.time - self.overhead)
        users = [step.cpu_time for step in steps]
        # A step that came and went before the steps were listed is in the total only.
        self.ran_unlisted = used > UNLISTED_CPU and not (
            self.has_extern_user or any(step.step != EXTERN for step in steps)
        )
        if self.version == self.V2 and None not in users and not self.ran_unlisted:
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
        if self.version == self.V2:
            return peaks_v2(files)
        peaks = peaks_v1(files)
        kills = [peaks.oom_kills, *(step.oom_kills for step in self.steps())]
        known = [count for count in kills if count is not None]
        unknown = len(known) < len(kills) and not any(known)
        return peaks._replace(oom_kills=None if unknown else sum(known))

    def _memory_files(self) -> CgroupFiles | None:
        if self.version == self.V1:
            return self._open("memory")
        files = self._open("unified")
        if files is not None and (files.directory / "memory.current").exists():
            return files
        return None

    def has_listed(self, step: str) -> bool:
        """Whether a step exists, or existed when the steps were listed."""
        return step in self._steps or any(use.step == step for use in self._ended)

    def has_tasks(self, step: StepUse) -> bool:
        """Whether the CPU time of a step is that of its tasks: before the first of them it may be
        slurmstepd's on v1."""
        return self.version == self.V2 or step.tasks > 0

    def set_members(self, members: Mapping[str, int]) -> None:
        """The live processes of each step whose processes were observed."""
        for name, step in self._steps.items():
            own = name == EXTERN and not self.has_extern_user
            step.is_empty = own or members.get(name) == 0

    def steps(self) -> list[StepUse]:
        return [*self._ended, *(step.use for step in self._steps.values())]

    def processes(self) -> list[int]:
        return [pid for _, pids in self.processes_by_step() for pid in pids]

    def processes_by_step(self) -> list[tuple[str, list[int]]]:
        return [(name, step.user_processes()) for name, step in self._steps.items()]

    def daemons(self) -> list[tuple[str, int]]:
        """Step and PID of each slurmstepd. Their children belong to the user."""
        daemons = {pid: name for name, step in self._steps.items() for pid in step.daemons()}
        for pid in processes_in(self.directories.get("freezer")):
            step = daemons.get(pid) or _step_in_title(pid)
            if step is not None:
                daemons[pid] = step
        return [(name, pid) for pid, name in daemons.items()]

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


def _step_in_title(pid: int) -> str | None:
    """The step of a slurmstepd, by its process title."""
    try:
        title = _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes()) if _is_daemon(pid) else None
    except OSError:
        return None
    return title[1].decode("utf-8", "replace").lower() if title else None


def _is_daemon(pid: int) -> bool:
    """Whether a process is slurmstepd: any user may name a process so."""
    try:
        name = Path(f"/proc/{pid}/comm").read_bytes().strip()
    except OSError:
        return False
    return name == DAEMON and real_uid(b"/proc", pid) == 0
