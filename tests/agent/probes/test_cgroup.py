"""A job with a cgroup: its counter completed by exit records, and never exceeded by them."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobsight.agent.job import FollowedJob
from jobsight.agent.probes.cgroup import MANY_PROCESSES, CgroupProbe
from jobsight.agent.probes.cgroup_files import (
    NO_PEAKS,
    CgroupGone,
    CpuReading,
    MemoryPeaks,
    MemoryReading,
)
from jobsight.agent.processes.executables import ExecutableName, ExecutableNames
from jobsight.agent.processes.process import JobUsage
from jobsight.agent.processes.procfs import NO_IO, TICK, IoCounters
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import SECOND, Coverage, JobPart, Sighting
from tests.agent.lives import Alive, Kernel, record
from tests.waiting import wait_until


class Counter:
    """A cgroup of which only the CPU counter can be read, until it is removed."""

    version = "cgroup v1"

    def __init__(self) -> None:
        self.used: float | None = 0.0
        self.pids: list[int] = []
        self.peaks = NO_PEAKS

    def cpu(self) -> CpuReading:
        if self.used is None:
            raise CgroupGone
        time = round(self.used * SECOND)
        return CpuReading(time, time, 0)

    def memory(self) -> None:
        return None

    def memory_peaks(self) -> MemoryPeaks:
        return self.peaks

    def processes(self) -> list[int]:
        return self.pids

    def close(self) -> None:
        pass


class Readable(Alive):
    """A live process that has used so much by its own account."""

    def __init__(self, pid: int, seconds: float) -> None:
        super().__init__(pid)
        self._used = round(seconds * SECOND)

    def cpu_clock(self) -> int:
        return self._used

    def read_stat(self) -> tuple[int, int, int, int]:
        return self._used // TICK * TICK, 0, 1, 0

    def own_io(self, *_: object, **__: object) -> IoCounters:
        return NO_IO


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def probe(kernel: Kernel, counter: Counter, tmp_path: Path) -> CgroupProbe:
    """A job with one process, whose files in /proc are gone already."""
    made = CgroupProbe(counter, kernel.tracker, events=True, proc=bytes(tmp_path))  # type: ignore[arg-type]
    kernel.names.links[100] = b"/bin/sh"
    kernel.tracker.adopt(Alive(100), made.usage)  # type: ignore[arg-type]
    return made


def total(probe: CgroupProbe) -> float:
    probe.close()
    used = probe.totals().cpu_time
    assert used is not None
    return used / SECOND


def ended(kernel: Kernel, seconds: float) -> None:
    kernel.tell(kernel.exit(100), record(100, round(seconds * SECOND)))


@pytest.mark.parametrize("read", [1.5, 1.0])
def test_a_process_that_ends_after_the_last_reading_counts_once(
    kernel: Kernel, counter: Counter, probe: CgroupProbe, read: float
) -> None:
    """Where the counter had all of it, the process could not be read any more and its record was on
    its way; where it had a part, so had the process."""
    live = Readable(100, read) if read < 1.5 else None
    probe.usage.members[100].live = live  # type: ignore[assignment]
    counter.used = read
    probe.sample()
    ended(kernel, 1.5)
    counter.used = None
    assert total(probe) == 1.5


def test_nothing_counts_twice_because_a_look_is_cut_to_ticks(
    kernel: Kernel, counter: Counter, probe: CgroupProbe
) -> None:
    probe.usage.members[100].live = Readable(100, 1.0179)  # type: ignore[assignment]
    counter.used = 1.0179
    probe.sample()
    ended(kernel, 1.0479)
    counter.used = None
    assert total(probe) == pytest.approx(1.0479, abs=1e-9)


def test_a_record_that_comes_with_the_round_is_in_both_accounts(
    kernel: Kernel, counter: Counter, probe: CgroupProbe
) -> None:
    told = []

    def catch_up() -> None:
        if not told:
            told.append(True)
            ended(kernel, 1.4)

    kernel.tracker.catch_up = catch_up
    # The counter is the truth where the record is short of it.
    counter.used = 1.5
    probe.sample()
    counter.used = None
    assert total(probe) == 1.5


def test_a_first_reading_before_anybody_is_known_counts_nothing_twice(
    kernel: Kernel, counter: Counter, tmp_path: Path
) -> None:
    probe = CgroupProbe(counter, kernel.tracker, events=True, proc=bytes(tmp_path))  # type: ignore[arg-type]
    counter.used = 0.4
    probe.read_counters()
    kernel.names.links[100] = b"/bin/sh"
    kernel.tracker.adopt(Alive(100), probe.usage)  # type: ignore[arg-type]
    ended(kernel, 0.5)
    counter.used = None
    assert total(probe) == 0.5


def test_a_folder_that_goes_in_the_middle_of_a_round_takes_no_peak_with_it(
    counter: Counter, probe: CgroupProbe
) -> None:
    """CPU time could still be read, then the memory files were gone."""
    probe.usage.members[100].live = Readable(100, 1.0)  # type: ignore[assignment]
    counter.peaks = MemoryPeaks(peak=7 << 20, limit=64 << 20, swap_peak=None, oom_kills=1)
    probe.sample()
    counter.peaks = NO_PEAKS
    probe.sample()
    probe.close()
    found = probe.totals()
    assert (found.memory_peak, found.memory_limit, found.oom_kills) == (7 << 20, 64 << 20, 1)


def part_of(probe: CgroupProbe) -> JobPart:
    return FollowedJob(Sighting("c", 1, "n1", "boot", 0), probe, "epoch").part(0)


def cpu_by_path(part: JobPart) -> dict[bytes, float]:
    return {row.path: row.cpu_time / SECOND for row in part.executables}


def check_consistent(part: JobPart) -> None:
    """No row is negative, and together they do not exceed the counter."""
    assert part.totals is not None
    assert sum(row.cpu_time for row in part.executables) <= (part.totals.cpu_time or 0)
    for row in part.executables:
        assert row.cpu_time == row.cpu_user + row.cpu_system
        assert min(row.cpu_user, row.cpu_system, row.cpu_estimated) >= 0
        assert row.cpu_estimated <= row.cpu_time


def test_a_record_that_arrives_after_the_counter_was_read_is_in_the_next_part(
    kernel: Kernel, counter: Counter, probe: CgroupProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process runs on after the counter was read, and its exit record is queued at once."""
    readings: list[CpuReading] = []

    def read() -> CpuReading:
        readings.append(CpuReading(SECOND, SECOND, 0))
        return readings[-1]

    def catch_up() -> None:
        if readings and probe.usage.members:
            ended(kernel, 1.5)

    monkeypatch.setattr(counter, "cpu", read)
    kernel.tracker.catch_up = catch_up
    running = part_of(probe)
    assert cpu_by_path(running) == {b"/bin/sh": 0.0}
    check_consistent(running)
    monkeypatch.undo()
    counter.used = 1.5
    after = part_of(probe)
    assert cpu_by_path(after) == {b"/bin/sh": 1.5}
    assert after.coverage["executables"].quality == "exact"


