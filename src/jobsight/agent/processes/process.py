"""One process of a job: which programs it ran one after the other, and what each used.

What the processes of one job have used so far, by executable.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from jobsight.agent.probes.cgroup_files import CpuReading
from jobsight.agent.processes.executables import UNKNOWN, ExecutableName
from jobsight.agent.processes.netlink import ExitRecord
from jobsight.agent.processes.procfs import (
    NOTHING,
    Gone,
    InputOutput,
    OpenProcess,
    add,
    scheduled_of,
    subtract,
)
from jobsight.model import ExecutableUse


class Segment:
    """One executable in one process, from exec (or fork) to exec (or end)."""

    __slots__ = ("counted", "executed", "io", "name", "named_at", "start", "used")

    def __init__(self, name: ExecutableName | None, start: int, *, executed: bool) -> None:
        self.name = name
        self.start = start
        self.executed = executed
        #: The process stands in the count of ``name``.
        self.counted = False
        self.named_at = 0
        #: CPU time of the process at the start of the segment; None until it can be told.
        self.used: int | None = None
        self.io: InputOutput | None = None


class Process:
    """A live process of a job."""

    __slots__ = (
        "adopted",
        "base_cpu",
        "base_io",
        "cpu",
        "ended",
        "expected",
        "failed",
        "had_children",
        "io",
        "live",
        "missing_since",
        "peak",
        "polled_cpu",
        "polled_io",
        "polled_peak",
        "polled_user",
        "segments",
        "step",
        "system",
        "tgid",
        "threads",
        "usage",
        "user",
    )

    def __init__(self, tgid: int, usage: JobUsage, first: Segment, step: str = "") -> None:
        self.tgid = tgid
        self.step = step
        self.usage = usage
        self.segments = [first]
        first.used = 0
        first.io = NOTHING
        # Sums over the threads that have ended.
        self.cpu = self.user = self.system = self.peak = 0
        self.io: InputOutput = NOTHING
        # What had been used before we came, and belongs to another epoch.
        self.base_cpu = 0
        self.base_io: InputOutput = NOTHING
        self.had_children = False
        #: It was met alive; its fork was not told.
        self.adopted = False
        #: It waits to become a job's command, and what it uses until then is the launcher's.
        self.expected = False
        self.failed = False
        #: The record and time of its first thread's end, where others may still be running.
        self.ended: tuple[ExitRecord, int] | None = None
        # The last look at it while alive.
        self.live: OpenProcess | None = None
        self.missing_since: int | None = None
        self.threads = 1
        #: By its clock, to the nanosecond, or by a later look in whole ticks: the higher of them.
        self.polled_cpu = 0
        self.polled_user = 0
        self.polled_io: InputOutput = NOTHING
        self.polled_peak = 0

    @property
    def name(self) -> ExecutableName | None:
        return self.segments[-1].name

    def open_live(self, proc: bytes) -> OpenProcess:
        """Its descriptors, opened at the first look; may be too late."""
        if self.live is None:
            self.live = OpenProcess(proc, self.tgid)
        return self.live

    def read_clock(self, proc: bytes) -> None:
        """What it has used to the nanosecond; a look cuts user and system time to whole ticks."""
        self.polled_cpu = max(self.polled_cpu, self.open_live(proc).clock())

    def add_thread(self, record: ExitRecord) -> None:
        """One of its threads has ended."""
        self.cpu += record.cpu_time
        self.user += record.user_time
        self.system += record.system_time
        self.peak = max(self.peak, record.peak_memory)
        self.io = add(
            self.io,
            InputOutput(
                record.read_characters,
                record.written_characters,
                record.read_calls,
                record.write_calls,
                record.read_bytes,
                record.written_bytes,
            ),
        )

    def split(self, segment: Segment, proc: bytes) -> None:
        """Find out what the process had used at the exec; it ran on for a moment since."""
        # Most have not met a sampling round yet; their directory can be read all the same.
        live = self.live
        looked = live.scheduled() if live else scheduled_of(b"%s/%d" % (proc, self.tgid))
        if looked is None:
            return
        since = max(0, segment.named_at - segment.start)
        # On a full machine it had to wait since, too; as often as before.
        ran = since * looked.ran // (looked.ran + looked.waited or 1)
        used = self.cpu + max(0, looked.ran - ran)
        segment.used = max(used, self.polled_cpu) - self.base_cpu
        segment.io = subtract(self.polled_io, self.base_io)

    def hand_over(self) -> None:
        """A daemon's child that was taken for the daemon executes the user's program."""
        self.usage.leave(self)
        self.usage = self.usage.children
        self.usage.join(self)
        self.segments[-1].counted = False
        self.expected = True

    def book(self, ended: int, cpu: int, io: InputOutput, *, exact: bool) -> None:
        """Enter what it used into the job's books."""
        now = time.time_ns()
        ticks = self.user + self.system
        user_share = self.user / ticks if ticks else 0.5
        cpu = max(0, cpu - self.base_cpu)
        io = subtract(io, self.base_io) if self.base_io is not NOTHING else io
        for segment, part, part_io, interpolated in _parts(self, ended, cpu, io):
            if segment.name is None:
                segment.name = UNKNOWN
            count(self.usage, segment)
            self.usage.step_cpu[self.step] += part
            self.usage.book(
                segment.name,
                now=now,
                cpu_time=part,
                user_share=user_share,
                io=part_io,
                # The high-water mark is that of the last program's memory.
                peak_memory=max(self.peak, self.polled_peak) if segment is self.segments[-1] else 0,
                estimated=part if interpolated or not exact else 0,
            )
        if self.failed and self.name is not None:
            self.usage.of(self.name).failures += 1


