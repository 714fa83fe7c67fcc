"""The processes of a job and their resource usage by executable.

:class:`JobUsage` is the account of one job: its live processes and one row for each executable.
A :class:`Process` consists of :class:`Segment` objects, one for each executable that it ran one
after the other. When it ends, :meth:`Process.record_usage` divides its CPU time and I/O among its
segments and adds them to the rows. :meth:`JobUsage.snapshot` gives the rows at any time, with the
live processes as last polled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from jobsight.agent.probes.cgroup_files import CpuReading
from jobsight.agent.processes.executables import REPLACED, ExecutableName, FileId
from jobsight.agent.processes.netlink import ExitRecord
from jobsight.agent.processes.procfs import (
    NO_IO,
    IoCounters,
    OpenProcess,
    ProcessGone,
    add_io,
    read_sched_stat,
    subtract_io,
)
from jobsight.model import SECOND, ExecutableUse

#: Executables without a row of their own share this one.
OTHER_PROGRAMS: Final = ExecutableName(b"other programs", known=False)
#: Memory of a row without its path: the row itself, its key, and the copy that was sent last.
ROW_SIZE: Final = 1024
#: Memory of the rows of one job: some 8,000 executables with paths of usual length.
MAX_JOB_ROWS_SIZE: Final = 8 * 2**20
#: Every job has this much, whatever the others use: some 100 executables.
GUARANTEED_ROWS_SIZE: Final = 128 * 2**10
#: Files of one job whose path is kept by device and inode.
MAX_FILES: Final = 4096
#: Executables of one process that are distinguished: a process can call exec without end.
MAX_SEGMENTS: Final = 64

#: Path of an executable, and whether it is known: the key of a row that is sent.
RowKey = tuple[bytes, bool]


class RowMemory:
    """Limits the memory of the rows of all jobs: users decide how many programs they run, and how
    long the paths are."""

    limit = 24 * 2**20
    used = 0


#: The times at which live processes are seen are multiples of this: the row of a program that only
#: waits changes, and is sent, this rarely.
SEEN_INTERVAL: Final = 300 * SECOND


class JobUsage:
    """The account of one job: live processes, and what has ended by executable."""

    def __init__(self, children: JobUsage | None = None) -> None:
        self._children = children
        self.executables: dict[ExecutableName, ExecutableUse] = {}
        #: Each key of ``executables``, by an equal name: processes share the key, not the path.
        self._keys: dict[ExecutableName, ExecutableName] = {}
        self._rows_size = 0
        #: The executables that the job has shown, by device and inode.
        self.files: dict[FileId, ExecutableName] = {}
        #: Programs that are part of OTHER_PROGRAMS or of the next executable of their process,
        #: because a table was full.
        self.folded = 0
        #: The live processes by PID.
        self.members: dict[int, Process] = {}
        self.processes = 0
        self.executions = 0
        #: CPU time and I/O of all ended processes.
        self.exited_cpu = 0
        self.exited_io: IoCounters = NO_IO
        #: The part of it whose exit records arrived after those of their processes.
        self.late_cpu = 0
        #: CPU time of ended processes by step.
        self.step_cpu: Counter[str] = Counter()
        #: GPU time, and the highest GPU memory, of each step with a process on a GPU.
        self.step_gpu_time: Counter[str] = Counter()
        self.step_gpu_memory: dict[str, int] = {}
        #: Live processes by step, and the steps whose last process has just ended.
        self.step_members: Counter[str] = Counter()
        self.emptied_steps: set[str] = set()
        #: Steps of which a process has ended that was more than a part of the launcher.
        self._observed_steps: set[str] = set()
        #: The kernel's memory peak as last read. It is outdated when a process has ended since
        #: that may have raised it.
        self.memory_peak = 0
        self.peak_outdated = False
        #: Exit records, each of which rounds I/O down.
        self.rounded_records = 0
        #: Processes whose exit record was lost.
        self.records_lost = 0
        #: CPU time that the last limited snapshot left out.
        self.excess_cpu = 0
        #: Keys of all rows sent so far.
        self._sent: set[RowKey] = set()

    def __del__(self) -> None:
        RowMemory.used -= self._rows_size

    @property
    def children(self) -> JobUsage:
        """The account of child processes. Those of slurmstepd belong to the user's job."""
        return self if self._children is None else self._children

    def join(self, process: Process) -> None:
        """Add a live process."""
        self.members[process.tgid] = process
        self.step_members[process.step] += 1
        self.processes += 1

    def leave(self, process: Process) -> None:
        """Remove a process that has ended."""
        del self.members[process.tgid]
        if not process.awaits_exec:
            self._observed_steps.add(process.step)
        self.step_members[process.step] -= 1
        if self.step_members[process.step] == 0:
            self.emptied_steps.add(process.step)

    def has_observed(self, step: str) -> bool:
        """Whether a program of this step was observed. A child of the launcher that has not called
        exec is none."""
        return step in self._observed_steps or any(
            process.step == step and not process.awaits_exec for process in self.members.values()
        )

    @property
    def has_observed_any(self) -> bool:
        """Whether a program of any step was observed."""
        return bool(self._observed_steps) or any(
            not process.awaits_exec for process in self.members.values()
        )

    def process_cpu(self) -> int:
        """CPU time of all processes by their own clocks and exit records, to be paired with the
        job's counter. Late threads are left out: a counter that was read when their process had
        ended contains them already."""
        live = sum(process.polled_cpu - process.base_cpu for process in self.members.values())
        return self.exited_cpu - self.late_cpu + live

    def process_io(self) -> IoCounters:
        """I/O of all processes by their own counters and exit records."""
        live = [process.polled_io for process in self.members.values()]
        sums = [sum(column) for column in zip(self.exited_io, *live, strict=True)]
        for process in self.members.values():
            if process.base_io is not NO_IO:
                sums = [value - base for value, base in zip(sums, process.base_io, strict=True)]
        return IoCounters(*sums)

    def read_clocks(self, proc: bytes, *, multithreaded: bool = True) -> bool:
        """Read the CPU time of every live process to the nanosecond, the resolution of the
        cgroup's counter; without ``multithreaded`` only of those with one thread. Returns whether
        every process was read."""
        complete = True
        for process in self.members.values():
            if process.threads > 1 and not multithreaded:
                complete = False
                continue
            try:
                clock = (process.live or process.open_live(proc)).cpu_clock()
            except ProcessGone:
                process.has_run = True
                complete = False
                continue
            if clock != process.clock:
                # As set_clock() does: a sampling round does this for every process of the node.
                process.clock = clock
                process.has_run = True
                if clock > process.polled_cpu:
                    process.polled_cpu = clock
        return complete

    def cpu_from_records(self) -> CpuReading:
        """The sum of the rows, for a job whose counter could not be read."""
        rows = self.snapshot(polled_is_estimate=False)
        return CpuReading(
            sum(row.cpu_time for row in rows),
            sum(row.cpu_user for row in rows),
            sum(row.cpu_system for row in rows),
        )

    def key_for(self, name: ExecutableName) -> ExecutableName:
        """The key of the row of an executable, which is created. OTHER_PROGRAMS if the rows take
        too much memory."""
        key = self._keys.get(name)
        if key is None:
            size = ROW_SIZE + len(name.path)
            if not self._may_grow(size) and name != OTHER_PROGRAMS:
                self.folded += 1
                return self.key_for(OTHER_PROGRAMS)
            self._rows_size += size
            RowMemory.used += size
            self.executables[name] = ExecutableUse(path=name.path, path_known=name.known)
            self._keys[name] = key = name
        return key

    def _may_grow(self, size: int) -> bool:
        if self._rows_size + size <= GUARANTEED_ROWS_SIZE:
            return True
        return (
            self._rows_size + size <= MAX_JOB_ROWS_SIZE and RowMemory.used + size <= RowMemory.limit
        )

    def has_row(self, name: ExecutableName) -> bool:
        """Whether the job has run this executable before."""
        return name in self._keys

    def row_for(self, name: ExecutableName) -> ExecutableUse:
        return self.executables[self.key_for(name)]

    def learn(self, executable: FileId, name: ExecutableName) -> None:
        """Keep what the job has shown about a file, for processes whose link is not read."""
        key = self._keys.get(name)
        if key is not None:
            self.files.pop(executable, None)
            self.files[executable] = key
            if len(self.files) > MAX_FILES:
                del self.files[next(iter(self.files))]

    def rename(self, old: ExecutableName, new: ExecutableName) -> None:
        """Move a row to the path that was resolved later."""
        row = self.executables.pop(old, None)
        if row is None:
            return
        size = ROW_SIZE + len(self._keys.pop(old).path)
        self._rows_size -= size
        RowMemory.used -= size
        _add(self.row_for(new), row)
        if (old.path, old.known) in self._sent:
            # An empty row replaces the one that was sent under the old name.
            self.row_for(ExecutableName(old.path, old.known))

    def add(
        self,
        name: ExecutableName,
        *,
        now: int,
        cpu_time: int,
        user_share: float,
        io: IoCounters,
        peak_memory: int,
        estimated: int = 0,
    ) -> None:
        """Add what an ended process used while it ran this executable."""
        row = self.row_for(name)
        row.cpu_time += cpu_time
        self.exited_cpu += cpu_time
        user = round(cpu_time * user_share)
        row.cpu_user += user
        row.cpu_system += cpu_time - user
        row.cpu_estimated += estimated
        row.read_bytes += io.read_bytes
        row.written_bytes += io.written_bytes
        if peak_memory > row.peak_memory:
            row.peak_memory = peak_memory
        _set_seen(row, now)
        self.exited_io = add_io(self.exited_io, io)

    def count(
        self, name: ExecutableName, now: int, *, executions: int = 0, processes: int = 0
    ) -> None:
        """Add executions and processes of this executable."""
        row = self.row_for(name)
        row.executions += executions
        row.processes += processes
        _set_seen(row, now)

    def snapshot(
        self, *, polled_is_estimate: bool, limit: int | None = None
    ) -> list[ExecutableUse]:
        """The rows now: ended processes, plus the live ones as last polled.

        ``limit`` is the job's CPU counter. The rows never exceed it in sum; what they would have
        exceeded it by is in ``excess_cpu`` afterwards.
        """
        rows: dict[RowKey, ExecutableUse] = {}
        for name, use in self.executables.items():
            row = rows.get(name[:2])
            if row is None:
                row = rows[name[:2]] = msgspec.structs.replace(use)
            else:
                _add(row, use)
            if name.own_namespace and _is_used(use):
                row.own_namespace = True
        live_cpu: Counter[RowKey] = Counter()
        seen = time.time_ns() // SEEN_INTERVAL * SEEN_INTERVAL
        for process in self.members.values():
            row = rows.get(process.name[:2]) if process.name is not None else None
            if row is None:
                continue
            row.last_seen = max(row.last_seen, seen)
            segment = process.segments[-1]
            cpu = max(0, process.polled_cpu - process.base_cpu - (segment.cpu_before or 0))
            user = min(cpu, process.polled_user)
            live_cpu[(row.path, row.path_known)] += cpu
            row.cpu_time += cpu
            row.cpu_user += user
            row.cpu_system += cpu - user
            row.cpu_estimated += cpu if polled_is_estimate else 0
            io = subtract_io(process.polled_io, process.base_io)
            io = subtract_io(io, segment.io_before or NO_IO)
            row.read_bytes += max(0, io.read_bytes)
            row.written_bytes += max(0, io.written_bytes)
            row.peak_memory = max(row.peak_memory, process.polled_peak)
        self.excess_cpu = 0
        if limit is not None:
            self.excess_cpu = max(0, sum(row.cpu_time for row in rows.values()) - limit)
        if self.excess_cpu:
            _remove_cpu(rows, live_cpu, self.excess_cpu)
        # A row that is empty again (a fork that was counted, then an exec) replaces one that was
        # sent, and is left out otherwise.
        sent = {key: row for key, row in rows.items() if key in self._sent or _is_used(row)}
        self._sent |= sent.keys()
        return list(sent.values())


