"""Measures a job without a cgroup: the tree of processes below its first one.

Here nothing needs a privilege. The total CPU time is exact all the same, because the kernel adds
every waited-for process to its parent and the launcher, as a subreaper, waits for the rest. The
split by executable rests on polling and is an estimate.
"""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING

from jobsight.agent.probes.cgroup import IO_METRICS
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.process import JobUsage, Process
from jobsight.agent.processes.procfs import NOTHING, Gone, InputOutput, OpenProcess, add
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import SECOND, Coverage, ExecutableUse, JobTotals, StepUse

if TYPE_CHECKING:
    from jobsight.agent.job import Row

BLOCK = 512
REASON = "split by polling; process events need root"


class ProcessTreeProbe:
    """The descendants of one process, found through /proc/PID/task/TID/children."""

    def __init__(self, root: int, reason: str = REASON, proc: bytes = b"/proc") -> None:
        self.root = root
        self.reason = reason
        self.usage = JobUsage()
        self.tracker = ProcessTracker(ExecutableNames(proc=proc))
        self._proc = proc
        self._before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu = (0, 0)
        self._io: InputOutput = NOTHING
        self._io_hidden = False
        self._used_peak = 0
        self._ended: resource.struct_rusage | None = None

    def sample(self) -> Row:
        """One walk over the tree."""
        pids = self._descendants()
        resident = threads = 0
        user, system = self._waited_for()
        io = NOTHING
        for pid in pids:
            try:
                process = self._process(pid)
                vitals = process.live.vitals() if process.live else None
                if vitals is None or process.live is None:
                    continue
                process.polled_cpu = vitals.cpu_user + vitals.cpu_system
                process.polled_user = vitals.cpu_user
                process.polled_peak = max(process.polled_peak, vitals.resident)
                self.tracker.look_for_exec(process)
                waited_user, waited_system = process.live.waited_for()
                user += vitals.cpu_user + waited_user
                system += vitals.cpu_system + waited_system
                resident += vitals.resident
                threads += vitals.threads
                io = add(io, self._whole_io(process.live))
            except Gone:
                self.tracker.lose(pid)
        for pid in set(self.usage.members) - set(pids):
            self.tracker.lose(pid)
        self._cpu = (max(self._cpu[0], user), max(self._cpu[1], system))
        self._io = InputOutput(*map(max, self._io, io))
        self._used_peak = max(self._used_peak, resident)
        row = {
            "cpu.time": sum(self._cpu),
            "cpu.user": self._cpu[0],
            "cpu.system": self._cpu[1],
            "memory.used": resident,
            "tasks.processes": len(self.usage.members),
            "tasks.threads": threads,
        }
        if not self._io_hidden:
            row.update(zip(IO_METRICS, self._io, strict=True))
        return row

    def _descendants(self) -> list[int]:
        found: list[int] = []
        # What its parent left behind has become ours, who are a subreaper.
        waiting = list({self.root, *self._children(os.getpid())})
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            waiting += self._children(pid)
        return found

    def _children(self, pid: int) -> list[int]:
        directory = b"%s/%d/task" % (self._proc, pid)
        children: list[int] = []
        try:
            for thread in os.listdir(directory):
                with open(b"%s/%s/children" % (directory, thread), "rb", 0) as file:
                    children += map(int, file.read().split())
        except OSError:
            return children
        return children

    def _process(self, pid: int) -> Process:
        process = self.usage.members.get(pid)
        if process is None:
            process = self.tracker.adopt(OpenProcess(self._proc, pid), self.usage, new=True)
        return process

    def _whole_io(self, live: OpenProcess) -> InputOutput:
        found = live.whole_input_output()
        if found is None:
            self._io_hidden = True
            return NOTHING
        return found

    def _waited_for(self) -> tuple[int, int]:
        """What the launcher itself has waited for since the job began."""
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (
            round((now.ru_utime - self._before.ru_utime) * SECOND),
            round((now.ru_stime - self._before.ru_stime) * SECOND),
        )

    def finish(self) -> None:
        """Everything has been waited for: the kernel's sum is final."""
        for pid in list(self.usage.members):
            self.tracker.lose(pid)
        self._ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu = self._waited_for()

    def read_final_counters(self) -> None:
        """There are no counters that could be removed."""

    def steps(self) -> list[StepUse]:
        return []

    def executables(self) -> list[ExecutableUse]:
        return self.usage.snapshot(estimated=True)

    def totals(self) -> JobTotals:
        user, system = self._cpu
        io: tuple[int | None, ...] = (None,) * 6 if self._io_hidden else self._io
        read_bytes, written_bytes = io[4], io[5]
        if self._ended is not None:
            read_bytes = (self._ended.ru_inblock - self._before.ru_inblock) * BLOCK
            written_bytes = (self._ended.ru_oublock - self._before.ru_oublock) * BLOCK
        return JobTotals(
            time=time.time_ns(),
            cpu_source="rusage" if self._ended is not None else "process tree",
            cpu_time=user + system,
            cpu_user=user,
            cpu_system=system,
            memory_used_peak=self._used_peak,
            read_characters=io[0],
            written_characters=io[1],
            read_calls=io[2],
            write_calls=io[3],
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            processes=None,
            executions=None,
        )

    def coverage(self, lost: int) -> dict[str, Coverage]:
        cpu_time = sum(self._cpu)
        booked = sum(row.cpu_time for row in self.executables())
        share = min(1.0, booked / cpu_time) if cpu_time else None
        exact = self._ended is not None
        return {
            "cpu": Coverage(
                quality="exact" if exact else "estimate",
                reason="" if exact else "the job is running; exact when it has ended",
            ),
            "memory": Coverage(
                quality="estimate", reason="sum of resident memory; shared pages count repeatedly"
            ),
            "io": Coverage(quality="missing", reason="the processes' I/O may not be read")
            if self._io_hidden
            else Coverage(quality="estimate", reason="polled; the last moments are not seen"),
            "executables": Coverage(quality="estimate", cpu_share=share, reason=self.reason),
        }

    def close(self) -> None:
        for pid in list(self.usage.members):
            self.tracker.lose(pid)
