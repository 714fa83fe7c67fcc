"""Measures a job with a cgroup: totals from its counters, attribution from its processes.

:class:`CgroupProbe` measures any job with a cgroup, such as one of ``jobsight run``;
:class:`SlurmProbe` adds the steps of a Slurm job and keeps slurmstepd apart. One sampling round is
:meth:`CgroupProbe.sample`; what is sent is :meth:`CgroupProbe.report`.

A cgroup may be removed within milliseconds of the end of a job. The counters are therefore read
whenever a step has lost its last process, and completed by exit records that arrive later. For
that, ``_reference`` holds a pair of figures that belong together: the counter, and the CPU time of
the processes by their own clocks and exit records.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from jobsight.agent.job import Counters, ProbeReport, Row
from jobsight.agent.probes.cgroup_files import (
    NO_PEAKS,
    CgroupGone,
    CpuReading,
    MemoryPeaks,
    MemoryReading,
)
from jobsight.agent.probes.slurm_cgroup import EXTERN, SlurmCounters
from jobsight.agent.processes.executables import ExecutableName
from jobsight.agent.processes.process import JobUsage, Process
from jobsight.agent.processes.procfs import (
    NO_IO,
    TICK,
    IoCounters,
    OpenProcess,
    ProcessGone,
    ProcessStat,
    parent_of,
)
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import MISSING, Coverage, ExecutableUse, JobTotals, StepUse

#: A process that has left the cgroup without an exit event is recorded as lost after this.
EXIT_EVENT_TIMEOUT: Final = 1_000_000_000
#: With events, the cgroup is listed only in every n-th round, for processes that were moved in.
ROUNDS_PER_LISTING: Final = 20
#: It is also listed when the counter has grown by this share and time more than the known processes
#: have used.
UNKNOWN_SHARE: Final = 0.25
UNKNOWN_TIME: Final = 100_000_000
#: The attribution is not exact if less than this share of the CPU time is attributed, and this much
#: is not. Exit records of programs that do nothing contain some 85 %.
MIN_ATTRIBUTED_SHARE: Final = 0.7
MIN_UNATTRIBUTED: Final = 1_000_000_000
#: From this number on, the I/O of each process and the clocks of those with several threads are
#: read in every other round: an exit record completes an old reading as well as a recent one.
MANY_PROCESSES: Final = 64
#: Processes may exceed the counter by this share, because exit records are rounded. The CPU time
#: stays exact if no larger share of it comes from exit records.
CPU_TOLERANCE: Final = 0.001
#: The kernel's memory peak confirms the samples if it is higher by at most this share or size.
MEMORY_TOLERANCE: Final = 0.02
MEMORY_TOLERANCE_BYTES: Final = 4 * 2**20
#: Gaps in the observation that are closer to each other are reported as one.
MIN_OBSERVED: Final = 1_000_000_000

IO_METRICS: Final = tuple(f"io.{name}" for name in IoCounters._fields)
_MEMORY_FIELDS: Final = ("used", "current", "anonymous", "file", "shared", "swap")


class CgroupProbe:
    """One job with a cgroup. With process events the attribution is exact, else it is polled."""

    def __init__(
        self,
        cgroup: Counters,
        tracker: ProcessTracker,
        *,
        events: bool,
        reason: str = "",
        proc: bytes = b"/proc",
    ) -> None:
        self.cgroup = cgroup
        self.tracker = tracker
        self.usage = JobUsage()
        self.events = events
        #: Why there are no events.
        self.reason = reason
        #: When the CPU counter was last read, on the monotonic clock.
        self.read_at: int | None = None
        self.errors: dict[str, str] = {}
        self._proc = proc
        #: Processes that started before this belong to an earlier agent epoch.
        self._epoch_ticks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK
        self._round = 0
        self._losses = tracker.losses
        self._cpu: CpuReading | None = None
        self._reference = (0, 0)
        #: The same pair when the cgroup was last listed.
        self._listed_account = (0, 0)
        self._counter_gone = self._closed = False
        #: Processes so far, and those alive, when CPU time and memory peaks were last read.
        self._cpu_read_with = self._peaks_read_with = (0, 0)
        self._peaks = NO_PEAKS
        self._used_peak: int | None = None
        #: The kernel's peak less page cache, and the page cache at the previous reading.
        self._marked_peak: int | None = None
        self._page_cache = 0
        self._swap_peak: int | None = None
        #: When the job was created, in Unix time.
        self.birth = time.time_ns()
        #: Intervals of Unix time in which processes of the job may have run unobserved.
        self.gaps: list[tuple[int, int]] = []
        self._listed_at = 0
        self._io, self._io_unreadable = NO_IO, False
        #: A process had left the cgroup at the last listing, and its exit event is missing.
        self._members_missing = False

    def sample(self) -> Row:
        """One sampling round: the counters of the job and each of its processes."""
        row: Row = {}
        self._round += 1
        self._read_counters(row)
        # Processes that ended before the counter was read must be in the account before it is
        # paired with the counter, or what arrives later is counted twice.
        self.tracker.catch_up()
        due = not self.events or self._members_missing or self._round % ROUNDS_PER_LISTING == 1
        if due:
            self._adopt_untracked()
        # Without the counter there is nothing that the clocks belong to.
        if self.events and not self._counter_gone:
            few = len(self.usage.members) < MANY_PROCESSES
            complete = self.usage.read_clocks(self._proc, multithreaded=few or self._round % 2 == 1)
            if complete and self._cpu is not None:
                account = (self._cpu.time, self.usage.process_cpu())
                if due:
                    self._listed_account = account
                if not self._find_moved_in(account):
                    self._reference = account
        self._poll_processes(row)
        return row

    def _find_moved_in(self, account: tuple[int, int]) -> bool:
        """List the cgroup if others than the known processes have used CPU time since it was last
        listed. Returns whether there are: their clocks are later than the counter."""
        used, known = map(operator.sub, account, self._listed_account)
        if used - known <= max(UNKNOWN_TIME, used * UNKNOWN_SHARE):
            return False
        before = self.usage.processes
        self._adopt_untracked()
        self._listed_account = (account[0], self.usage.process_cpu())
        return self.usage.processes != before

    def add_gap(self, since: int, until: int) -> None:
        """Processes that started and ended in this interval were not observed."""
        overlapping = [
            gap
            for gap in self.gaps
            if since <= gap[1] + MIN_OBSERVED and gap[0] <= until + MIN_OBSERVED
        ]
        merged = [(since, until), *overlapping]
        self.gaps = sorted(
            [gap for gap in self.gaps if gap not in overlapping]
            + [(min(gap[0] for gap in merged), max(gap[1] for gap in merged))]
        )

    def count_from_start(self) -> None:
        """No agent has measured the job before: all that its processes have used is counted."""
        self._epoch_ticks = 0

    def read_final_counters(self) -> None:
        """Called after events were applied. Reads the counters if a step has lost its last
        process or a large process has ended, because Slurm removes them soon after."""
        if self.events and self.tracker.losses != self._losses:
            self._losses = self.tracker.losses
            self._adopt_untracked()
        if not self.usage.emptied_steps and not self.usage.peak_outdated:
            return
        self.usage.emptied_steps.clear()
        self.usage.peak_outdated = False
        self.read_counters()

    def read_counters(self, *, all_known: bool = True) -> None:
        """Read the counters outside of a round, if they still exist. ``all_known`` is false while
        there may be processes that have not been found yet."""
        try:
            self._read_counters({})
        except CgroupGone:
            return
        if self._cpu is None or self._counter_gone or not all_known:
            return
        self.tracker.catch_up()
        if self.usage.processes and not self.usage.members:
            # No process is alive whose own clock would be behind the counter.
            self._reference = (self._cpu.time, self.usage.process_cpu())

    def _read_counters(self, row: Row) -> None:
        """Read CPU time and memory; raises CgroupGone if either is gone."""
        gone: CgroupGone | None = None
        cpu = memory = None
        try:
            cpu = self.cgroup.cpu()
        except CgroupGone as error:
            gone = error
        except OSError as error:
            self._record_error("cpu", error)
        else:
            # The counter is cumulative and includes what was missed before.
            self.errors.pop("cpu", None)
            if cpu is not None and self._cpu is not None:
                cpu = cpu.after(self._cpu)
            self.read_at = time.monotonic_ns()
        # A v1 hierarchy that the job has left gives no reading instead of CgroupGone.
        self._counter_gone = gone is not None or (cpu is None and self._cpu is not None)
        if cpu is not None:
            self._cpu, self._cpu_read_with = cpu, self._process_counts()
        row["cpu.time"], row["cpu.user"], row["cpu.system"] = cpu or (MISSING, MISSING, MISSING)
        try:
            # The peaks are read last: they are not lower than any sample.
            memory = self.cgroup.memory()
            self._add_memory(memory, self.cgroup.memory_peaks())
        except CgroupGone as error:
            gone = error
        except OSError as error:
            self._record_error("memory", error)
        for name in _MEMORY_FIELDS:
            row[f"memory.{name}"] = getattr(memory, name) if memory else MISSING
        if gone is not None:
            raise gone

    def _process_counts(self) -> tuple[int, int]:
        return self.usage.processes, len(self.usage.members)

    def _add_memory(self, memory: MemoryReading | None, peaks: MemoryPeaks) -> None:
        cache = self._page_cache
        readings = [memory]
        if memory is not None and (peaks.peak or 0) > max(memory.current, self._peaks.peak or 0):
            # Memory has grown since the reading, and the page cache of the peak with it.
            readings.append(self.cgroup.memory())
        for reading in filter(None, readings):
            self._used_peak = max(self._used_peak or 0, reading.used)
            self._swap_peak = max(self._swap_peak or 0, reading.swap)
            cache, self._page_cache = max(cache, reading.file), reading.file
        if peaks == NO_PEAKS:
            # A cgroup that has just been removed has no peaks; the last ones are kept.
            return
        self._peaks_read_with = self._process_counts()
        if peaks.peak is not None and peaks.peak > (self._peaks.peak or 0):
            # The page cache at that moment is not known: that of one of the readings or less.
            self._marked_peak = max(self._marked_peak or 0, peaks.peak - cache)
        self._peaks = peaks
        self.usage.memory_peak = peaks.peak or 0

    def _record_error(self, group: str, error: OSError) -> None:
        self.errors[group] = f"{error.strerror}: {error.filename}" if error.filename else str(error)

    def _poll_processes(self, row: Row) -> None:
        odd_round = self._round % 2 == 1
        members = list(self.usage.members.values())
        turn = self._round % 2 if len(members) >= MANY_PROCESSES else 2
        due: list[tuple[Process, bool]] = []
        threads = 0
        for index, process in enumerate(members):
            # The kernel sums over the threads at each read, so multithreaded processes are read
            # in every other round.
            has_run = process.has_run or self._counter_gone
            if has_run and (process.threads < 2 or odd_round):
                due.append((process, index % 2 != turn or process.threads > 1))
            else:
                threads += process.threads
        threads += self._poll(due)
        row["tasks.processes"], row["tasks.threads"] = len(self.usage.members), threads
        self._io = self.usage.process_io()
        for name, value in zip(IO_METRICS, self._io, strict=True):
            row[name] = MISSING if self._io_unreadable else value

    def _poll(self, due: list[tuple[Process, bool]]) -> int:
        """Read live processes; each comes with whether its I/O is read, too. Returns the number of
        their threads."""
        requests: list[_PollRequest] = []
        gone: list[Process] = []
        for process, with_io in due:
            try:
                live = process.live or process.open_live(self._proc)
            except ProcessGone:
                gone.append(process)
                continue
            with_io = with_io or process.polled_io is NO_IO
            requests.append((process, live, process.exited_io, with_io))
        function = _read_process if self.events else self._read_with_name
        readings = self.tracker.reader.read(self.usage, function, requests)
        threads = 0
        for (process, _, _, with_io), reading in zip(requests, readings, strict=True):
            if reading is None:
                # It is closed by the last reader, who may be held back.
                process.live = None
            elif reading is _GONE:
                gone.append(process)
                continue
            else:
                (user, system, process.threads, resident), io, name = reading
                cpu = user + system
                if cpu > process.polled_cpu:
                    process.polled_cpu = cpu
                process.polled_user = user
                if resident > process.polled_peak:
                    process.polled_peak = resident
                if with_io:
                    self._io_unreadable |= io is None
                    process.polled_io = io or process.polled_io
                    # Without events a PID may be reused, so its clock says nothing.
                    process.has_run = not self.events
                if not self.events:
                    self.tracker.detect_exec(process, name)
            threads += process.threads
        # A reader that is held back does not go on with the others.
        requests.clear()
        for process in gone:
            if self.events:
                threads += process.threads
            else:
                self.tracker.finish_lost(process.tgid)
        return threads

    def _read_with_name(self, request: _PollRequest) -> _Poll:
        """Without events only the link shows that a process has called exec."""
        reading = _read_process(request)
        if reading is _GONE:
            return reading
        return reading[0], reading[1], self.tracker.names.by_link(request[1].pid)

    def _adopt_untracked(self) -> None:
        """Track processes without a fork event: they existed before the agent, or were moved in.
        Processes that have left the cgroup without an exit event are recorded as lost."""
        members = self.usage.members
        present: set[int] = set()
        listed_before, self._listed_at = self._listed_at, time.time_ns()
        listed = list(self._list_processes())
        # The events of all listed processes are known then.
        self.tracker.catch_up()
        for step, pids in listed:
            present.update(pids)
            for pid in pids:
                if pid not in members:
                    self._adopt(pid, step, self.usage, listed_before=listed_before)
        self._members_missing = False
        if self.events and len(present) == len(members):
            return
        for pid in [pid for pid in members if pid not in present]:
            process = members[pid]
            self._members_missing = True
            if process.missing_since is None:
                # Its exit event is most likely about to arrive.
                process.missing_since = time.monotonic_ns()
            elif (
                time.monotonic_ns() - process.missing_since > EXIT_EVENT_TIMEOUT or not self.events
            ):
                self.tracker.finish_lost(pid)

    def _list_processes(self) -> Iterable[tuple[str, list[int]]]:
        """The PIDs in the cgroups, by step."""
        return [("", self.cgroup.processes())]

    def _adopt(
        self,
        pid: int,
        step: str,
        usage: JobUsage,
        daemon_since: int | None = None,
        listed_before: int = 0,
    ) -> None:
        known = self.tracker.processes.get(pid)
        if known is not None and known.usage is not usage:
            # A child of slurmstepd that belongs to the account of its parent so far.
            return
        try:
            live = OpenProcess(self._proc, pid)
            found = self.tracker.reader.read_one(usage.children, _read_start, live)
            if found is None:
                # The kernel holds back its readers. It is found again in a later round.
                return
            has_ended, start_ticks = found
            if start_ticks is None:
                raise ProcessGone
            if has_ended:
                # It is still listed, but has been recorded by its exit event.
                live.close()
                return
            new = start_ticks >= self._epoch_ticks - 1
            forked = self.tracker.untracked.fork_of(pid) is not None
            process = self.tracker.adopt(live, usage, step=step, new=new, daemon_since=daemon_since)
            if not new:
                # What it has used so far belongs to an earlier agent epoch.
                self._poll([(process, True)])
                if self.events:
                    process.set_clock(live.cpu_clock())
                process.base_cpu, process.base_io = process.polled_cpu, process.polled_io
            elif self.events and not forked and process.adopted and usage is self.usage:
                # Its fork was not observed, so earlier children of it were not either.
                self.add_gap(max(listed_before, start_time(live)), time.time_ns())
        except ProcessGone:
            self.tracker.adopt_exited(pid, usage, step, daemon_since)

    def report(self, events_lost: int) -> ProbeReport:
        """All figures. ``events_lost`` counts overruns of the event sockets."""
        # The counter is read after all events and polled values, and includes them.
        self.tracker.catch_up()
        totals = self.totals()
        executables = self.usage.snapshot(polled_is_estimate=not self.events, limit=totals.cpu_time)
        coverage = self._coverage(events_lost, totals.cpu_time, executables)
        return ProbeReport(totals, executables, self.steps(), coverage)

    def executables(self) -> list[ExecutableUse]:
        """The rows by executable: ended processes, and the live ones as last polled."""
        return self.usage.snapshot(polled_is_estimate=not self.events)

    def steps(self) -> list[StepUse]:
        return []

    def totals(self) -> JobTotals:
        if not self._closed:
            # No event may be applied here: it could be later than the counter.
            with contextlib.suppress(CgroupGone):
                self._read_counters({})
        cpu, peaks = self._completed_cpu(), self._peaks
        io: tuple[int | None, ...] = (None,) * 6 if self._io_unreadable else self._io
        return JobTotals(
            time=time.time_ns(),
            cpu_source=self.cgroup.version if self._cpu else "exit records",
            cpu_time=cpu.time if cpu else None,
            cpu_user=cpu.user if cpu else None,
            cpu_system=cpu.system if cpu else None,
            memory_peak=peaks.peak,
            memory_used_peak=self._memory_used(),
            memory_limit=peaks.limit,
            swap_peak=peaks.swap_peak if peaks.swap_peak is not None else self._swap_peak,
            # A zero that was read before the last process ended is no count.
            oom_kills=peaks.oom_kills or (peaks.oom_kills if self._peaks_are_final() else None),
            read_characters=io[0],
            written_characters=io[1],
            read_calls=io[2],
            write_calls=io[3],
            read_bytes=io[4],
            written_bytes=io[5],
            processes=self.usage.processes,
            executions=self.usage.executions if self.events else None,
        )

    def _completed_cpu(self) -> CpuReading | None:
        """The last reading of the counter, completed by exit records that arrived after it."""
        cpu = self._cpu
        if cpu is None:
            # The cgroup was removed before the counter could be read.
            return self.usage.cpu_from_records() if self.events else None
        missing = self._cpu_from_records()
        if missing <= 0:
            return cpu
        user = round(missing * cpu.user / cpu.time) if cpu.time else missing // 2
        return CpuReading(cpu.time + missing, cpu.user + user, cpu.system + missing - user)

    def _cpu_from_records(self) -> int:
        """What exit records add to the last reading of a counter that was removed since."""
        if self._cpu is None or not self._counter_gone:
            return 0
        if self._cpu_read_with == (self.usage.processes, 0):
            # It was read after the last process had ended. A record has what a process used before
            # it moved into the cgroup, too.
            return 0
        counter, process_cpu = self._reference
        used = self.usage.process_cpu()
        # The clocks of a reference may be later than its counter. The processes have used at
        # least what their own records contain.
        return max(0, max(counter + used - process_cpu, used) - self._cpu.time)

    def _memory_used(self) -> int | None:
        """The highest memory without page cache: of the samples, or by the kernel's peak."""
        if self._used_peak is None:
            return None
        # The kernel reclaims page cache before it kills.
        marked = self._peaks.peak if self._peaks.oom_kills else self._marked_peak
        return max(self._used_peak, marked or 0)

    def _peaks_are_final(self) -> bool:
        """Whether the peaks are those of now, or were read after the last process had ended."""
        if self._counter_gone:
            return self._peaks_read_with == (self.usage.processes, 0)
        return True

    def _coverage(
        self, events_lost: int, counter: int | None, executables: list[ExecutableUse]
    ) -> dict[str, Coverage]:
        lost = events_lost + self.usage.records_lost if self.events else events_lost
        reasons = self._unobserved()
        time_share = None
        if not self.events:
            reasons = [self.reason]
        elif self.gaps:
            elapsed = max(1, time.time_ns() - self.birth)
            missed = sum(until - max(since, self.birth) for since, until in self.gaps)
            time_share = min(1.0, max(0.0, 1 - missed / elapsed))
        if lost and self.events:
            reasons.append(f"{lost} events or exit records were lost")
        if self.tracker.reader.is_held_back(self.usage):
            reasons.append(
                "the kernel holds back readings of its processes, because an exec waits for a file "
                "system"
            )
        if self.usage.folded:
            reasons.append(
                f"{self.usage.folded} executions had no row of their own, because the job ran too "
                "many executables or their paths are too long"
            )
        attribution = Coverage(quality="exact")
        if reasons:
            attribution = Coverage(
                quality="estimate",
                time_share=time_share,
                events_lost=lost if self.events else 0,
                reason="; ".join(reasons),
            )
        return {
            "cpu": self._cpu_coverage(),
            "memory": self._memory_coverage(),
            "io": self._io_coverage(attribution),
            "executables": executables_coverage(
                attribution, executables, counter, self.usage.excess_cpu
            ),
        }

    def _unobserved(self) -> list[str]:
        """Which processes were not observed, as reasons."""
        if not self.gaps:
            return []
        texts = []
        for since, until in self.gaps:
            if since <= self.birth + MIN_OBSERVED:
                texts.append(f"before {_clock(until)}")
            else:
                texts.append(f"from {_clock(since)} to {_clock(until)}")
        return [f"processes {' and '.join(texts)} UTC were not observed"]

    def _cpu_coverage(self) -> Coverage:
        if self._cpu is None and self.events and self.usage.processes:
            reason = "the sum of the exit records; the cgroup was removed before it could be read"
            return Coverage(quality="estimate", reason=reason)
        coverage = self._group_coverage("cpu", self._cpu is not None)
        if coverage.quality != "exact" or not self._counter_gone:
            return coverage
        records = self._cpu_from_records()
        total = records + (self._cpu.time if self._cpu is not None else 0)
        if self._cpu_read_with != (self.usage.processes, 0) and records > total * CPU_TOLERANCE:
            reason = (
                f"{records / total:.1%} of it from exit records; "
                "the cgroup was removed before its last reading"
            )
            return Coverage(quality="estimate", reason=reason)
        return coverage

    def _memory_coverage(self) -> Coverage:
        coverage = self._group_coverage("memory", self._used_peak is not None)
        if coverage.quality != "exact":
            return coverage
        sampled, used = self._used_peak or 0, self._memory_used() or 0
        if self._peaks.peak is None:
            return Coverage(quality="estimate", reason="sampled; the kernel provides no peak")
        if used - sampled > max(used * MEMORY_TOLERANCE, MEMORY_TOLERANCE_BYTES):
            sample = f"{sampled / 2**20:.1f} MiB"
            reason = f"the kernel's peak less page cache; the highest sample is {sample}"
            return Coverage(quality="estimate", reason=reason)
        if not self._peaks_are_final():
            reason = "the cgroup was removed before its last reading"
            return Coverage(quality="estimate", reason=reason)
        return coverage

    def _group_coverage(self, group: str, present: bool) -> Coverage:
        error = self.errors.get(group)
        if error is not None:
            return Coverage(quality="failed", reason=error)
        if not present:
            return Coverage(quality="missing", reason=f"the job's cgroup has no {group} counters")
        return Coverage(quality="exact")

    def _io_coverage(self, attribution: Coverage) -> Coverage:
        if self._io_unreadable:
            return Coverage(quality="missing", reason="the I/O of the processes may not be read")
        # An exit record loses up to 1,023 bytes and calls.
        moved = self._io.read_characters + self._io.written_characters
        if attribution.quality == "exact" and self.usage.rounded_records * 1023 > moved // 100:
            reason = "exit records round down to multiples of 1,024 bytes and calls"
            return Coverage(quality="estimate", reason=reason)
        return attribution

    def close(self) -> None:
        self.read_counters()
        for process in list(self.usage.members.values()):
            self.tracker.finish_lost(process.tgid)
        # The counter must include exit records that arrived since.
        with contextlib.suppress(CgroupGone):
            self._read_counters({})
        self._closed = True
        self.cgroup.close()


