"""What the processes of one job have used so far, by executable."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.agent.cgroups import CpuReading
from jobsight.agent.images import Name
from jobsight.agent.live import NOTHING, Gone, InputOutput, add, subtract
from jobsight.model import ExecutableUse

if TYPE_CHECKING:
    from jobsight.agent.process import Process


#: So many programs a job are told apart; what comes after them shares one row.
EXECUTABLES_LIMIT: Final = 10_000
OTHERS: Final = Name(b"other programs", known=False)


class JobUsage:
    """The books of one job: finished use by executable, and the sums of what has ended."""

    def __init__(self, children: JobUsage | None = None) -> None:
        #: Where children are booked: those of Slurm's daemon are the user's, not the daemon's.
        self.children = children or self
        self.executables: dict[Name, ExecutableUse] = {}
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
        live = sum(process.vitals_cpu - process.base_cpu for process in self.members.values())
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
        live = [process.vitals_io for process in self.members.values()]
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

    def of(self, name: Name) -> ExecutableUse:
        use = self.executables.get(name)
        if use is None and len(self.executables) >= EXECUTABLES_LIMIT:
            # A job that makes programs without end must not take the node's memory with it.
            name = OTHERS
            use = self.executables.get(name)
        if use is None:
            use = ExecutableUse(path=name.path, path_known=name.known)
            self.executables[name] = use
        return use

    def rename(self, old: Name, new: Name) -> None:
        """A look at another process told what file an unnamed one ran."""
        use = self.executables.pop(old, None)
        if use is None:
            return
        whole = self.of(new)
        _add(whole, use)
        if (old.path, old.known) in self._sent:
            # What was sent under the old name is taken back by sending it empty.
            self.of(Name(old.path, old.known))

    def book(
        self,
        name: Name,
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

    def count(self, name: Name, now: int, *, executions: int = 0, processes: int = 0) -> None:
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
            last = process.stretches[-1]
            cpu = max(0, process.vitals_cpu - process.base_cpu - (last.used or 0))
            user = min(cpu, process.vitals_user)
            row.cpu_time += cpu
            row.cpu_user += user
            row.cpu_system += cpu - user
            row.cpu_estimated += cpu if estimated else 0
            io = subtract(subtract(process.vitals_io, process.base_io), last.io or NOTHING)
            row.read_bytes += max(0, io.read_bytes)
            row.written_bytes += max(0, io.written_bytes)
            row.peak_memory = max(row.peak_memory, process.vitals_peak)
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
