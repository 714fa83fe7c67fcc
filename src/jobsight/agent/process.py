"""One process of a job: which programs it ran one after the other, and what each used."""

from __future__ import annotations

import time
from collections.abc import Iterator

from jobsight.agent.images import UNKNOWN, Name
from jobsight.agent.live import NOTHING, InputOutput, LiveProcess, add, scheduled_of, subtract
from jobsight.agent.netlink import ExitRecord
from jobsight.agent.usage import JobUsage


class Stretch:
    """One executable in one process, from exec (or fork) to exec (or end)."""

    __slots__ = ("counted", "executed", "io", "name", "named_at", "start", "used")

    def __init__(self, name: Name | None, start: int, *, executed: bool) -> None:
        self.name = name
        self.start = start
        self.executed = executed
        #: The process stands in the count of ``name``.
        self.counted = False
        self.named_at = 0
        #: CPU time of the process at the start of the stretch; None until it can be told.
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
        "step",
        "stretches",
        "system",
        "tgid",
        "threads",
        "usage",
        "user",
        "vitals_cpu",
        "vitals_io",
        "vitals_peak",
        "vitals_user",
    )

    def __init__(self, tgid: int, usage: JobUsage, first: Stretch, step: str = "") -> None:
        self.tgid = tgid
        self.step = step
        self.usage = usage
        self.stretches = [first]
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
        self.live: LiveProcess | None = None
        self.missing_since: int | None = None
        self.threads = 1
        #: By its clock, to the nanosecond, or by a later look in whole ticks: the higher of them.
        self.vitals_cpu = 0
        self.vitals_user = 0
        self.vitals_io: InputOutput = NOTHING
        self.vitals_peak = 0

    @property
    def name(self) -> Name | None:
        return self.stretches[-1].name

    def open_live(self, proc: bytes) -> LiveProcess:
        """Its descriptors, opened at the first look; may be too late."""
        if self.live is None:
            self.live = LiveProcess(proc, self.tgid)
        return self.live

    def read_clock(self, proc: bytes) -> None:
        """What it has used to the nanosecond; a look cuts user and system time to whole ticks."""
        self.vitals_cpu = max(self.vitals_cpu, self.open_live(proc).clock())

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

    def split(self, stretch: Stretch, proc: bytes) -> None:
        """Find out what the process had used at the exec; it ran on for a moment since."""
        # Most have not met a sampling round yet; their folder can be read all the same.
        live = self.live
        looked = live.scheduled() if live else scheduled_of(b"%s/%d" % (proc, self.tgid))
        if looked is None:
            return
        since = max(0, stretch.named_at - stretch.start)
        # On a full machine it had to wait since, too; as often as before.
        ran = since * looked.ran // (looked.ran + looked.waited or 1)
        used = self.cpu + max(0, looked.ran - ran)
        stretch.used = max(used, self.vitals_cpu) - self.base_cpu
        stretch.io = subtract(self.vitals_io, self.base_io)

    def hand_over(self) -> None:
        """A daemon's child that was taken for the daemon executes the user's program."""
        self.usage.leave(self)
        self.usage = self.usage.children
        self.usage.join(self)
        self.stretches[-1].counted = False
        self.expected = True

    def book(self, ended: int, cpu: int, io: InputOutput, *, exact: bool) -> None:
        """Enter what it used into the job's books."""
        now = time.time_ns()
        ticks = self.user + self.system
        user_share = self.user / ticks if ticks else 0.5
        cpu = max(0, cpu - self.base_cpu)
        io = subtract(io, self.base_io) if self.base_io is not NOTHING else io
        for stretch, part, part_io, interpolated in _parts(self, ended, cpu, io):
            if stretch.name is None:
                stretch.name = UNKNOWN
            count(self.usage, stretch)
            self.usage.step_cpu[self.step] += part
            self.usage.book(
                stretch.name,
                now=now,
                cpu_time=part,
                user_share=user_share,
                io=part_io,
                # The high-water mark is that of the last program's memory.
                peak_memory=max(self.peak, self.vitals_peak)
                if stretch is self.stretches[-1]
                else 0,
                estimated=part if interpolated or not exact else 0,
            )
        if self.failed and self.name is not None:
            self.usage.of(self.name).failures += 1


def count(usage: JobUsage, stretch: Stretch, sign: int = 1) -> None:
    """Count the process, once, among those that ran this executable; or take it back."""
    if stretch.name is None or stretch.counted is (sign > 0):
        return
    stretch.counted = sign > 0
    usage.count(
        stretch.name, time.time_ns(), executions=sign if stretch.executed else 0, processes=sign
    )


def _parts(
    process: Process, ended: int, cpu: int, io: InputOutput
) -> Iterator[tuple[Stretch, int, InputOutput, bool]]:
    """Cut the use of a process at its execs; where no look gave the use, by the time between."""
    stretches = process.stretches
    if len(stretches) == 1:
        only = stretches[0]
        yield only, cpu, io, False
        return
    points = [stretch.used for stretch in stretches] + [cpu]
    times = [stretch.start for stretch in stretches] + [ended]
    filled = _interpolate(times, points)
    io_points = [stretch.io for stretch in stretches] + [io]
    before = NOTHING
    for index, stretch in enumerate(stretches):
        part = filled[index + 1] - filled[index]
        after = io_points[index + 1] or before
        interpolated = points[index] is None or points[index + 1] is None
        yield stretch, part, subtract(after, before), interpolated
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