def test_a_live_process_that_exceeds_the_counter_is_reduced_and_marked(
    kernel: Kernel, counter: Counter, probe: CgroupProbe
) -> None:
    kernel.names.links[7] = b"/bin/ended"
    kernel.tell(kernel.fork(100, 7), kernel.execute(7))
    kernel.tell(kernel.exit(7), record(7, round(0.6 * SECOND)))
    probe.usage.members[100].live = Readable(100, 1.5)  # type: ignore[assignment]
    counter.used = 1.0
    probe.sample()
    part = part_of(probe)
    # The exit record stays as it is; only the polled share is reduced.
    assert cpu_by_path(part) == {b"/bin/sh": 0.4, b"/bin/ended": 0.6}
    check_consistent(part)
    coverage = part.coverage["executables"]
    assert (coverage.quality, coverage.cpu_share) == ("estimate", 1.0)
    assert "exceeded the job's counter by 110.0%" in coverage.reason
    assert part.coverage["cpu"].quality == "exact"


def test_an_interpolated_share_is_reduced_before_exact_ones(
    kernel: Kernel, counter: Counter, probe: CgroupProbe
) -> None:
    probe.usage.add(
        ExecutableName(b"/exact", True),
        now=1,
        cpu_time=SECOND,
        user_share=0.3,
        io=NO_IO,
        peak_memory=0,
    )
    probe.usage.add(
        ExecutableName(b"/interpolated", True),
        now=1,
        cpu_time=SECOND,
        user_share=0.7,
        io=NO_IO,
        peak_memory=0,
        estimated=SECOND // 2,
    )
    counter.used = 1.75
    part = part_of(probe)
    assert cpu_by_path(part) == {b"/bin/sh": 0.0, b"/exact": 1.0, b"/interpolated": 0.75}
    check_consistent(part)
    # Even exact records are reduced to the counter, which is the truth.
    counter.used = 0.3
    part = part_of(probe)
    assert sum(cpu_by_path(part).values()) == pytest.approx(0.3)
    check_consistent(part)
    assert part.coverage["executables"].quality == "estimate"


def test_an_excess_by_rounding_is_removed_and_the_figures_stay_exact(
    kernel: Kernel, counter: Counter, probe: CgroupProbe
) -> None:
    counter.used = 1.0
    ended(kernel, 1.0005)
    part = part_of(probe)
    check_consistent(part)
    assert cpu_by_path(part) == {b"/bin/sh": 1.0}
    assert part.coverage["executables"] == Coverage(quality="exact", cpu_share=1.0)


