"""CPU time by core: exact on cgroup v1, where the kernel counts it, an estimate on v2.

The cores of a job.
"""

from __future__ import annotations

import os
from typing import Final

from jobsight.agent.job import Document, JobView, Row
from jobsight.agent.probes.cgroup_files import CgroupFiles
from jobsight.agent.processes.process import Process
from jobsight.agent.samplers.base import JobSampler, number
from jobsight.agent.samplers.node import Node
from jobsight.model import MISSING, SECOND, Coverage

#: Places of user time, system time and processor behind the command in a stat file.
_USER: Final = 11
_SYSTEM: Final = 12
_PROCESSOR: Final = 36


def parse_stat(data: bytes) -> tuple[int, int]:
    """Ticks of CPU time, and the core that a thread last ran on."""
    fields = data[data.rindex(b")") + 2 :].split()
    return int(fields[_USER]) + int(fields[_SYSTEM]), int(fields[_PROCESSOR])


class Cores(JobSampler):
    """Cumulative CPU time of the job on each of its cores, and the cores in use now."""

    name = "jobsight.cores"

    def __init__(
        self,
        *,
        every: int = 5,
        max_reads: int = 1000,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        self._every = number(self.name, "every", every)
        self._max_reads = number(self.name, "max_reads", max_reads)
        self._list = CoreList()
        #: The cores of the job's cpuset; None where it has none that we can see.
        self.cores: tuple[int, ...] | None = None
        #: Cores in use since the sample before (CPU seconds per second); None until there are two.
        self.in_use: float | None = None
        self.exact = False
        self._times: dict[int, int] = {}
        self._files: CgroupFiles | None = None
        self._round = 0
        self._last: tuple[int, int] | None = None
        self._row: Row | None = None
        # For the estimate: CPU time that is not yet on a core, and what was seen of each process.
        self._pending = 0
        self._known_cpu: int | None = None
        self._processes: dict[int, int] = {}
        self._threads: dict[tuple[int, int], int] = {}
        self._turn = 0

    @property
    def times(self) -> dict[int, int]:
        """Nanoseconds by core, as last seen."""
        return dict(self._times)

    def columns(self, view: JobView) -> Row:
        failed = not self._look(view)
        return {
            f"cores.{core}.time": MISSING if failed else time for core, time in self._times.items()
        }

    def document(self, view: JobView) -> Document | None:
        return (self._document() if self._look(view) else None) or None

    def final(self, view: JobView) -> Document:
        self._look(view)
        return self._document()

    def _document(self) -> Document:
        return {str(core): time / SECOND for core, time in sorted(self._times.items())}

    def _look(self, view: JobView) -> bool:
        self._round += 1
        self._measure_use(view)
        if self.cores is None or self._round % self._every == 1:
            try:
                self.cores = self._list.read(view) or self.cores
            except (OSError, ValueError) as error:
                self.errors.note("cpuset", error)
        folder = view.counters.directories.get("cpuacct") if view.counters else None
        if folder is None:
            return self._estimate(view)
        self.exact = True
        try:
            if self._files is None or self._files.directory != folder:
                self._close_files()
                self._files = CgroupFiles(folder)
            # 20 digits and a blank for each of up to some 3,000 cores.
            values = [int(word) for word in self._files.read("cpuacct.usage_percpu", 65536).split()]
        except (OSError, ValueError) as error:
            self.errors.note("cpuacct.usage_percpu", error)
            return False
        wanted = set(self.cores) if self.cores is not None else None
        for core, value in enumerate(values):
            # A job without a cpuset may run anywhere: then the cores it did run on.
            if core in self._times or (value if wanted is None else core in wanted):
                self._times[core] = value
        return True

    def _measure_use(self, view: JobView) -> None:
        cpu = view.row.get("cpu.time", MISSING)
        if cpu == MISSING or view.row is self._row:
            # A document may be asked for between two samples, when nothing new is known.
            return
        self._row = view.row
        # Looking at thousands of processes since then may have taken long, and not always as long.
        now = self.node.clock() if view.row_read_at is None else view.row_read_at
        if self._last is not None:
            then, before = self._last
            if now <= then:
                return
            self.in_use = max(0, cpu - before) / (now - then)
        self._last = (now, cpu)

    def _estimate(self, view: JobView) -> bool:
        """Lay the CPU time of the job on the cores where its processes were last seen.

        The sum is the job's counter, exactly; only its division over the cores is a guess.
        """
        cpu = view.row.get("cpu.time", MISSING)
        if cpu == MISSING:
            return False
        if self._known_cpu is not None:
            self._pending += max(0, cpu - self._known_cpu)
        self._known_cpu = cpu
        for core in self.cores or ():
            self._times.setdefault(core, 0)
        if self._round % self._every != 1 and self._every != 1:
            return True
        seen = self._seen(view)
        total = sum(seen.values())
        if total and self._pending:
            left = self._pending
            for core, part in sorted(seen.items()):
                given = min(left, -(-self._pending * part // total))
                self._times[core] = self._times.get(core, 0) + given
                left -= given
            self._pending = 0
        return True

    def _seen(self, view: JobView) -> dict[int, int]:
        """CPU time since the last look, by the core of the thread that used it."""
        members = view.usage.members
        found: dict[int, int] = {}
        reads = 0
        pids = list(members)
        # Where there are too many, the next look goes on behind where this one ends.
        start = self._turn % len(pids) if pids else 0
        for place, pid in enumerate(pids[start:] + pids[:start]):
            process = members[pid]
            used = process.polled_cpu - self._processes.get(pid, process.base_cpu)
            if used <= 0:
                continue
            if reads >= self._max_reads:
                self._turn = start + place
                break
            self._processes[pid] = process.polled_cpu
            reads += self._add_process(process, used, found)
        self._processes = {pid: cpu for pid, cpu in self._processes.items() if pid in members}
        self._threads = {key: cpu for key, cpu in self._threads.items() if key[0] in members}
        return found

    def _add_process(self, process: Process, used: int, found: dict[int, int]) -> int:
        """Divide what one process used over the cores of its threads; returns files read."""
        folder = f"{self.node.proc}/{process.tgid}"
        try:
            if process.threads < 2:
                _, core = parse_stat(_read(f"{folder}/stat"))
                found[core] = found.get(core, 0) + used
                return 1
            threads = os.listdir(f"{folder}/task")[: self._max_reads]
        except (OSError, ValueError, IndexError):
            # It ended; its time stays with the job and goes where the others ran.
            return 1
        parts: dict[int, int] = {}
        for thread in threads:
            try:
                ticks, core = parse_stat(_read(f"{folder}/task/{thread}/stat"))
            except (OSError, ValueError, IndexError):
                continue
            key = (process.tgid, int(thread))
            parts[core] = parts.get(core, 0) + ticks - self._threads.get(key, 0)
            self._threads[key] = ticks
        total = sum(parts.values())
        for core, part in parts.items():
            found[core] = found.get(core, 0) + (used * part // total if total > 0 else 0)
        return 1 + len(threads)

    def coverage(self, view: JobView) -> dict[str, Coverage]:
        for cause, text in self.errors.causes.items():
            if cause != "cpuset":
                return {"cores": Coverage(quality="failed", reason=f"{cause}: {text}")}
        if not self._times:
            return {}
        if self.exact:
            return {"cores": Coverage(quality="exact")}
        placed = sum(self._times.values())
        share = placed / (placed + self._pending) if placed else 0.0
        reason = "this cgroup version does not count by core; from where threads were last seen"
        return {"cores": Coverage(quality="estimate", cpu_share=share, reason=reason)}

    def _close_files(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None

    def close(self) -> None:
        self._list.close()
        self._close_files()


def _read(path: str) -> bytes:
    with open(path, "rb", 0) as file:
        return file.read(1024)


#: The list of what is really given comes first: on v2 the other is often empty.
_NAMES: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
_LIMIT: Final = 65536


def parse_cores(text: bytes) -> tuple[int, ...]:
    """Read a list of the kernel such as ``0-3,8``."""
    cores: set[int] = set()
    for part in text.strip().split(b","):
        if not part.strip():
            continue
        first, _, last = part.partition(b"-")
        low = int(first)
        high = int(last) if last else low
        if not 0 <= low <= high < _LIMIT:
            raise ValueError(f"{text!r} is not a list of cores")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


class CoreList:
    """Reads which cores the job's cgroup may use."""

    def __init__(self) -> None:
        self._files: CgroupFiles | None = None

    def read(self, view: JobView) -> tuple[int, ...] | None:
        """None where the job has no cpuset; errors of the reading are the caller's."""
        if view.counters is None:
            return None
        folders = view.counters.directories
        folder = folders.get("cpuset") or folders.get("unified")
        if folder is None:
            return None
        if self._files is None or self._files.directory != folder:
            self.close()
            self._files = CgroupFiles(folder)
        for name in _NAMES:
            try:
                cores = parse_cores(self._files.read(name))
            except FileNotFoundError:
                continue
            if cores:
                return cores
        return None

    def close(self) -> None:
        if self._files is not None:
            self._files.close()
            self._files = None