def count(usage: JobUsage, segment: Segment, sign: int = 1) -> None:
    """Count the process, once, among those that ran this executable; or take it back."""
    if segment.name is None or segment.counted is (sign > 0):
        return
    segment.counted = sign > 0
    usage.count(
        segment.name, time.time_ns(), executions=sign if segment.executed else 0, processes=sign
    )


def _parts(
    process: Process, ended: int, cpu: int, io: InputOutput
) -> Iterator[tuple[Segment, int, InputOutput, bool]]:
    """Cut the use of a process at its execs; where no look gave the use, by the time between."""
    segments = process.segments
    if len(segments) == 1:
        only = segments[0]
        yield only, cpu, io, False
        return
    points = [segment.used for segment in segments] + [cpu]
    times = [segment.start for segment in segments] + [ended]
    filled = _interpolate(times, points)
    io_points = [segment.io for segment in segments] + [io]
    before = NOTHING
    for index, segment in enumerate(segments):
        part = filled[index + 1] - filled[index]
        after = io_points[index + 1] or before
        interpolated = points[index] is None or points[index + 1] is None
        yield segment, part, subtract(after, before), interpolated
        before = after


def _interpolate(times: list[int], points: list[int | None]) -> list[int]:
    """Fill unknown points linearly in time; the first and the last are always known."""
    total = points[-1] or 0
    filled = [0] * len(points)
    known = 0
    for index in range(1, len(points)):
        value = points[index]
        if value is None:
            continue
        value = min(max(value, filled[known]), total)
        span = times[index] - times[known]
        for between in range(known + 1, index):
            share = (times[between] - times[known]) / span if span > 0 else 1.0
            filled[between] = filled[known] + round((value - filled[known]) * share)
        filled[index] = value
        known = index
    return filled


#: So many programs a job are told apart; what comes after them shares one row.
EXECUTABLES_LIMIT: Final = 10_000
OTHERS: Final = ExecutableName(b"other programs", known=False)


