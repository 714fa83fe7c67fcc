"""CPU time by core, and the cores that a job may use.

On cgroup v1 the kernel counts CPU time by core, so the figures are exact. On v2 they are an
estimate: the job's CPU time is distributed over the cores on which its threads last ran.
"""

from __future__ import annotations

import logging
import os
from typing import Final, Unpack

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.samplers.base import JobSampler, SamplerOptions, positive_integer
from jobsight.agent.samplers.readings import CurrentCgroup
from jobsight.model import MISSING, SECOND, Coverage

logger = logging.getLogger(__name__)

#: Fields of /proc/PID/stat, counted from the one after the command name.
_USER: Final = 11
_SYSTEM: Final = 12
_PROCESSOR: Final = 36
#: The effective list comes first: on v2 ``cpuset.cpus`` is often empty.
_CPUSET_FILES: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
_MAX_CORE: Final = 65536
#: Thread id, CPU time in ticks, and the core on which it last ran.
_ThreadReading = tuple[int, int, int]


class CoreTimes(JobSampler):
    """Cumulative CPU time of the job on each of its cores, and the number of cores in use."""

    name = "jobsight.cores"

    def __init__(
        self,
        *,
        every: int = 5,
        max_reads: int = 1000,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        self._every = positive_integer(self.name, "every", every)
        self._max_reads = positive_integer(self.name, "max_reads", max_reads)
        self._core_list = CoreList()
        #: The cores of the job's cpuset; None if it has no visible cpuset.
        self.cores: tuple[int, ...] | None = None
        #: Cores in use since the previous sample (CPU seconds per second); None before the second.
        self.in_use: float | None = None
        self.exact = False
        self._times: dict[int, int] = {}
        self._cpuacct = CurrentCgroup()
        self._round = 0
        self._last: tuple[int, int] | None = None
        self._row: Row | None = None
        # For the estimate: CPU time not yet assigned to a core, and the last reading of each
        # process and thread.
        self._unassigned = 0
        self._last_cpu: int | None = None
        self._processes: dict[int, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._start = 0

    @property
    def times(self) -> dict[int, int]:
        """Nanoseconds by core, at the last reading."""
        return dict(self._times)

    def columns(self, view: JobView) -> Row:
        failed = not self._update(view)
        return {
            f"cores.{core}.time": MISSING if failed else time for core, time in self._times.items()
        }

    def document(self, view: JobView) -> Document | None:
        return (self._document() if self._update(view) else None) or None

    def final(self, view: JobView) -> Document:
        self._update(view)
        return self._document()

    def _document(self) -> Document:
        return {str(core): time / SECOND for core, time in sorted(self._times.items())}

    def _update(self, view: JobView) -> bool:
        self._round += 1
        self._update_in_use(view)
        if self.cores is None or self._round % self._every == 1:
            try:
                self.cores = self._core_list.read(view) or self.cores
            except (OSError, ValueError) as error:
                self.errors.add("cpuset", error)
        directory = view.counters.directories.get("cpuacct") if view.counters else None
        if directory is None:
            if self._round == 1:
                logger.debug("job %d: CPU time by core is estimated", view.sighting.job_id)
            return self._estimate(view)
        self.exact = True
        try:
            # 20 digits and a blank for each of up to some 3,000 cores.
            data = self._cpuacct.files(directory).read("cpuacct.usage_percpu", 65536)
            values = [int(word) for word in data.split()]
        except (OSError, ValueError) as error:
            self.errors.add("cpuacct.usage_percpu", error)
            return False
        wanted = set(self.cores) if self.cores is not None else None
        for core, value in enumerate(values):
            # A job without a cpuset may run anywhere; report the cores that it did run on.
            if core in self._times or (value if wanted is None else core in wanted):
                self._times[core] = value
        return True

    def _update_in_use(self, view: JobView) -> None:
        cpu = view.row.get("cpu.time", MISSING)
        if cpu == MISSING or view.row is self._row:
            # A document may be requested between two samples, when nothing new is known.
            return
        self._row = view.row
        # Reading thousands of processes may have taken long since the counter was read.
        now = self.node.clock() if view.row_read_at is None else view.row_read_at
        if self._last is not None:
            then, before = self._last
            if now <= then:
                return
            self.in_use = max(0, cpu - before) / (now - then)
        self._last = (now, cpu)

    def _estimate(self, view: JobView) -> bool:
        """Distribute the job's CPU time over the cores on which its processes last ran.

        The sum equals the job's counter; only its distribution over the cores is an estimate.
        """
        cpu = view.row.get("cpu.time", MISSING)
        if cpu == MISSING:
            return False
        if self._last_cpu is not None:
            self._unassigned += max(0, cpu - self._last_cpu)
        self._last_cpu = cpu
        for core in self.cores or ():
            self._times.setdefault(core, 0)
        if self._round % self._every != 1 and self._every != 1:
            return True
        recent = self._recent_use(view)
        total = sum(recent.values())
        if total and self._unassigned:
            remaining = self._unassigned
            for core, used in sorted(recent.items()):
                share = min(remaining, -(-self._unassigned * used // total))
                self._times[core] = self._times.get(core, 0) + share
                remaining -= share
            self._unassigned = 0
        return True

    def _recent_use(self, view: JobView) -> dict[int, int]:
        """CPU time since the last reading, by the core of the thread that used it."""
        members = view.usage.members
        by_core: dict[int, int] = {}
        reads = 0
        pids = list(members)
        # With too many processes, the next reading starts where this one stopped.
        start = self._start % len(pids) if pids else 0
        due: list[tuple[int, int]] = []
        for index, pid in enumerate(pids[start:] + pids[:start]):
            process = members[pid]
            if process.polled_cpu <= self._processes.get(pid, process.base_cpu):
                continue
            if reads >= self._max_reads:
                self._start = start + index
                break
            due.append((pid, process.threads))
            reads += 1 if process.threads < 2 else 1 + min(process.threads, self._max_reads)
        readings = self.node.processes.read(view.usage, self._read_threads, due)
        for (pid, _), threads in zip(due, readings, strict=True):
            if threads is None:
                continue
            process = members[pid]
            used = process.polled_cpu - self._processes.get(pid, process.base_cpu)
            self._processes[pid] = process.polled_cpu
            self._add_process(pid, used, threads, by_core)
        self._processes = {pid: cpu for pid, cpu in self._processes.items() if pid in members}
        self._threads = {key: cpu for key, cpu in self._threads.items() if key[0] in members}
        return by_core

    def _read_threads(self, process: tuple[int, int]) -> list[_ThreadReading]:
        """The threads of a process; the only one has no id. None of them if it has exited."""
        pid, threads = process
        directory = f"{self.node.proc}/{pid}"
        readings: list[_ThreadReading] = []
        try:
            if threads < 2:
                return [(0, *parse_stat(_read(f"{directory}/stat")))]
            names = os.listdir(f"{directory}/task")[: self._max_reads]
        except (OSError, ValueError, IndexError):
            return []
        for name in names:
            try:
                readings.append((int(name), *parse_stat(_read(f"{directory}/task/{name}/stat"))))
            except (OSError, ValueError, IndexError):
                continue
        return readings

    def _add_process(
        self, pid: int, used: int, threads: list[_ThreadReading], by_core: dict[int, int]
    ) -> None:
        """Split the CPU time of a process over the cores of its threads. That of one that has
        exited is split in proportion to the others."""
        if len(threads) == 1 and threads[0][0] == 0:
            core = threads[0][2]
            by_core[core] = by_core.get(core, 0) + used
            return
        ticks_by_core: dict[int, int] = {}
        for thread, ticks, core in threads:
            key = (pid, thread)
            ticks_by_core[core] = ticks_by_core.get(core, 0) + ticks - self._threads.get(key, 0)
            self._threads[key] = ticks
        total = sum(ticks_by_core.values())
        for core, ticks in ticks_by_core.items():
            by_core[core] = by_core.get(core, 0) + (used * ticks // total if total > 0 else 0)

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            if cause != "cpuset":
                return {"cores": Coverage(quality="failed", reason=f"{cause}: {text}")}
        if not self._times:
            return {}
        if self.exact:
            return {"cores": Coverage(quality="exact")}
        assigned = sum(self._times.values())
        share = assigned / (assigned + self._unassigned) if assigned else 0.0
        reason = "cgroup v2 does not count CPU time by core; estimated from the threads' last cores"
        return {"cores": Coverage(quality="estimate", cpu_share=share, reason=reason)}

    def close(self) -> None:
        self._core_list.close()
        self._cpuacct.close()


class CoreList:
    """Reads which cores the job's cgroup may use."""

    def __init__(self) -> None:
        self._cpuset = CurrentCgroup()

    def read(self, view: JobView) -> tuple[int, ...] | None:
        """The cores; None if the job has no cpuset. Raises OSError and ValueError."""
        directories = view.counters.directories if view.counters else {}
        directory = directories.get("cpuset") or directories.get("unified")
        if directory is None:
            return None
        for name in _CPUSET_FILES:
            try:
                cores = parse_cores(self._cpuset.files(directory).read(name))
            except FileNotFoundError:
                continue
            if cores:
                return cores
        return None

    def close(self) -> None:
        self._cpuset.close()


def parse_stat(data: bytes) -> tuple[int, int]:
    """The CPU time of a thread in ticks, and the core that it last ran on."""
    fields = data[data.rindex(b")") + 2 :].split()
    return int(fields[_USER]) + int(fields[_SYSTEM]), int(fields[_PROCESSOR])


def parse_cores(text: bytes) -> tuple[int, ...]:
    """Parse a CPU list of the kernel such as ``0-3,8``."""
    cores: set[int] = set()
    for part in text.strip().split(b","):
        if not part.strip():
            continue
        first, _, last = part.partition(b"-")
        low = int(first)
        high = int(last) if last else low
        if not 0 <= low <= high < _MAX_CORE:
            raise ValueError(f"{text!r} is not a list of cores")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def _read(path: str) -> bytes:
    with open(path, "rb", 0) as file:
        return file.read(1024)
