"""Made-up lives of processes: their events and exit records, as the kernel would tell them."""

from __future__ import annotations

import time
from typing import Any

from jobsight.agent.processes.executables import (
    ExecutableName,
    ExecutableNames,
    StandardPrograms,
)
from jobsight.agent.processes.netlink import EXEC, EXIT, FORK, ExitRecord, ProcessEvent
from jobsight.agent.processes.process import JobUsage
from jobsight.agent.processes.procfs import SchedStat
from jobsight.agent.processes.tracker import ProcessTracker

MILLISECOND = 1_000_000


class Links(ExecutableNames):
    """Links as a test sets them, instead of those of /proc."""

    def __init__(self) -> None:
        super().__init__(proc=b"/no/such/proc", standard=StandardPrograms(()))
        self.links: dict[int, bytes] = {}

    def by_link(self, pid: int) -> ExecutableName | None:
        path = self.links.get(pid)
        return ExecutableName(path, known=True) if path is not None else None


class Alive:
    """A live process of which nothing but the running time of its first thread can be read."""

    def __init__(self, pid: int, ran: int | None = None, waited: int = 0) -> None:
        self.pid = pid
        self.start_ticks = 0
        self.closed = False
        self._scheduled = None if ran is None else SchedStat(ran, waited)

    def parent(self) -> int:
        return 100

    def sched_stat(self) -> SchedStat | None:
        return self._scheduled

    def close(self) -> None:
        self.closed = True


class Kernel:
    """Writes events on a clock of its own; the tracker is told in drains."""

    def __init__(self) -> None:
        self.names = Links()
        self.tracker = ProcessTracker(self.names)
        self.tracker.daemon_paths |= {b"/usr/sbin/slurmstepd", b"/usr/sbin/slurmstepd-wlm"}
        #: Before the tracker's own clock: the past is what events reports.
        self.now = time.monotonic_ns() - 3600 * 1000 * MILLISECOND

    def job(self, pid: int = 100, path: bytes = b"/bin/sh") -> JobUsage:
        """A job with one process that was there before."""
        usage = JobUsage()
        self.names.links[pid] = path
        process = self.tracker.adopt(Alive(pid), usage)  # type: ignore[arg-type]
        process.segments[0].start = self.now
        return usage

    def pass_time(self, milliseconds: float = 1) -> int:
        self.now += round(milliseconds * MILLISECOND)
        return self.now

    def fork(self, parent: int, child: int, after: float = 1) -> ProcessEvent:
        return ProcessEvent(FORK, self.pass_time(after), parent, parent, child)

    def execute(self, pid: int, after: float = 1) -> ProcessEvent:
        return ProcessEvent(EXEC, self.pass_time(after), pid, pid, 0)

    def exit(
        self, pid: int, tgid: int | None = None, status: int = 0, after: float = 1
    ) -> ProcessEvent:
        return ProcessEvent(EXIT, self.pass_time(after), pid, tgid or pid, status)

    def tell(self, *items: ProcessEvent | ExitRecord) -> None:
        """One drain: the events in their order, the records in theirs."""
        self.tracker.apply(
            [item for item in items if isinstance(item, ProcessEvent)],
            [item for item in items if isinstance(item, ExitRecord)],
        )


def record(pid: int, cpu: int = 0, **fields: Any) -> ExitRecord:
    """The exit record of a thread; of a process's only one unless said otherwise."""
    values: dict[str, Any] = {
        "pid": pid,
        "tgid": pid,
        "parent": 100,
        "uid": 0,
        "last_of_group": True,
        "exit_status": 0,
        "command": b"command",
        "cpu_time": cpu,
        "user_time": cpu,
        "system_time": 0,
        "elapsed": cpu,
        "peak_memory": 0,
        "read_characters": 0,
        "written_characters": 0,
        "read_calls": 0,
        "write_calls": 0,
        "read_bytes": 0,
        "written_bytes": 0,
        "executable": None,
    }
    return ExitRecord(**(values | fields))


def figures(usage: JobUsage) -> dict[bytes, tuple[int, int, int]]:
    """Executions, processes and CPU time by path."""
    return {
        row.path: (row.executions, row.processes, row.cpu_time)
        for row in usage.snapshot(polled_is_estimate=False)
    }