class JobUsage:
    """The books of one job: finished use by executable, and the sums of what has ended."""

    def __init__(self, children: JobUsage | None = None) -> None:
        #: Where children are booked: those of Slurm's daemon are the user's, not the daemon's.
        self.children = children or self
        self.executables: dict[ExecutableName, ExecutableUse] = {}
        #: The live processes by their id.
        self.members: dict[int, Process] = {}
        self.ended_io: InputOutput = NOTHING
        self.processes = 0
        self.executions = 0
        #: CPU time of all that has ended.
        self.ended_cpu = 0
        #: Live processes by step, and the steps that have just lost their last one.
        self.step_members: Counter[str] = Counter()
        self.emptied: set[str] = set()
        #: The kernel's own peak at the last reading, and whether a process has ended since that
        #: may have raised it.
        self.memory_peak = 0
        self.peak_in_doubt = False
        #: CPU time of what has ended, by step.
        self.step_cpu: Counter[str] = Counter()
        #: Ended processes, whose records round I/O down.
        self.rounded = 0
        #: Processes whose end the kernel could not tell us about.
        self.records_lost = 0
        #: Path and whether it is known of every row that was handed out.
        self._sent: set[tuple[bytes, bool]] = set()

    def join(self, process: Process) -> None:
        """A process has come to life."""
        self.members[process.tgid] = process
        self.step_members[process.step] += 1
        self.processes += 1

    def leave(self, process: Process) -> None:
        """A process has ended."""
        del self.members[process.tgid]
        self.step_members[process.step] -= 1
        if self.step_members[process.step] == 0:
            self.emptied.add(process.step)

    def cpu_seen(self) -> int:
        """What the processes have used by their own account, ended and live."""
        live = sum(process.polled_cpu - process.base_cpu for process in self.members.values())
        return self.ended_cpu + live

    def read_clocks(self, proc: bytes) -> bool:
        """Bring the account to the nanosecond, as a cgroup's counter is; gives whether every
        process could be read."""
        try:
            for process in self.members.values():
                process.read_clock(proc)
        except Gone:
            return False
        return True

    def io_seen(self) -> InputOutput:
        """The same for their I/O, less what was there before us."""
        live = [process.polled_io for process in self.members.values()]
        sums = [sum(column) for column in zip(self.ended_io, *live, strict=True)]
        for process in self.members.values():
            if process.base_io is not NOTHING:
                sums = [one - other for one, other in zip(sums, process.base_io, strict=True)]
        return InputOutput(*sums)

    def cpu_by_records(self) -> CpuReading:
        """What the books say in all, where no counter could be read."""
        rows = self.snapshot(estimated=False)
        user = sum(row.cpu_user for row in rows)
        return CpuReading(sum(row.cpu_time for row in rows), user, sum(r.cpu_system for r in rows))

    def of(self, name: ExecutableName) -> ExecutableUse:
        use = self.executables.get(name)
        if use is None and len(self.executables) >= EXECUTABLES_LIMIT:
            # A job that makes programs without end must not take the node's memory with it.
            name = OTHERS
            use = self.executables.get(name)
        if use is None:
            use = ExecutableUse(path=name.path, path_known=name.known)
            self.executables[name] = use
        return use

    def rename(self, old: ExecutableName, new: ExecutableName) -> None:
        """A look at another process told what file an unnamed one ran."""
        use = self.executables.pop(old, None)
        if use is None:
            return
        whole = self.of(new)
        _add(whole, use)
        if (old.path, old.known) in self._sent:
            # What was sent under the old name is taken back by sending it empty.
            self.of(ExecutableName(old.path, old.known))

    def book(
        self,
        name: ExecutableName,
        *,
        now: int,
        cpu_time: int,
        user_share: float,
        io: InputOutput,
        peak_memory: int,
        estimated: int = 0,
    ) -> None:
        """Add what one process used while it ran this executable."""
        use = self.of(name)
        use.cpu_time += cpu_time
        self.ended_cpu += cpu_time
        user = round(cpu_time * user_share)
        use.cpu_user += user
        use.cpu_system += cpu_time - user
        use.cpu_estimated += estimated
        use.read_bytes += io.read_bytes
        use.written_bytes += io.written_bytes
        if peak_memory > use.peak_memory:
            use.peak_memory = peak_memory
        self._seen(use, now)
        self.ended_io = add(self.ended_io, io)

    def count(
        self, name: ExecutableName, now: int, *, executions: int = 0, processes: int = 0
    ) -> None:
        """Add executions and processes of this executable."""
        use = self.of(name)
        use.executions += executions
        use.processes += processes
        self._seen(use, now)

    @staticmethod
    def _seen(use: ExecutableUse, now: int) -> None:
        if not use.first_seen:
            use.first_seen = now
        use.last_seen = now

    def snapshot(self, *, estimated: bool) -> list[ExecutableUse]:
        """What has ended plus the live processes as last seen."""
        rows: dict[tuple[bytes, bool], ExecutableUse] = {}
        for name, use in self.executables.items():
            row = rows.get(name[:2])
            if row is None:
                rows[name[:2]] = msgspec.structs.replace(use)
            else:
                _add(row, use)
        for process in self.members.values():
            row = rows.get(process.name[:2]) if process.name is not None else None
            if row is None:
                continue
            last = process.segments[-1]
            cpu = max(0, process.polled_cpu - process.base_cpu - (last.used or 0))
            user = min(cpu, process.polled_user)
            row.cpu_time += cpu
            row.cpu_user += user
            row.cpu_system += cpu - user
            row.cpu_estimated += cpu if estimated else 0
            io = subtract(subtract(process.polled_io, process.base_io), last.io or NOTHING)
            row.read_bytes += max(0, io.read_bytes)
            row.written_bytes += max(0, io.written_bytes)
            row.peak_memory = max(row.peak_memory, process.polled_peak)
        # A row that was emptied again (a fork counted, then an exec) is only sent if it was before.
        told = {key: row for key, row in rows.items() if key in self._sent or _is_any(row)}
        self._sent |= told.keys()
        return list(told.values())


def _add(row: ExecutableUse, use: ExecutableUse) -> None:
    row.executions += use.executions
    row.processes += use.processes
    row.cpu_time += use.cpu_time
    row.cpu_user += use.cpu_user
    row.cpu_system += use.cpu_system
    row.cpu_estimated += use.cpu_estimated
    row.read_bytes += use.read_bytes
    row.written_bytes += use.written_bytes
    row.failures += use.failures
    row.peak_memory = max(row.peak_memory, use.peak_memory)
    row.first_seen = min(row.first_seen or use.first_seen, use.first_seen)
    row.last_seen = max(row.last_seen, use.last_seen)


def _is_any(row: ExecutableUse) -> bool:
    return bool(row.executions or row.processes or row.cpu_time or row.failures)