class Segment:
    """One executable in one process: from an exec, or its fork, to the next exec or its end."""

    __slots__ = (
        "counted",
        "cpu_before",
        "executed",
        "io_before",
        "losses",
        "name",
        "named_at",
        "start",
    )

    def __init__(self, name: ExecutableName | None, start: int, *, executed: bool) -> None:
        self.name = name
        self.start = start
        #: It began with an exec, not with a fork.
        self.executed = executed
        #: The process is included in the counts of ``name``.
        self.counted = False
        #: When the name was read, on the monotonic clock.
        self.named_at = 0
        #: How often events had been lost when the exec event arrived; None without such an event.
        self.losses: int | None = None
        #: CPU time and I/O of the process when the segment began; None if unknown.
        self.cpu_before: int | None = None
        self.io_before: IoCounters | None = None


class Process:
    """A live process of a job."""

    __slots__ = (
        "adopted",
        "awaits_exec",
        "base_cpu",
        "base_io",
        "clock",
        "exited_cpu",
        "exited_io",
        "exited_peak",
        "exited_system",
        "exited_user",
        "failed",
        "had_children",
        "has_run",
        "leader_exit",
        "live",
        "missing_since",
        "polled_cpu",
        "polled_io",
        "polled_peak",
        "polled_user",
        "segments",
        "step",
        "tgid",
        "threads",
        "usage",
    )

    def __init__(self, tgid: int, usage: JobUsage, first: Segment, step: str = "") -> None:
        self.tgid = tgid
        self.step = step
        self.usage = usage
        self.segments = [first]
        first.cpu_before = 0
        first.io_before = NO_IO
        # Sums over its exited threads, from their exit records.
        self.exited_cpu = self.exited_user = self.exited_system = self.exited_peak = 0
        self.exited_io: IoCounters = NO_IO
        # The last reading while it was alive. The CPU time is that of its clock in nanoseconds,
        # or of a later reading in whole ticks, whichever is higher.
        self.polled_cpu = self.polled_user = self.polled_peak = 0
        self.polled_io: IoCounters = NO_IO
        self.threads = 1
        #: Its CPU time in nanoseconds when its clock was last read.
        self.clock = -1
        #: Whether it has run since it was last polled. A process that has not run has the same
        #: CPU time, memory and I/O as before.
        self.has_run = True
        # What it had used before this agent started, which belongs to an earlier agent epoch.
        self.base_cpu = 0
        self.base_io: IoCounters = NO_IO
        #: A child of it has ended.
        self.had_children = False
        #: It was found alive; its fork event was not received.
        self.adopted = False
        #: It belongs to the job from its next exec on; what it uses until then is the launcher's.
        self.awaits_exec = False
        self.failed = False
        #: Exit record and time of its first thread, while other threads may still be running.
        self.leader_exit: tuple[ExitRecord, int] | None = None
        #: Its open files in /proc.
        self.live: OpenProcess | None = None
        #: Since when it is not listed in the cgroup although no exit event has arrived.
        self.missing_since: int | None = None

    @property
    def name(self) -> ExecutableName | None:
        return self.segments[-1].name

    def open_live(self, proc: bytes) -> OpenProcess:
        """Its files in /proc, opened at the first reading; raises ProcessGone."""
        if self.live is None:
            self.live = OpenProcess(proc, self.tgid)
        return self.live

    def set_clock(self, clock: int) -> None:
        """Its CPU time in nanoseconds; /proc/PID/stat has whole ticks."""
        self.clock = clock
        self.has_run = True
        if clock > self.polled_cpu:
            self.polled_cpu = clock

    def add_thread(self, record: ExitRecord) -> None:
        """Add the exit record of one of its threads."""
        self.exited_cpu += record.cpu_time
        self.exited_user += record.user_time
        self.exited_system += record.system_time
        self.exited_peak = max(self.exited_peak, record.peak_memory)
        self.exited_io = add_io(
            self.exited_io,
            IoCounters(
                record.read_characters,
                record.written_characters,
                record.read_calls,
                record.write_calls,
                record.read_bytes,
                record.written_bytes,
            ),
        )

    def add_late_thread(self, record: ExitRecord, ended: int) -> None:
        """Add the exit record of a thread to what was recorded for its ended process."""
        cpu, io = self._from_records()
        self.add_thread(record)
        cpu_after, io_after = self._from_records()
        self.usage.late_cpu += cpu_after - cpu
        # It ran the last executable, and its process has been counted.
        self.segments = self.segments[-1:]
        self.base_cpu, self.base_io, self.failed = 0, NO_IO, False
        self.record_usage(ended, cpu_after - cpu, subtract_io(io_after, io), exact=True)

    def _from_records(self) -> tuple[int, IoCounters]:
        """CPU time and I/O of its exited threads. A record rounds bytes and calls down to multiples
        of 1,024; a polled value does not."""
        io = IoCounters(*map(max, self.exited_io, self.polled_io))
        return max(0, self.exited_cpu - self.base_cpu), io

    def measure_exec(self, segment: Segment, proc: bytes) -> None:
        """Determine what the process had used when the segment began, a moment ago."""
        # Most processes have not been polled yet; their directory can be read all the same.
        live = self.live
        stat = live.sched_stat() if live else read_sched_stat(b"%s/%d" % (proc, self.tgid))
        if stat is None:
            return
        since = max(0, segment.named_at - segment.start)
        # Since the exec it has waited for a CPU as often as before.
        ran = since * stat.ran // (stat.ran + stat.waited or 1)
        used = self.exited_cpu + max(0, stat.ran - ran)
        segment.cpu_before = max(used, self.polled_cpu) - self.base_cpu
        segment.io_before = subtract_io(self.polled_io, self.base_io)

    def move_to_job(self) -> None:
        """Move a child of slurmstepd, counted as part of the daemon so far, to the user's job."""
        self.usage.leave(self)
        self.usage = self.usage.children
        self.usage.join(self)
        self.segments[-1].counted = False
        self.awaits_exec = True

    def record_usage(self, ended: int, cpu: int, io: IoCounters, *, exact: bool) -> None:
        """Add what the process used to the rows of its executables."""
        now = time.time_ns()
        ticks = self.exited_user + self.exited_system
        user_share = self.exited_user / ticks if ticks else 0.5
        cpu = max(0, cpu - self.base_cpu)
        io = subtract_io(io, self.base_io) if self.base_io is not NO_IO else io
        for segment, segment_cpu, segment_io, interpolated in self._divide(ended, cpu, io):
            if segment.name is None:
                segment.name = REPLACED
            count(self.usage, segment)
            self.usage.step_cpu[self.step] += segment_cpu
            is_last = segment is self.segments[-1]
            self.usage.add(
                segment.name,
                now=now,
                cpu_time=segment_cpu,
                user_share=user_share,
                io=segment_io,
                # The peak is that of the memory of the last executable.
                peak_memory=max(self.exited_peak, self.polled_peak) if is_last else 0,
                estimated=segment_cpu if interpolated or not exact else 0,
            )
        if self.failed and self.name is not None:
            self.usage.row_for(self.name).failures += 1

    def _divide(
        self, ended: int, cpu: int, io: IoCounters
    ) -> Iterator[tuple[Segment, int, IoCounters, bool]]:
        """Divide the usage among the segments: by the readings at each exec, and by time where
        there is none. Yields segment, CPU time, I/O, and whether it was divided by time."""
        segments = self.segments
        if len(segments) == 1:
            yield segments[0], cpu, io, False
            return
        readings = [segment.cpu_before for segment in segments] + [cpu]
        times = [segment.start for segment in segments] + [ended]
        points = _interpolate(times, readings)
        io_points = [segment.io_before for segment in segments] + [io]
        before = NO_IO
        for index, segment in enumerate(segments):
            after = io_points[index + 1] or before
            interpolated = readings[index] is None or readings[index + 1] is None
            segment_cpu = points[index + 1] - points[index]
            yield segment, segment_cpu, subtract_io(after, before), interpolated
            before = after