@given(
    some.lists(some.tuples(some.integers(0, 10**12), some.integers(0, 10**12)), max_size=20),
    some.integers(0, 10**13),
)
def test_rows_never_exceed_the_limit(rows: list[tuple[int, int]], limit: int) -> None:
    usage = JobUsage()
    for number, (cpu, estimated) in enumerate(rows):
        usage.add(
            ExecutableName(b"/%d" % number, True),
            now=1,
            cpu_time=cpu,
            user_share=0.37,
            io=NO_IO,
            peak_memory=0,
            estimated=min(cpu, estimated),
        )
    total = sum(cpu for cpu, _ in rows)
    limited = usage.snapshot(polled_is_estimate=False, limit=limit)
    assert sum(row.cpu_time for row in limited) == min(total, limit)
    assert usage.excess_cpu == max(0, total - limit)
    for row in limited:
        assert row.cpu_time == row.cpu_user + row.cpu_system
        assert min(row.cpu_user, row.cpu_system, row.cpu_estimated) >= 0
        assert row.cpu_estimated <= row.cpu_time
    # The account itself is unchanged.
    whole = usage.snapshot(polled_is_estimate=False)
    assert sum(row.cpu_time for row in whole) == total


# Fault 23: on cgroup v1 the split by ticks decreased at times, and the plot of the system time was
# broken into dashes.
@given(
    some.lists(
        some.tuples(some.integers(0, 10**9), some.integers(0, 3), some.integers(0, 3)), max_size=30
    )
)
def test_user_and_system_time_never_decrease(steps: list[tuple[int, int, int]]) -> None:
    total = user = system = 0
    last = None
    for more, user_ticks, system_ticks in steps:
        total, user, system = total + more, user + user_ticks, system + system_ticks
        share = user / (user + system) if user + system else 0.5
        reading = CpuReading(total, round(total * share), total - round(total * share))
        if last is not None:
            reading = reading.after(last)
            assert reading.user >= last.user
            assert reading.system >= last.system
        assert reading.time == total == reading.user + reading.system
        last = reading
    assert last is None or CpuReading(0, 0, 0).after(last) == CpuReading(0, 0, 0)


