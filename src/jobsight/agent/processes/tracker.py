"""Processes of jobs from birth to end, from the kernel's events.

A process belongs to the job of its parent. Its use is booked on the executable it ran, at its
end, from the exit records of its threads; a process that replaced its program is split at the
exec. The two event sockets have no common order, so a record waits for the connector's exit
event of its thread, and by then every earlier event of that thread has been applied.

Exit records that wait for the exit event of their thread.

Rows of files that nobody could name yet, renamed once a look at any run of them has.

What processes of no job have done in the last moments.

A job's first processes are at work before its directories can be looked into. When one of them is
found there, its life so far and that of its children is told from here.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from jobsight.agent.processes.executables import ExecutableName, ExecutableNames, same_file
from jobsight.agent.processes.netlink import EXEC, EXIT, FORK, ExitRecord, ProcessEvent
from jobsight.agent.processes.process import JobUsage, Process, Segment, count
from jobsight.agent.processes.procfs import NOTHING, InputOutput, OpenProcess, subtract

#: What a program did in its first moments between fork and exec counts for the program it
#: became; only a program that ran longer than this before an exec gets a part of its own.
SPLIT_FLOOR: Final = 10_000_000
#: How long a process of an older kernel, whose records do not say which thread is the last, is
#: kept after its first thread has ended: the others end at the same moment or soon after.
LINGER: Final = 100_000_000
#: More live processes than any node has; a bomb beyond it is not followed one by one.
PROCESSES_LIMIT: Final = 100_000
#: A process that small does not make a job's peak worth another reading.
NOTABLE_MEMORY: Final = 16 * 2**20
#: The kernel tells of a fork or an exec a moment after it can be seen.
CLOCK_TOLERANCE: Final = 5_000_000


class ProcessTracker:
    """Applies events and exit records to the processes of the jobs that are followed."""

    def __init__(self, names: ExecutableNames) -> None:
        self.names = names
        self.processes: dict[int, Process] = {}
        #: Takes in all that the kernel has told by now.
        self.catch_up: Callable[[], None] = _nothing
        self.untracked = UntrackedProcesses()
        #: How often events were lost, after which it must be looked who is there.
        self.losses = 0
        self._pending_records = PendingExitRecords()
        self._unresolved = UnresolvedExecutables(names)
        self._ending: dict[int, Process] = {}
        #: By exec event of the present drain: the link, and when it was read.
        self._links: dict[ProcessEvent, tuple[ExecutableName | None, int]] = {}

    def adopt(
        self,
        live: OpenProcess,
        usage: JobUsage,
        *,
        step: str = "",
        new: bool = False,
        daemon_at: int | None = None,
    ) -> Process:
        """Follow a process that is already alive. A new one counts as an execution of its
        program, unless it runs the same as its parent and so is most likely a mere fork.

        What was a daemon at a time may be a child of it that executes the user's program since.
        """
        process = self._recall(live.pid, usage, step) if daemon_at is None else None
        if process is None:
            started = daemon_at or time.monotonic_ns()
            name = self.names.by_link(live.pid)
            executed = new and daemon_at is None and name != self.names.by_link(live.parent())
            segment = Segment(name, started, executed=executed)
            segment.named_at = time.monotonic_ns()
            process = self._follow(Process(live.pid, usage, segment, step))
            process.adopted = True
            usage.executions += executed
            count(usage, segment)
        process.live = live
        self._tell(self.untracked.take(live.pid))
        return process

    def adopt_ended(
        self, pid: int, usage: JobUsage, step: str, daemon_at: int | None = None
    ) -> None:
        """Book a process that was seen in a job's directory and has ended since, if its life is
        remembered."""
        if pid in self.processes or self.untracked.birth(pid) is None:
            return
        if daemon_at is None:
            self._recall(pid, usage, step)
        else:
            segment = Segment(None, daemon_at, executed=False)
            self._follow(Process(pid, usage, segment, step)).adopted = True
        self._tell(self.untracked.take(pid, ended=True))

    def _recall(self, pid: int, usage: JobUsage, step: str) -> Process | None:
        """Begin a process at its fork; None where that is not remembered."""
        birth = self.untracked.birth(pid)
        if birth is None:
            return None
        mother = self.processes.get(birth.tgid)
        expected = mother is not None and mother.usage.children is not mother.usage
        name = None
        if not expected and usage.children is usage:
            name = mother.name if mother is not None else self.names.by_link(birth.tgid)
        segment = Segment(name, birth.time, executed=False)
        process = self._follow(Process(pid, usage, segment, step))
        process.expected = expected
        count(usage, segment)
        return process

    def _tell(self, life: list[Remembered]) -> None:
        """Apply what was remembered of processes that turn out to be a job's."""
        if not life:
            return
        self._read_links([event for _, event, _ in life])
        for _, event, record in life:
            if event.what == FORK:
                self._fork(event)
            elif event.what == EXEC:
                self._exec(event)
            else:
                self._end_thread(event, record)

    def expect(self, live: OpenProcess, usage: JobUsage) -> Process:
        """Follow a process that waits to execute a job's command: it is nothing before that."""
        process = self._follow(
            Process(live.pid, usage, Segment(None, time.monotonic_ns(), executed=False))
        )
        process.live = live
        process.expected = True
        return process

    def _follow(self, process: Process) -> Process:
        self.processes[process.tgid] = process
        process.usage.join(process)
        return process

    def apply(self, events: Iterable[ProcessEvent], records: Iterable[ExitRecord]) -> None:
        """Take in what both sockets gave; the records must have been drained after the events."""
        events = list(events)
        self._read_links(events)
        for record in records:
            self._pending_records.add(record)
        for event in events:
            if event.what == FORK:
                self._fork(event)
            elif event.what == EXEC:
                self._exec(event)
            elif event.what == EXIT:
                self._exit(event)
        if self._ending:
            self._end_lingering(time.monotonic_ns() - LINGER)
        self._unresolved.resolve()

    def _read_links(self, events: list[ProcessEvent]) -> None:
        """Read the links of those that may still live, the newest first: a program of a
        millisecond is gone by the time all earlier events have been applied."""
        self._links.clear()
        ours: set[int] = set()
        living: dict[int, ProcessEvent] = {}
        for event in events:
            if event.what == EXEC:
                if event.tgid in ours or event.tgid in self.processes:
                    living[event.tgid] = event
            elif event.what == FORK:
                if event.tgid in ours or event.tgid in self.processes:
                    ours.add(event.value)
            elif event.pid == event.tgid:
                living.pop(event.tgid, None)
        for event in reversed(living.values()):
            name = self.names.by_link(event.tgid)
            self._links[event] = (name, time.monotonic_ns())

    def _end_lingering(self, before: int) -> None:
        for process in list(self._ending.values()):
            if process.ended is not None and process.ended[1] <= before:
                self._finish(process, *process.ended)

    def _fork(self, event: ProcessEvent) -> None:
        child = event.value
        known = self.processes.get(child)
        if known is not None:
            if known.segments[0].start + (CLOCK_TOLERANCE if known.adopted else 0) >= event.time:
                # A sampling round met it in the cgroup before its event was taken in.
                return
            # The number was given away again, so the end of its former owner was lost.
            self.lose(child)
        parent = self.processes.get(event.tgid)
        if parent is None:
            self.untracked.note(event)
            return
        usage = parent.usage.children
        if len(self.processes) >= PROCESSES_LIMIT:
            # Its CPU time stays in the counter, and the loss is stated.
            usage.records_lost += 1
            return
        # A daemon's child is nothing of the job's before it executes a program.
        expected = usage is not parent.usage
        segment = Segment(None if expected else parent.name, event.time, executed=False)
        self._follow(Process(child, usage, segment, parent.step)).expected = expected
        count(usage, segment)

    def _exec(self, event: ProcessEvent) -> None:
        process = self.processes.get(event.tgid)
        if process is None:
            self.untracked.note(event)
            return
        if process.adopted and self._was_met_after(process, event):
            return
        if process.usage.children is not process.usage:
            process.hand_over()
        process.usage.executions += 1
        if process.ended is not None:
            # Another thread called exec, which ends the first one and takes its place.
            process.ended, process.failed = None, False
            del self._ending[process.tgid]
        previous = process.segments[-1]
        if previous.executed and previous.named_at >= event.time:
            # Its link was read after it had been replaced: that name is the next program's.
            count(process.usage, previous, -1)
            previous.name = None
        # One that was not looked at has ended or been replaced, and its record will name it.
        name, looked = self._links.pop(event, (None, time.monotonic_ns()))
        segment = Segment(name, event.time, executed=True)
        segment.named_at = looked
        if process.expected:
            process.expected = False
            process.split(segment, self.names.proc)
            process.base_cpu = segment.used or 0
            segment.used, segment.io = 0, NOTHING
            process.segments[-1] = segment
        elif event.time - previous.start >= SPLIT_FLOOR or previous.executed:
            process.split(segment, self.names.proc)
            process.segments.append(segment)
        else:
            count(process.usage, previous, -1)
            segment.used, segment.io = previous.used, previous.io
            process.segments[-1] = segment
        count(process.usage, segment)

    def _was_met_after(self, process: Process, event: ProcessEvent) -> bool:
        """Whether a process was met after this exec, and counted then. The kernel tells of an
        exec a moment after the link has changed."""
        first = process.segments[0]
        if event.time < first.start:
            return True
        name, _ = self._links.get(event, (None, 0))
        close = first.executed and event.time < first.named_at + CLOCK_TOLERANCE
        return close and len(process.segments) == 1 and name in (None, first.name)

    def _exit(self, event: ProcessEvent) -> None:
        self._end_thread(event, self._pending_records.pop(event.pid))

    def _end_thread(self, event: ProcessEvent, record: ExitRecord | None) -> None:
        process = self.processes.get(event.tgid)
        if process is None:
            self.untracked.note(event, record)
            return
        if record is not None:
            process.add_thread(record)
        first = event.pid == event.tgid
        if record is None:
            if first:
                process.failed = event.value != 0
                self.lose(event.tgid)
        elif record.tgid:
            # The status is that of the last thread: a first one may end early, or be ended by an
            # exec in another, and the process goes on.
            if record.last_of_group:
                process.failed = event.value != 0
                self._finish(process, record, event.time)
        elif first:
            process.failed = event.value != 0
            process.ended = (record, event.time)
            self._ending[process.tgid] = process

    def _finish(self, process: Process, record: ExitRecord, ended: int) -> None:
        """Book an ended process on what it ran."""
        self._name_by_record(process, record, ended)
        # A record rounds bytes and calls down to multiples of 1,024; a look does not.
        io = InputOutput(*map(max, process.io, process.polled_io))
        process.usage.rounded += 1
        if process.peak > max(NOTABLE_MEMORY, process.usage.memory_peak // 4):
            process.usage.peak_in_doubt = True
        process.book(ended, process.cpu, io, exact=True)
        self._forget(process, record.parent)

    def _name_by_record(self, process: Process, record: ExitRecord, ended: int) -> None:
        """The link names a process as long as it was read in time, else its record does."""
        last = process.segments[-1]
        if last.name is not None:
            if not last.executed:
                return
            if last.named_at < ended:
                self.names.learn(record.executable, last.name)
                return
        found = self.names.by_record(record.executable, record.command)
        if last.name is None:
            last.name = found
        elif found.known and found != last.name:
            # Its number belonged to another process by the time the link was read.
            count(process.usage, last, -1)
            last.name = found
        if not found.known and found.executable is not None:
            self._unresolved.remember(process.usage, found, found.executable)

    def look_for_exec(self, process: Process) -> None:
        """Without events a change of the link is the only sign that a program was replaced."""
        name = self.names.by_link(process.tgid)
        if name is None or same_file(name, process.name):
            return
        segment = Segment(name, time.monotonic_ns(), executed=True)
        segment.used = process.polled_cpu - process.base_cpu
        segment.io = subtract(process.polled_io, process.base_io)
        process.segments.append(segment)
        count(process.usage, segment)

    def lose(self, tgid: int) -> None:
        """Book a process whose end was not told with what the last look at it gave."""
        process = self.processes.get(tgid)
        if process is None:
            return
        if process.ended is not None:
            self._finish(process, *process.ended)
            return
        process.usage.records_lost += 1
        process.book(
            time.monotonic_ns(),
            max(process.polled_cpu, process.cpu),
            process.polled_io,
            exact=False,
        )
        self._forget(process, 0)

    def _forget(self, process: Process, parent: int) -> None:
        del self.processes[process.tgid]
        self._ending.pop(process.tgid, None)
        process.usage.leave(process)
        if process.live is not None:
            process.live.close()
        mother = self.processes.get(parent)
        if mother is not None:
            mother.had_children = True


def _nothing() -> None:
    pass


LIMIT: Final = 200_000


class PendingExitRecords:
    """Records by thread, in the order of their coming: a number may be given twice."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[ExitRecord]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, record: ExitRecord) -> None:
        waiting = self._waiting.get(record.pid)
        if waiting is None:
            waiting = self._waiting[record.pid] = deque()
        waiting.append(record)
        self._count += 1
        if self._count > LIMIT:
            # Their exit events were lost in an overrun; the processes are found missing later.
            self._waiting.clear()
            self._count = 0

    def pop(self, tid: int) -> ExitRecord | None:
        waiting = self._waiting.get(tid)
        if waiting is None:
            return None
        record = waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._waiting[tid]
        return record


_UNRESOLVED_LIMIT: Final = 1_000


class UnresolvedExecutables:
    """Which books hold rows under a command's name, by device and inode of the file."""

    def __init__(self, names: ExecutableNames) -> None:
        self._names = names
        self._waiting: dict[
            tuple[int, int], list[tuple[weakref.ref[JobUsage], ExecutableName]]
        ] = {}

    def remember(self, usage: JobUsage, name: ExecutableName, executable: tuple[int, int]) -> None:
        """A row is about to be booked under a command's name alone."""
        if name in usage.executables:
            return
        self._waiting.setdefault(executable, []).append((weakref.ref(usage), name))
        if len(self._waiting) > _UNRESOLVED_LIMIT:
            del self._waiting[next(iter(self._waiting))]

    def resolve(self) -> None:
        """Rename what can be named by now."""
        for executable in list(self._waiting):
            path = self._names.of_inode(executable)
            if path is None:
                continue
            for book, name in self._waiting.pop(executable):
                usage = book()
                if usage is not None:
                    usage.rename(name, ExecutableName(path, known=True))


#: How long a process may be at work before the agent finds it in a job's directory.
MEMORY: Final = 2_000_000_000
_UNTRACKED_LIMIT: Final = 20_000

#: Running number, event, and the record that came with an exit.
Remembered = tuple[int, ProcessEvent, ExitRecord | None]


class UntrackedProcesses:
    """The latest events of processes that nobody follows, by process."""

    def __init__(self, memory: int = MEMORY, limit: int = _UNTRACKED_LIMIT) -> None:
        self._memory = memory
        self._limit = limit
        self._number = 0
        self._lives: dict[int, deque[Remembered]] = {}
        #: In order of time, for forgetting.
        self._order: deque[tuple[int, int, int]] = deque()
        self._births: dict[int, ProcessEvent] = {}

    def __len__(self) -> int:
        return len(self._order)

    def note(self, event: ProcessEvent, record: ExitRecord | None = None) -> None:
        self._number += 1
        self._lives.setdefault(event.tgid, deque()).append((self._number, event, record))
        self._order.append((event.time, self._number, event.tgid))
        if event.what == FORK:
            self._births[event.value] = event
        self._forget(event.time - self._memory)

    def _forget(self, before: int) -> None:
        order = self._order
        while order and (order[0][0] < before or len(order) > self._limit):
            _, number, tgid = order.popleft()
            life = self._lives.get(tgid)
            if life is None or life[0][0] != number:
                # It was taken out meanwhile.
                continue
            event = life.popleft()[1]
            if event.what == FORK and self._births.get(event.value) is event:
                del self._births[event.value]
            if not life:
                del self._lives[tgid]

    def birth(self, pid: int) -> ProcessEvent | None:
        """The fork that made a process, where it is remembered."""
        return self._births.get(pid)

    def take(self, pid: int, *, ended: bool = False) -> list[Remembered]:
        """What a process and its descendants did, in the kernel's order; told only once.

        The process is alive unless ``ended``, so an end of that number was its predecessor's.
        """
        taken: list[Remembered] = []
        birth = self._births.pop(pid, None)
        for item in self._lives.pop(pid, ()):
            event = item[1]
            if birth is not None and event.time < birth.time:
                continue
            if event.what == EXIT and event.pid == pid and not ended and birth is None:
                taken.clear()
                continue
            taken.append(item)
            if event.what == FORK and event.value != pid:
                taken += self.take(event.value, ended=True)
        return sorted(taken, key=_by_number)

    def clear(self) -> None:
        self._lives.clear()
        self._order.clear()
        self._births.clear()


def _by_number(item: Remembered) -> int:
    return item[0]