def count(usage: JobUsage, segment: Segment, sign: int = 1) -> None:
    """Count the process once for the executable of a segment; a sign of -1 reverts that."""
    if segment.name is None or segment.counted is (sign > 0):
        return
    segment.counted = sign > 0
    segment.name = usage.key_for(segment.name)
    usage.count(
        segment.name, time.time_ns(), executions=sign if segment.executed else 0, processes=sign
    )


def _interpolate(times: list[int], readings: list[int | None]) -> list[int]:
    """Fill in missing readings linearly in time; the first and the last are always present."""
    total = readings[-1] or 0
    points = [0] * len(readings)
    known = 0
    for index in range(1, len(readings)):
        value = readings[index]
        if value is None:
            continue
        value = min(max(value, points[known]), total)
        span = times[index] - times[known]
        for between in range(known + 1, index):
            share = (times[between] - times[known]) / span if span > 0 else 1.0
            points[between] = points[known] + round((value - points[known]) * share)
        points[index] = value
        known = index
    return points


def _remove_cpu(rows: dict[RowKey, ExecutableUse], live_cpu: Counter[RowKey], excess: int) -> None:
    """Remove CPU time from rows: that of live processes first, which was not read at the same
    time as the counter, then estimates, then that of exit records."""
    excess -= _reduce([(rows[key], cpu) for key, cpu in live_cpu.items()], excess)
    excess -= _reduce([(row, row.cpu_estimated) for row in rows.values()], excess)
    _reduce([(row, row.cpu_time) for row in rows.values()], excess)