def test_the_series_of_system_time_never_decreases(
    counter: Counter, probe: CgroupProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe.usage.members.clear()
    readings = iter([CpuReading(1000, 500, 500), CpuReading(1100, 734, 366)])
    monkeypatch.setattr(counter, "cpu", lambda: next(readings))
    rows = [probe.sample() for _ in range(2)]
    assert [row["cpu.system"] for row in rows] == [500, 500]
    assert [row["cpu.user"] for row in rows] == [500, 600]


# Fault 1: a process whose fork was not observed had unobserved children.
@pytest.mark.parametrize("observed", [True, False])
def test_only_a_process_whose_fork_was_observed_is_fully_observed(
    kernel: Kernel, counter: Counter, observed: bool
) -> None:
    made = CgroupProbe(counter, kernel.tracker, events=True)  # type: ignore[arg-type]
    made.count_from_start()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            counter.pids = [process.pid]
            if observed:
                kernel.tell(kernel.fork(os.getpid(), process.pid))
            made.sample()
        finally:
            process.kill()
    assert len(made.gaps) == (not observed)
    assert made.report(0).coverage["executables"].quality == ("exact" if observed else "estimate")


def test_gaps_are_joined_and_written_with_their_times() -> None:
    made = CgroupProbe(Counter(), Kernel().tracker, events=True)  # type: ignore[arg-type]
    made.birth = 0
    made.add_gap(0, 3600 * SECOND)
    made.add_gap(3600 * SECOND, 3700 * SECOND)
    made.add_gap(7200 * SECOND, 7210 * SECOND)
    coverage = made.report(0).coverage["executables"]
    assert coverage.reason == (
        "processes before 01:01:40 and from 02:00:00 to 02:00:10 UTC were not observed"
    )


class Memory(Counter):
    """A cgroup with memory counters."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = MemoryReading(0, 0, 0, 0, 0)

    def memory(self) -> MemoryReading:  # type: ignore[override]
        return self.reading

    def set(self, used: int, cache: int, peak: int, kills: int = 0) -> None:
        self.reading = MemoryReading((used + cache) * MIB, used * MIB, cache * MIB, 0, 0)
        self.peaks = MemoryPeaks(peak * MIB, 1000 * MIB, None, kills)


MIB = 2**20


@pytest.mark.parametrize(
    ("readings", "used", "quality"),
    [
        # The samples saw the peak, or all but some pages of it.
        ([(100, 0, 100)], 100, "exact"),
        ([(100, 300, 401), (50, 300, 401)], 101, "exact"),
        # The kernel saw more.
        ([(3, 2, 5), (3, 2, 805)], 803, "estimate"),
        # Page cache that was dropped since the previous sample was not in use.
        ([(10, 500, 600), (10, 0, 700)], 200, "estimate"),
        # Where a process was killed, the kernel's peak is the figure.
        ([(10, 15, 100, 1)], 100, "estimate"),
    ],
)
def test_a_peak_of_the_kernel_that_contradicts_the_samples_is_the_figure(
    readings: list[tuple[int, ...]], used: int, quality: str
) -> None:
    # Fault 1: 2.9 MiB of 1 GiB were exact next to a kernel's peak of 805 MiB.
    memory = Memory()
    made = CgroupProbe(memory, Kernel().tracker, events=True)  # type: ignore[arg-type]
    for reading in readings:
        memory.set(*reading)
        made.sample()
    report = made.report(0)
    assert report.totals.memory_used_peak == used * MIB
    assert report.coverage["memory"].quality == quality


def test_page_cache_that_grows_between_two_reads_is_not_used_memory() -> None:
    """A job that read a file was said to use 150 MiB: all of it was page cache."""

    class Growing(Memory):
        def memory_peaks(self) -> MemoryPeaks:
            self.set(8, 142, 150)
            return super().memory_peaks()

    memory = Growing()
    memory.set(8, 1, 9)
    made = CgroupProbe(memory, Kernel().tracker, events=True)  # type: ignore[arg-type]
    made.sample()
    report = made.report(0)
    assert report.totals.memory_used_peak == 8 * MIB
    assert report.totals.memory_peak == 150 * MIB
    assert report.coverage["memory"].quality == "exact"


# Fault 2: a zero that was read before the last process ended is no count of OOM kills.
@pytest.mark.parametrize(("kills", "late", "told"), [(0, False, 0), (0, True, None), (1, True, 1)])
def test_a_late_reading_of_the_oom_kills_is_missing(
    kernel: Kernel, tmp_path: Path, kills: int, late: bool, told: int | None
) -> None:
    memory = Memory()
    made = CgroupProbe(memory, kernel.tracker, events=True, proc=bytes(tmp_path))  # type: ignore[arg-type]
    kernel.tracker.adopt(Readable(100, 0.0), made.usage)  # type: ignore[arg-type]
    memory.set(10, 0, 10, kills)
    made.sample()
    if late:
        memory.used, memory.peaks = None, NO_PEAKS
    ended(kernel, 1.0)
    made.read_final_counters()
    made.close()
    report = made.report(0)
    assert report.totals.oom_kills == told
    if late and not kills:
        assert report.coverage["memory"].quality == "estimate"


# Fault 1: executables summed to 42.8 % more than the counter; the counter was wrong.
def test_a_counter_completed_by_records_is_not_below_them_and_no_longer_exact(
    kernel: Kernel, probe: CgroupProbe, counter: Counter
) -> None:
    counter.used = 0.0
    probe.read_counters()
    # The clocks of the reference were read later than its counter.
    probe._reference = (0, round(0.5 * SECOND))
    counter.used = None
    ended(kernel, 1.5)
    probe.close()
    report = probe.report(0)
    assert report.totals.cpu_time == sum(use.cpu_time for use in report.executables)
    assert report.totals.cpu_time == round(1.5 * SECOND)
    assert report.coverage["cpu"].quality == "estimate"
    assert "exit records" in report.coverage["cpu"].reason


def test_a_counter_read_after_the_last_process_has_ended_is_not_completed(
    kernel: Kernel, probe: CgroupProbe, counter: Counter
) -> None:
    """The record of a process has what it used before it moved into the cgroup, too."""
    ended(kernel, 1.5)
    counter.used = 1.2
    probe.sample()
    counter.used = None
    assert total(probe) == 1.2


def test_only_processes_that_have_run_are_read_again_and_their_io_is_complete(
    counter: Counter,
) -> None:
    """One process of many does a little I/O between two rounds, then sleeps for good."""
    probe = CgroupProbe(counter, ProcessTracker(ExecutableNames()), events=True)
    cats = [
        subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(MANY_PROCESSES + 1)
    ]
    try:
        counter.pids = [cat.pid for cat in cats]

        def asleep() -> bool:
            probe.sample()
            return not any(process.has_run for process in probe.usage.members.values())

        wait_until(asleep)
        assert len(probe.usage.members) == len(cats)
        before = probe.sample()["io.written_characters"]
        one = cats[7]
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdin.write(b"x" * 1000)
        one.stdin.flush()
        assert one.stdout.read(1000)
        probe.sample()
        # The I/O of many processes is read in every other round.
        assert probe.sample()["io.written_characters"] == before + 1000
        wait_until(asleep)
        assert probe.sample()["io.written_characters"] == before + 1000
    finally:
        for cat in cats:
            cat.kill()
            cat.communicate()
