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
import time
from collections.abc import Iterable
from typing import Final

import msgspec

from jobsight.agent.job import Counters, ProbeReport, Row
from jobsight.agent.probes.cgroup_files import NO_PEAKS, CgroupGone, CpuReading
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.process import JobUsage, Process
from jobsight.agent.processes.procfs import NO_IO, TICK, IoCounters, OpenProcess, ProcessGone
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import MISSING, Coverage, ExecutableUse, JobTotals, StepUse

#: A process that has left the cgroup without an exit event is recorded as lost after this.
EXIT_EVENT_TIMEOUT: Final = 1_000_000_000
#: With events, the cgroup is listed only in every n-th round, for processes that were moved in.
ROUNDS_PER_LISTING: Final = 20
#: From this number on, the I/O of each process is read in every other round, and their clocks in
#: every n-th: an exit record completes an old reading as well as a recent one.
MANY_PROCESSES: Final = 64
ROUNDS_PER_CLOCK_READING: Final = 4
#: Processes may exceed the counter by this share, because exit records are rounded.
CPU_TOLERANCE: Final = 0.001

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
        self._counter_gone = self._closed = False
        self._peaks = NO_PEAKS
        self._used_peak: int | None = None
        self._swap_peak: int | None = None
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
        if not self.events or self._members_missing or self._round % ROUNDS_PER_LISTING == 1:
            self._adopt_untracked()
        if len(self.usage.members) < MANY_PROCESSES or (
            self._round % ROUNDS_PER_CLOCK_READING == 1
        ):
            cpu = None if self._counter_gone or not self.events else self._cpu
            if cpu is not None and self.usage.read_clocks(self._proc):
                self._reference = (cpu.time, self.usage.process_cpu())
        self._poll_processes(row)
        return row

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
        try:
            cpu = self.cgroup.cpu()
        except CgroupGone:
            self._counter_gone = True
            raise
        except OSError as error:
            self._record_error("cpu", error)
            cpu = None
        else:
            # The counter is cumulative and includes what was missed before.
            self.errors.pop("cpu", None)
            if cpu is not None and self._cpu is not None:
                cpu = cpu.after(self._cpu)
            self.read_at = time.monotonic_ns()
        # A v1 hierarchy that the job has left gives no reading instead of CgroupGone.
        self._counter_gone = cpu is None and self._cpu is not None
        self._cpu = cpu or self._cpu
        row["cpu.time"], row["cpu.user"], row["cpu.system"] = cpu or (MISSING, MISSING, MISSING)
        try:
            memory = self.cgroup.memory()
            peaks = self.cgroup.memory_peaks()
        except CgroupGone:
            raise
        except OSError as error:
            self._record_error("memory", error)
            memory = None
        else:
            # A cgroup that has just been removed has no peaks; the last ones are kept.
            self._peaks = self._peaks if peaks == NO_PEAKS else peaks
            self.usage.memory_peak = self._peaks.peak or 0
        if memory is not None:
            self._used_peak = max(self._used_peak or 0, memory.used)
            self._swap_peak = max(self._swap_peak or 0, memory.swap)
        for name in _MEMORY_FIELDS:
            row[f"memory.{name}"] = getattr(memory, name) if memory else MISSING

    def _record_error(self, group: str, error: OSError) -> None:
        self.errors[group] = f"{error.strerror}: {error.filename}" if error.filename else str(error)

    def _poll_processes(self, row: Row) -> None:
        odd_round = self._round % 2 == 1
        threads = 0
        members = list(self.usage.members.values())
        turn = self._round % 2 if len(members) >= MANY_PROCESSES else 2
        for index, process in enumerate(members):
            # The kernel sums over the threads at each read, so multithreaded processes are read
            # in every other round.
            if process.threads < 2 or odd_round:
                try:
                    self._poll(process, with_io=index % 2 != turn or process.threads > 1)
                except ProcessGone:
                    if not self.events:
                        self.tracker.finish_lost(process.tgid)
                        continue
            threads += process.threads
        row["tasks.processes"], row["tasks.threads"] = len(self.usage.members), threads
        self._io = self.usage.process_io()
        for name, value in zip(IO_METRICS, self._io, strict=True):
            row[name] = MISSING if self._io_unreadable else value

    def _poll(self, process: Process, *, with_io: bool = True) -> None:
        """Read one live process."""
        live = process.live or process.open_live(self._proc)
        user, system, threads, resident = live.read_stat()
        if user + system > process.polled_cpu:
            process.polled_cpu = user + system
        process.polled_user = user
        process.threads = threads
        if resident > process.polled_peak:
            process.polled_peak = resident
        if with_io or process.polled_io is NO_IO:
            io = live.own_io(threads, process.exited_io, had_children=process.had_children)
            self._io_unreadable |= io is None
            process.polled_io = io or process.polled_io
        if not self.events:
            self.tracker.detect_exec(process)

    def _adopt_untracked(self) -> None:
        """Track processes without a fork event: they existed before the agent, or were moved in.
        Processes that have left the cgroup without an exit event are recorded as lost."""
        members = self.usage.members
        present: set[int] = set()
        listed = list(self._list_processes())
        # The events of all listed processes are known then.
        self.tracker.catch_up()
        for step, pids in listed:
            present.update(pids)
            for pid in pids:
                if pid not in members:
                    self._adopt(pid, step, self.usage)
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

    def _adopt(self, pid: int, step: str, usage: JobUsage, daemon_since: int | None = None) -> None:
        known = self.tracker.processes.get(pid)
        if known is not None and known.usage is not usage:
            # A child of slurmstepd that belongs to the account of its parent so far.
            return
        try:
            live = OpenProcess(self._proc, pid)
            if live.has_ended():
                # It is still listed, but has been recorded by its exit event.
                live.close()
                return
            new = live.start_ticks >= self._epoch_ticks - 1
            process = self.tracker.adopt(live, usage, step=step, new=new, daemon_since=daemon_since)
            if not new:
                # What it has used so far belongs to an earlier agent epoch.
                self._poll(process)
                if self.events:
                    process.read_clock(self._proc)
                process.base_cpu, process.base_io = process.polled_cpu, process.polled_io
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
            memory_used_peak=self._used_peak,
            memory_limit=peaks.limit,
            swap_peak=peaks.swap_peak if peaks.swap_peak is not None else self._swap_peak,
            oom_kills=peaks.oom_kills,
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
        if cpu is not None and not self._counter_gone:
            return cpu
        if cpu is None:
            # The cgroup was removed before the counter could be read.
            return self.usage.cpu_from_records() if self.events else None
        counter, process_cpu = self._reference
        missing = counter + self.usage.process_cpu() - process_cpu - cpu.time
        if missing <= 0:
            return cpu
        user = round(missing * cpu.user / cpu.time) if cpu.time else missing // 2
        return CpuReading(cpu.time + missing, cpu.user + user, cpu.system + missing - user)

    def _coverage(
        self, events_lost: int, counter: int | None, executables: list[ExecutableUse]
    ) -> dict[str, Coverage]:
        lost = events_lost + self.usage.records_lost if self.events else events_lost
        if not self.events:
            attribution = Coverage(quality="estimate", reason=self.reason)
        elif lost:
            reason = f"{lost} events or exit records were lost"
            attribution = Coverage(quality="estimate", events_lost=lost, reason=reason)
        else:
            attribution = Coverage(quality="exact")
        return {
            "cpu": self._cpu_coverage(),
            "memory": self._group_coverage("memory", self._used_peak is not None),
            "io": self._io_coverage(attribution),
            "executables": executables_coverage(
                attribution, executables, counter, self.usage.excess_cpu
            ),
        }

    def _cpu_coverage(self) -> Coverage:
        if self._cpu is None and self.events and self.usage.processes:
            reason = "the sum of the exit records; the cgroup was removed before it could be read"
            return Coverage(quality="estimate", reason=reason)
        return self._group_coverage("cpu", self._cpu is not None)

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


def executables_coverage(
    attribution: Coverage, executables: list[ExecutableUse], counter: int | None, excess: int
) -> Coverage:
    """The coverage of the attribution, with its share of the counter, and marked if the CPU time
    of the processes had to be reduced to the counter by more than rounding."""
    attributed = sum(row.cpu_time for row in executables)
    share = min(1.0, attributed / counter) if counter else None
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
        for step, pid in daemons:
            if pid not in self.tracker.processes:
                self._adopt(pid, step, self.daemon_usage, now)
        return processes

    def steps(self) -> list[StepUse]:
        steps = [msgspec.structs.replace(step) for step in self.counters.steps()]
        for step in steps:
            if step.ended:
                # Its cgroup may have been removed before its last reading.
                step.cpu_time = max(step.cpu_time or 0, self.usage.step_cpu[step.step])
        return steps

    def totals(self) -> JobTotals:
        totals = super().totals()
        totals.cpu_overhead = self.counters.overhead
        return totals

    def close(self) -> None:
        for process in list(self.daemon_usage.members.values()):
            self.tracker.finish_lost(process.tgid)
        super().close()
