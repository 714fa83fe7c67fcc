"""Measures one job that has a cgroup: counters for the totals, processes for the split.

Measures one job of Slurm: its steps come and go, and slurmstepd's share is kept apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.agent.probes.cgroup_files import NO_PEAKS, CgroupGone, CpuReading, MemoryReading
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.process import JobUsage, Process
from jobsight.agent.processes.procfs import NOTHING, TICK, Gone, InputOutput, OpenProcess
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import MISSING, Coverage, ExecutableUse, JobTotals, StepUse

if TYPE_CHECKING:
    from jobsight.agent.job import Counters, Row

#: A process that is no longer in the cgroup and whose exit event has not come by then is lost.
MISSING_LIMIT: Final = 1_000_000_000

#: With events, the list of the cgroup is only a second look for processes that were moved in.
ROUNDS_PER_LISTING: Final = 20

#: With so many processes each one's I/O is read in every other round; its record completes it.
MANY: Final = 64
#: And their clocks in these rounds, because records complete an old reading as well as a new one.
CLOCKS_EVERY: Final = 4

IO_METRICS: Final = tuple(f"io.{name}" for name in InputOutput._fields)


class CgroupProbe:
    """One job with a cgroup. With process events the split is exact, without them it is polled."""

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
        self.reason = reason
        self.errors: dict[str, str] = {}
        self._proc = proc
        self._epoch_ticks = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK
        self._cpu: CpuReading | None = None
        self.read_at: int | None = None
        self._peaks = NO_PEAKS
        self._used_peak: int | None = None
        self._swap_peak: int | None = None
        self._io, self._io_hidden = NOTHING, False
        self._round = 0
        self._losses = tracker.losses
        #: The counters cannot be read any more.
        self._gone = self._closed = False
        #: A process was not in its directory any more at the last look, and its end was not told.
        self._doubtful = False
        #: Counter and processes' own account, read at one moment.
        self._together = (0, 0)

    def sample(self) -> Row:
        """One round: the job's counters and a look at each of its processes."""
        row: Row = {}
        self._round += 1
        self._sample_counters(row)
        # Whatever was in the counter is in the processes' own account then, or this round is not
        # one to go on from: what comes later would count twice.
        self.tracker.catch_up()
        if not self.events or self._doubtful or self._round % ROUNDS_PER_LISTING == 1:
            self._adopt_strangers()
        if len(self.usage.members) < MANY or self._round % CLOCKS_EVERY == 1:
            self._read_clocks()
        self._sample_processes(row)
        return row

    def _read_clocks(self) -> None:
        cpu = None if self._gone or not self.events else self._cpu
        if cpu is not None and self.usage.read_clocks(self._proc):
            self._together = (cpu.time, self.usage.cpu_seen())

    def count_from_birth(self) -> None:
        """No agent has followed the job before: what its processes have used so far is ours."""
        self._epoch_ticks = 0

    def read_final_counters(self) -> None:
        """A step has lost its last process, or a large one has ended: read the counters now,
        because Slurm removes them within milliseconds of a job's end."""
        if self.events and self.tracker.losses != self._losses:
            self._losses = self.tracker.losses
            self._adopt_strangers()
        if not self.usage.emptied and not self.usage.peak_in_doubt:
            return
        self.usage.emptied.clear()
        self.usage.peak_in_doubt = False
        self.read_counters()

    def read_counters(self, *, all_known: bool = True) -> None:
        """Take the counters alone, if they are still there."""
        try:
            self._sample_counters({})
        except CgroupGone:
            return
        if self._cpu is None or self._gone or not all_known:
            return
        # What has ended by now has been told then.
        self.tracker.catch_up()
        if self.usage.processes and not self.usage.members:
            # Nothing is alive whose own account would lag behind the counter.
            self._together = (self._cpu.time, self.usage.cpu_seen())

    def _sample_counters(self, row: Row) -> None:
        try:
            cpu = self.cgroup.cpu()
        except CgroupGone:
            self._gone = True
            raise
        except OSError as error:
            self._note("cpu", error)
            cpu = None
        else:
            # The counter is cumulative: what was missed before is in it.
            self.errors.pop("cpu", None)
            self.read_at = time.monotonic_ns()
        # A hierarchy that the job has left says nothing, rather than that it is gone.
        self._gone = cpu is None and self._cpu is not None
        self._cpu = cpu or self._cpu
        row["cpu.time"], row["cpu.user"], row["cpu.system"] = cpu or (MISSING, MISSING, MISSING)
        try:
            memory = self.cgroup.memory()
            # A directory that has just gone says nothing; what it said before stays.
            peaks = self.cgroup.memory_peaks()
            self._peaks = self._peaks if peaks == NO_PEAKS else peaks
            self.usage.memory_peak = self._peaks.peak or 0
        except CgroupGone:
            raise
        except OSError as error:
            self._note("memory", error)
            memory = None
        if memory is not None:
            self._used_peak = max(self._used_peak or 0, memory.used)
            self._swap_peak = max(self._swap_peak or 0, memory.swap)
        self._memory_row(row, memory)

    @staticmethod
    def _memory_row(row: Row, memory: MemoryReading | None) -> None:
        for name in ("used", "current", "anonymous", "file", "shared", "swap"):
            row[f"memory.{name}"] = getattr(memory, name) if memory else MISSING

    def _note(self, group: str, error: OSError) -> None:
        self.errors[group] = f"{error.strerror}: {error.filename}" if error.filename else str(error)

    def _sample_processes(self, row: Row) -> None:
        """Look at the processes."""
        odd = self._round % 2 == 1
        threads = 0
        members = list(self.usage.members.values())
        turn = self._round % 2 if len(members) >= MANY else 2
        for index, process in enumerate(members):
            # The kernel adds up the threads at each read, so those with several are read by turns.
            if process.threads < 2 or odd:
                try:
                    self._look(process, with_io=index % 2 != turn or process.threads > 1)
                except Gone:
                    if not self.events:
                        self.tracker.lose(process.tgid)
                        continue
            threads += process.threads
        row["tasks.processes"], row["tasks.threads"] = len(self.usage.members), threads
        self._io = self.usage.io_seen()
        for name, value in zip(IO_METRICS, self._io, strict=True):
            row[name] = MISSING if self._io_hidden else value

    def _look(self, process: Process, *, with_io: bool = True) -> None:
        """Read one live process."""
        live = process.live or process.open_live(self._proc)
        user, system, threads, resident = live.vitals()
        if user + system > process.polled_cpu:
            process.polled_cpu = user + system
        process.polled_user = user
        process.threads = threads
        if resident > process.polled_peak:
            process.polled_peak = resident
        if with_io or process.polled_io is NOTHING:
            io = live.input_output(threads, process.io, had_children=process.had_children)
            self._io_hidden |= io is None
            process.polled_io = io or process.polled_io
        if not self.events:
            self.tracker.look_for_exec(process)

    def _adopt_strangers(self) -> None:
        """Take in processes that no fork event told of: they were there before us, or moved in."""
        members = self.usage.members
        present: set[int] = set()
        listed = list(self._listed())
        # What those that are listed have done so far is then known.
        self.tracker.catch_up()
        for step, pids in listed:
            present.update(pids)
            for pid in pids:
                if pid not in members:
                    self._adopt(pid, step, self.usage)
        self._doubtful = False
        if self.events and len(present) == len(members):
            return
        for pid in [pid for pid in members if pid not in present]:
            process = members[pid]
            self._doubtful = True
            if process.missing_since is None:
                # Its exit event is most likely on its way.
                process.missing_since = time.monotonic_ns()
            elif time.monotonic_ns() - process.missing_since > MISSING_LIMIT or not self.events:
                self.tracker.lose(pid)

    def _listed(self) -> Iterable[tuple[str, list[int]]]:
        """The job's processes as the cgroups list them, by step."""
        return [("", self.cgroup.processes())]

    def _adopt(self, pid: int, step: str, usage: JobUsage, daemon_at: int | None = None) -> None:
        known = self.tracker.processes.get(pid)
        if known is not None and known.usage is not usage:
            # A daemon's child that was booked with its parent's job already.
            return
        try:
            live = OpenProcess(self._proc, pid)
            if live.has_ended():
                # It is still listed, but its end has been told, and booked.
                live.close()
                return
            new = live.start_ticks >= self._epoch_ticks - 1
            process = self.tracker.adopt(live, usage, step=step, new=new, daemon_at=daemon_at)
            if not new:
                # Older than this agent: what it has used so far is another epoch's.
                self._look(process)
                if self.events:
                    process.read_clock(self._proc)
                process.base_cpu, process.base_io = process.polled_cpu, process.polled_io
        except Gone:
            self.tracker.adopt_ended(pid, usage, step, daemon_at)

    def executables(self) -> list[ExecutableUse]:
        """The books so far: what has ended, and the live processes as last seen."""
        return self.usage.snapshot(estimated=not self.events)

    def steps(self) -> list[StepUse]:
        return []

    def _completed_cpu(self) -> CpuReading | None:
        """The counter's last reading, completed by exit records that came after it."""
        cpu = self._cpu
        if cpu is not None and not self._gone:
            return cpu
        if cpu is None:
            # It was over before its counters could be read; its processes have told.
            return self.usage.cpu_by_records() if self.events else None
        counter, seen = self._together
        missing = counter + self.usage.cpu_seen() - seen - cpu.time
        if missing <= 0:
            return cpu
        user = round(missing * cpu.user / cpu.time) if cpu.time else missing // 2
        return CpuReading(cpu.time + missing, cpu.user + user, cpu.system + missing - user)

    def totals(self) -> JobTotals:
        if not self._closed:
            self.read_counters()
        cpu, peaks = self._completed_cpu(), self._peaks
        io: tuple[int | None, ...] = (None,) * 6 if self._io_hidden else self._io
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

    def coverage(self, lost: int) -> dict[str, Coverage]:
        """How sure each group of figures is; ``lost`` counts overruns of the event sockets."""
        lost += self.usage.records_lost if self.events else 0
        cpu_time = self._cpu.time if self._cpu else 0
        booked = sum(row.cpu_time for row in self.executables())
        share = min(1.0, booked / cpu_time) if cpu_time else None
        if not self.events:
            split = Coverage(quality="estimate", cpu_share=share, reason=self.reason)
        elif lost:
            split = Coverage(
                quality="estimate",
                cpu_share=share,
                events_lost=lost,
                reason=f"{lost} events or exit records were lost",
            )
        else:
            split = Coverage(quality="exact", cpu_share=share)
        return {
            "cpu": self._cpu_coverage(),
            "memory": self._group("memory", self._used_peak is not None),
            "io": self._io_coverage(split),
            "executables": split,
        }

    def _cpu_coverage(self) -> Coverage:
        if self._cpu is None and self.events and self.usage.processes:
            reason = "the sum of the exit records; its cgroup was gone before it could be read"
            return Coverage(quality="estimate", reason=reason)
        return self._group("cpu", self._cpu is not None)

    def _group(self, group: str, there: bool) -> Coverage:
        error = self.errors.get(group)
        if error is not None:
            return Coverage(quality="failed", reason=error)
        if not there:
            return Coverage(quality="missing", reason=f"the job's cgroup has no {group} counters")
        return Coverage(quality="exact")

    def _io_coverage(self, split: Coverage) -> Coverage:
        if self._io_hidden:
            return Coverage(quality="missing", reason="the processes' I/O may not be read")
        # Each ended process may have lost up to a KiB of bytes, and 1,023 calls.
        moved = self._io.read_characters + self._io.written_characters
        if split.quality == "exact" and self.usage.rounded * 1023 > moved // 100:
            reason = "exit records round down to 1,024 bytes and calls a process"
            return Coverage(quality="estimate", reason=reason)
        return Coverage(quality=split.quality, events_lost=split.events_lost, reason=split.reason)

    def close(self) -> None:
        self.read_counters()
        self._closed = True
        for process in list(self.usage.members.values()):
            self.tracker.lose(process.tgid)
        self.cgroup.close()