#: A process, its open files, the I/O of its exited threads, and whether to read its I/O.
_PollRequest = tuple[Process, OpenProcess, IoCounters, bool]
#: One reading of a process: its I/O is None if it may not be read, and it has no name with process
#: events.
_Poll = tuple[ProcessStat, IoCounters | None, ExecutableName | None]
_GONE: Final[_Poll] = (ProcessStat(0, 0, 0, 0), None, None)


def _read_process(request: _PollRequest) -> _Poll:
    process, live, exited_io, with_io = request
    try:
        stat = live.read_stat()
        if not with_io:
            return stat, None, None
        return stat, live.own_io(stat[2], exited_io, had_children=process.had_children), None
    except ProcessGone:
        return _GONE


def _read_start(live: OpenProcess) -> tuple[bool, int | None]:
    """Whether a process has ended, and its start; no start if it is gone."""
    try:
        return live.has_ended(), live.start_ticks
    except ProcessGone:
        return True, None


def start_time(live: OpenProcess) -> int:
    """When a process was started, in Unix time."""
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return boot + live.start_ticks * TICK


def _clock(moment: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(moment // 1_000_000_000))


def executables_coverage(
    attribution: Coverage, executables: list[ExecutableUse], counter: int | None, excess: int
) -> Coverage:
    """The coverage of the attribution, with its share of the counter, and marked if the CPU time
    of the processes had to be reduced to the counter by more than rounding."""
    attributed = sum(row.cpu_time for row in executables)
    share = min(1.0, attributed / counter) if counter else None
    if (
        counter
        and attribution.quality == "exact"
        and attributed < counter * MIN_ATTRIBUTED_SHARE
        and attributed < counter - MIN_UNATTRIBUTED
    ):
        reason = f"only {attributed / counter:.1%} of the CPU time is that of observed processes"
        attribution = msgspec.structs.replace(attribution, quality="estimate", reason=reason)
    if not counter or excess <= counter * CPU_TOLERANCE:
        return msgspec.structs.replace(attribution, cpu_share=share)
    reason = (
        f"the CPU time of the processes exceeded the job's counter by {excess / counter:.1%} "
        "and was reduced to it"
    )
    if attribution.reason:
        reason = f"{attribution.reason}; {reason}"
    return msgspec.structs.replace(attribution, quality="estimate", cpu_share=share, reason=reason)


class SlurmProbe(CgroupProbe):
    """A job whose cgroups Slurm created."""

    def __init__(
        self,
        counters: SlurmCounters,
        tracker: ProcessTracker,
        *,
        events: bool,
        reason: str = "",
        proc: bytes = b"/proc",
    ) -> None:
        super().__init__(counters, tracker, events=events, reason=reason, proc=proc)
        self.counters = counters
        #: The account of slurmstepd. Its children belong to the user's job.
        self.daemon_usage = JobUsage(children=self.usage)
        #: The account of the extern step's slurmstepd and its child, a sleep that keeps the step
        #: open.
        self.extern_usage = JobUsage()
        self._extern_daemons: set[int] = set()
        #: Steps that were created and removed before their processes were listed.
        self._missed_steps: set[str] = set()

    def refresh(self) -> None:
        """Find steps and their processes after cgroups were created or removed."""
        # A removed step is still in the counters of the job; so are the processes of a new step,
        # which are not known yet.
        self.read_counters(all_known=False)
        self.counters.refresh()
        self._adopt_untracked()

    def _list_processes(self) -> Iterable[tuple[str, list[int]]]:
        now = time.monotonic_ns()
        daemons, processes = self.counters.daemons(), self.counters.processes_by_step()
        self.tracker.catch_up()
        self._extern_daemons = {pid for step, pid in daemons if step == EXTERN}
        for step, pid in daemons:
            if pid not in self.tracker.processes:
                usage = self.extern_usage if step == EXTERN else self.daemon_usage
                self._adopt(pid, step, usage, now)
        return processes

    def _adopt(
        self,
        pid: int,
        step: str,
        usage: JobUsage,
        daemon_since: int | None = None,
        listed_before: int = 0,
    ) -> None:
        if step == EXTERN and usage is self.usage:
            parent = self.tracker.reader.read_one(
                usage, lambda pid: parent_of(self._proc, pid), pid
            )
            if parent is None or pid in self.tracker.processes:
                return
            if parent in self._extern_daemons:
                usage = self.extern_usage
            else:
                # Moved in by pam_slurm_adopt.
                self.counters.has_extern_user = True
        super()._adopt(pid, step, usage, daemon_since, listed_before)

    def _read_counters(self, row: Row) -> None:
        self.counters.set_members(self.usage.step_members)
        super()._read_counters(row)

    def read_final_counters(self) -> None:
        if self.extern_usage.emptied_steps:
            self.extern_usage.emptied_steps.clear()
            self.usage.peak_outdated = True
        super().read_final_counters()

    def add_created_step(self, step: str) -> None:
        """A step was created; it must have been listed by now."""
        if not self.counters.has_listed(step):
            self._missed_steps.add(step)

    def _unobserved_steps(self) -> list[str]:
        """Steps without an observed process, and those that were never listed."""
        if self._silent_steps() and not self._counter_gone and not self._closed:
            # Processes that have started a moment ago are found now.
            with contextlib.suppress(CgroupGone):
                self._adopt_untracked()
        return sorted(self._missed_steps | self._silent_steps())

    def _silent_steps(self) -> set[str]:
        """Steps that have ended or whose tasks have used CPU time, without an observed process.

        The cgroup of a step may remain long after its processes.
        """
        return {
            step.step
            for step in self.counters.steps()
            if step.step != EXTERN
            and (step.ended or (step.cpu_time and self.counters.has_tasks(step)))
            and not self.usage.has_observed(step.step)
        }

    def _ran_unobserved(self) -> bool:
        """Whether the job has ended, and no process or step of it was observed: its only step was
        created and removed before the job itself was found."""
        if not self._counter_gone and not self._closed:
            return False
        # On the other nodes of a job, the extern step may be the only one.
        unlisted = self._cpu is None or self.counters.ran_unlisted
        return unlisted and not self.usage.has_observed_any

    def _unobserved(self) -> list[str]:
        reasons = super()._unobserved()
        missed = self._unobserved_steps()
        if missed:
            names = ", ".join(missed[:3]) + (", ..." if len(missed) > 3 else "")
            noun = "a short step" if len(missed) == 1 else f"{len(missed)} short steps"
            reasons.append(f"the processes of {noun} ({names}) were not observed")
        elif self._ran_unobserved():
            reasons.append("the job had ended before its processes were observed")
        return reasons

    def _cpu_coverage(self) -> Coverage:
        coverage = super()._cpu_coverage()
        if coverage.quality != "exact":
            return coverage
        if self._ran_unobserved():
            reason = "with that of slurmstepd; the job had ended before its steps were listed"
            return Coverage(quality="estimate", reason=reason)
        if self._counter_gone and self._unobserved_steps():
            reason = "the cgroup was removed before its last reading"
            return Coverage(quality="estimate", reason=reason)
        return coverage

    def steps(self) -> list[StepUse]:
        steps = [msgspec.structs.replace(step) for step in self.counters.steps()]
        for step in steps:
            if step.ended:
                # Its cgroup may have been removed before its last reading.
                step.cpu_time = max(step.cpu_time or 0, self.usage.step_cpu[step.step])
            if self.usage.step_gpu_time:
                # A step without a process on a GPU has used none.
                step.gpu_time = self.usage.step_gpu_time[step.step]
                step.gpu_memory_peak = self.usage.step_gpu_memory.get(step.step, 0)
        return steps

    def totals(self) -> JobTotals:
        totals = super().totals()
        totals.cpu_overhead = self.counters.overhead
        return totals

    def close(self) -> None:
        for usage in (self.daemon_usage, self.extern_usage):
            for process in list(usage.members.values()):
                self.tracker.finish_lost(process.tgid)
        super().close()