def _reduce(shares: list[tuple[ExecutableUse, int]], excess: int) -> int:
    """Remove up to ``excess`` from rows in proportion to their shares; returns what was removed."""
    total = sum(share for _, share in shares)
    removed = left = min(excess, total)
    for row, share in shares:
        # Rounded up, so that nothing is left after the last row.
        cut = min(left, share, -(-share * removed // total)) if left else 0
        if cut:
            row.cpu_user -= cut * row.cpu_user // row.cpu_time
            row.cpu_time -= cut
            row.cpu_system = row.cpu_time - row.cpu_user
            row.cpu_estimated = min(row.cpu_estimated, row.cpu_time)
            left -= cut
    return removed


def _add(row: ExecutableUse, other: ExecutableUse) -> None:
    row.executions += other.executions
    row.processes += other.processes
    row.cpu_time += other.cpu_time
    row.cpu_user += other.cpu_user
    row.cpu_system += other.cpu_system
    row.cpu_estimated += other.cpu_estimated
    row.read_bytes += other.read_bytes
    row.written_bytes += other.written_bytes
    row.failures += other.failures
    row.peak_memory = max(row.peak_memory, other.peak_memory)
    row.gpu_time += other.gpu_time
    row.gpu_memory_peak = max(row.gpu_memory_peak, other.gpu_memory_peak)
    row.first_seen = min(row.first_seen or other.first_seen, other.first_seen)
    row.last_seen = max(row.last_seen, other.last_seen)


def _set_seen(row: ExecutableUse, now: int) -> None:
    if not row.first_seen:
        row.first_seen = now
    row.last_seen = now


def _is_used(row: ExecutableUse) -> bool:
    return bool(row.executions or row.processes or row.cpu_time or row.failures or row.gpu_time)