class SlurmProbe(CgroupProbe):
    """A job whose cgroups Slurm made."""

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
        #: Slurm's own processes. What they fork is the user's, from the fork on.
        self.daemon_usage = JobUsage(children=self.usage)

    def refresh(self) -> None:
        """Folders have come or gone: look for steps, and for processes in them."""
        # A step that has just gone is still in the job's own counters; so are processes of a step
        # that has just come, of whom nobody has told yet.
        self.read_counters(all_known=False)
        self.counters.refresh()
        self._adopt_strangers()

    def _listed(self) -> Iterable[tuple[str, list[int]]]:
        now = time.monotonic_ns()
        daemons, processes = self.counters.daemons(), self.counters.processes_by_step()
        self.tracker.catch_up()
        for step, pid in daemons:
            if pid not in self.tracker.processes:
                self._adopt(pid, step, self.daemon_usage, now)
        return processes

    def steps(self) -> list[StepUse]:
        found = [msgspec.structs.replace(step) for step in self.counters.steps()]
        for step in found:
            # A step that went before its last reading is completed from its exit records.
            booked = self.usage.step_cpu[step.step]
            if step.ended:
                step.cpu_time = max(step.cpu_time or 0, booked)
        return found

    def totals(self) -> JobTotals:
        totals = super().totals()
        totals.cpu_overhead = self.counters.overhead
        return totals

    def close(self) -> None:
        for process in list(self.daemon_usage.members.values()):
            self.tracker.lose(process.tgid)
        super().close()
