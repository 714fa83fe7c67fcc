"""Measures a job without a cgroup: the descendants of its first process.

Nothing here requires a privilege. The total CPU time is exact all the same: the kernel adds every
process that was waited for to its parent, and the launcher, as a subreaper, waits for the orphans.
The attribution to executables is polled and an estimate.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Final

from jobsight.agent.job import ProbeReport, Row
from jobsight.agent.probes.cgroup import IO_METRICS, executables_coverage
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.process import JobUsage, Process
from jobsight.agent.processes.procfs import NO_IO, IoCounters, OpenProcess, ProcessGone, add_io
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import SECOND, Coverage, ExecutableUse, JobTotals

#: The unit of ru_inblock and ru_oublock.
BLOCK: Final = 512
REASON: Final = "attributed by polling; process events require root"


class ProcessTreeProbe:
    """The descendants of one process, found through /proc/PID/task/TID/children."""

    def __init__(self, root: int, reason: str = REASON, proc: bytes = b"/proc") -> None:
        self.root = root
        self.reason = reason
        self.usage = JobUsage()
        self.tracker = ProcessTracker(ExecutableNames(proc=proc))
        self._proc = proc
        self._rusage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu = (0, 0)
        self._io: IoCounters = NO_IO
        self._io_unreadable = False
        self._used_peak = 0
        self._final_rusage: resource.struct_rusage | None = None

    def sample(self) -> Row:
        """One walk over the tree."""
        pids = self._descendants()
        resident = threads = 0
        user, system = self._waited_for()
        io = NO_IO
        for pid in pids:
            try:
                process = self._process(pid)
                live = process.live
                if live is None:
                    continue
                stat = live.read_stat()
                process.polled_cpu = stat.cpu_user + stat.cpu_system
                process.polled_user = stat.cpu_user
                process.polled_peak = max(process.polled_peak, stat.resident)
                self.tracker.detect_exec(process, self.tracker.names.by_link(pid))
                children_user, children_system = live.children_cpu()
                user += stat.cpu_user + children_user
                system += stat.cpu_system + children_system
                resident += stat.resident
                threads += stat.threads
                process_io = live.io_with_children()
                self._io_unreadable |= process_io is None
                io = add_io(io, process_io or NO_IO)
            except ProcessGone:
                self.tracker.finish_lost(pid)
        for pid in set(self.usage.members) - set(pids):
            self.tracker.finish_lost(pid)
        self._cpu = (max(self._cpu[0], user), max(self._cpu[1], system))
        self._io = IoCounters(*map(max, self._io, io))
        self._used_peak = max(self._used_peak, resident)
        row = {
            "cpu.time": sum(self._cpu),
            "cpu.user": self._cpu[0],
            "cpu.system": self._cpu[1],
            "memory.used": resident,
            "tasks.processes": len(self.usage.members),
            "tasks.threads": threads,
        }
        if not self._io_unreadable:
            row.update(zip(IO_METRICS, self._io, strict=True))
        return row

    def _descendants(self) -> list[int]:
        pids: list[int] = []
        # Orphans of the job are children of this process, which is a subreaper.
        queue = list({self.root, *self._children(os.getpid())})
        while queue:
            pid = queue.pop()
            pids.append(pid)
            queue += self._children(pid)
        return pids

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

    def _waited_for(self) -> tuple[int, int]:
        """User and system time of the children that this process has waited for since the start."""
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (
            round((now.ru_utime - self._rusage_before.ru_utime) * SECOND),
            round((now.ru_stime - self._rusage_before.ru_stime) * SECOND),
        )

    def finish(self) -> None:
        """All processes have been waited for: the kernel's sum is final."""
        self.close()
        self._final_rusage = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu = self._waited_for()

    def read_final_counters(self) -> None:
        """There are no counters that could be removed."""

    def report(self, events_lost: int) -> ProbeReport:
        totals = self.totals()
        executables = self.usage.snapshot(polled_is_estimate=True, limit=totals.cpu_time)
        return ProbeReport(totals, executables, [], self._coverage(totals.cpu_time, executables))

    def executables(self) -> list[ExecutableUse]:
        return self.usage.snapshot(polled_is_estimate=True)

    def totals(self) -> JobTotals:
        user, system = self._cpu
        io: tuple[int | None, ...] = (None,) * 6 if self._io_unreadable else self._io
        read_bytes, written_bytes = io[4], io[5]
        final, before = self._final_rusage, self._rusage_before
        if final is not None:
            read_bytes = (final.ru_inblock - before.ru_inblock) * BLOCK
            written_bytes = (final.ru_oublock - before.ru_oublock) * BLOCK
        return JobTotals(
            time=time.time_ns(),
            cpu_source="rusage" if final is not None else "process tree",
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

    def _coverage(
        self, counter: int | None, executables: list[ExecutableUse]
    ) -> dict[str, Coverage]:
        cpu = Coverage(quality="exact")
        if self._final_rusage is None:
            cpu = Coverage(quality="estimate", reason="the job is running; exact when it has ended")
        io = Coverage(quality="estimate", reason="polled; I/O after the last reading is missing")
        if self._io_unreadable:
            io = Coverage(quality="missing", reason="the I/O of the processes may not be read")
        attribution = Coverage(quality="estimate", reason=self.reason)
        return {
            "cpu": cpu,
            "memory": Coverage(
                quality="estimate",
                reason="sum of resident memory; shared pages are counted repeatedly",
            ),
            "io": io,
            "executables": executables_coverage(
                attribution, executables, counter, self.usage.excess_cpu
            ),
        }

    def close(self) -> None:
        for pid in list(self.usage.members):
            self.tracker.finish_lost(pid)
