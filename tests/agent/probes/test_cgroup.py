"""The total of a job whose counter went away: completed by exit records, and never twice."""

from pathlib import Path

import pytest

from jobsight.agent.probes.cgroup import CgroupProbe
from jobsight.agent.probes.cgroup_files import NO_PEAKS, CgroupGone, CpuReading, MemoryPeaks
from jobsight.agent.processes.procfs import NOTHING, TICK, InputOutput
from jobsight.model import SECOND
from tests.agent.lives import Alive, Kernel, record


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

    def clock(self) -> int:
        return self._used

    def vitals(self) -> tuple[int, int, int, int]:
        return self._used // TICK * TICK, 0, 1, 0

    def input_output(self, *_: object, **__: object) -> InputOutput:
        return NOTHING


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
