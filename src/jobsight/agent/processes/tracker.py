"""Follows the processes of jobs through the kernel's events.

A process belongs to the job of its parent. When it ends, the exit records of its threads are added
to the executable that it ran; a process that called exec is divided at the exec.

The two event sockets have no common order. An exit record is therefore kept
(:class:`PendingExitRecords`) until the exit event of its thread arrives on the process connector:
by then every earlier event of that thread has been applied. Events of processes that belong to no
job are kept for a moment (:class:`UntrackedProcesses`), because the first processes of a job run
before its cgroups can be listed. Executables that could not be named when they ended are renamed
once their path is known (:class:`UnresolvedExecutables`).
"""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Final, NamedTuple

from jobsight.agent.processes.executables import (
    REPLACED,
    ExecutableName,
    ExecutableNames,
    FileId,
    same_file,
    without_script,
)
from jobsight.agent.processes.netlink import EXEC, EXIT, FORK, ExitRecord, ProcessEvent
from jobsight.agent.processes.proc_reader import ProcessReader
from jobsight.agent.processes.process import (
    MAX_SEGMENTS,
    OTHER_PROGRAMS,
    JobUsage,
    Process,
    Segment,
    count,
)
from jobsight.agent.processes.procfs import NO_IO, IoCounters, OpenProcess, real_uid, subtract_io

#: Work between a fork and an exec that took less than this is attributed to the new executable;
#: after more, the time before the exec gets a segment of its own.
MIN_SEGMENT: Final = 10_000_000
#: Older kernels do not mark the record of the last thread. A process is recorded this long after
#: the exit of its first thread: the other threads end at the same time or soon after.
LEADER_EXIT_DELAY: Final = 100_000_000
#: More live processes than the jobs of a node have, of some 2 KiB each; those of a fork bomb beyond
#: it are not tracked. Every job may have some, whatever the others have.
MAX_PROCESSES: Final = 16_384
GUARANTEED_PROCESSES: Final = 256
#: The end of a smaller process does not make the memory peak of its job worth another reading.
LARGE_PROCESS: Final = 16 * 2**20
#: The kernel sends a fork or exec event up to this long after its effect is visible in /proc: it
#: may preempt the process in between, and on a busy node for some time slices of others.
CLOCK_TOLERANCE: Final = 50_000_000
#: How long a process may run before the agent finds it in the cgroups of a job.
HISTORY_AGE: Final = 2_000_000_000
#: An event and its exit record take some 1 KiB.
MAX_HISTORY_EVENTS: Final = 10_000
MAX_PENDING_RECORDS: Final = 40_000
#: Ended processes, for how long and how many, whose threads may still have exit records to come.
LATE_THREAD_AGE: Final = 5_000_000_000
MAX_ENDED: Final = 1_000
MAX_UNRESOLVED: Final = 1_000
#: Executables of live processes whose device and inode wait for the events that confirm them.
MAX_CANDIDATES: Final = 1_000
#: Seconds to wait for the programs in the standard directories when a job ends.
STANDARD_PROGRAMS_TIMEOUT: Final = 0.5
#: The file name of Slurm's daemon; Debian appends "-wlm".
DAEMON_FILE: Final = b"slurmstepd"
#: A node has one; several versions run next to each other during an upgrade.
MAX_DAEMON_PATHS: Final = 16


def _nothing() -> None:
    pass


class ProcessTracker:
    """Applies events and exit records to the processes of all jobs on the node."""

    def __init__(self, names: ExecutableNames) -> None:
        self.names = names
        #: Where slurmstepd is, as its processes of root have shown.
        self.daemon_paths: set[bytes] = set()
        #: Reads whatever the kernel may hold back, for each job by its account.
        self.reader = ProcessReader()
        #: The live processes of all jobs by PID.
        self.processes: dict[int, Process] = {}
        self.untracked = UntrackedProcesses()
        #: Applies all events that the kernel has queued so far.
        self.catch_up: Callable[[], None] = _nothing
        #: How often events were lost. After each loss the cgroups are listed again.
        self.losses = 0
        #: Ends of processes to remember, by PID: the time of the exit event, on the monotonic
        #: clock.
        self.exit_times: dict[int, int | None] = {}
        self._pending_records = PendingExitRecords()
        self._unresolved = UnresolvedExecutables(names)
        #: Processes with a ``leader_exit``.
        self._exiting: dict[int, Process] = {}
        #: Processes that have ended, and when they were recorded, the oldest first.
        self._ended: dict[int, tuple[Process, int]] = {}
        #: For exec events of the current drain: the executable, and when it was read.
        self._links: dict[ProcessEvent, tuple[ExecutableName | None, int]] = {}
        #: Executables that are new to their job, until the end of the current drain.
        self._new_executables: list[_NewExecutable] = []
        self._candidates: list[_Candidate] = []

    def apply(self, events: Iterable[ProcessEvent], records: Iterable[ExitRecord]) -> None:
        """Apply what both sockets delivered. The records must be drained after the events, and
        ``losses`` must include what was lost before them."""
        events = list(events)
        candidates, self._candidates = self._candidates, []
        self._read_links(events)
        for record in records:
            self._pending_records.add(record)
        for event in events:
            if event.what == FORK:
                self._fork(event)
            elif event.what == EXEC:
                self._exec(event)
            elif event.what == EXIT:
                self._exit(event, self._pending_records.pop(event.pid))
        if self._exiting:
            self._finish_delayed(time.monotonic_ns() - LEADER_EXIT_DELAY)
        self._forget_ended()
        for candidate in candidates:
            self._confirm(candidate)
        self._query_new()
        self._unresolved.resolve()

    def settle(self) -> None:
        """Add the last threads, and name what can still be named, before the last figures of a job
        are sent."""
        # The kernel writes the record of a thread before its process can be waited for, and the
        # event after that.
        for record in self._pending_records.pop_threads(self._ended):
            self._ended[record.tgid][0].add_late_thread(record, time.monotonic_ns())
        if self._unresolved:
            self.names.standard.wait(STANDARD_PROGRAMS_TIMEOUT)
            self._unresolved.resolve()

    def clear(self) -> None:
        """Forget processes of no job: the event sockets are closed, and PIDs will be reused
        unnoticed."""
        self.untracked.clear()
        self._ended.clear()

    def _forget_ended(self) -> None:
        before = time.monotonic_ns() - LATE_THREAD_AGE
        while self._ended:
            tgid, (_, recorded) = next(iter(self._ended.items()))
            if recorded >= before and len(self._ended) <= MAX_ENDED:
                break
            del self._ended[tgid]

    def _read_links(self, events: list[ProcessEvent]) -> None:
        """Read the links of processes that may still be alive, the newest first: a program of a
        millisecond has ended by the time all earlier events are applied."""
        self._links.clear()
        #: The job of each child whose fork event is not applied yet.
        children: dict[int, JobUsage] = {}
        alive: dict[int, tuple[ProcessEvent, JobUsage]] = {}
        for event in events:
            if event.what == EXIT:
                if event.pid == event.tgid:
                    alive.pop(event.tgid, None)
                continue
            process = self.processes.get(event.tgid)
            job = process.usage.children if process is not None else children.get(event.tgid)
            if job is None:
                continue
            if event.what == EXEC:
                alive[event.tgid] = event, job
            else:
                children[event.value] = job
        by_job: dict[JobUsage, list[ProcessEvent]] = {}
        for event, job in reversed(alive.values()):
            by_job.setdefault(job, []).append(event)
        for job, executed in by_job.items():
            links = self.reader.read(job, self._read_link, executed)
            for event, link in zip(executed, links, strict=True):
                # One that is held back is named by its exit record.
                self._links[event] = link or (
                    self.names.by_command(event.tgid),
                    time.monotonic_ns(),
                )

    def _read_link(self, event: ProcessEvent) -> tuple[ExecutableName | None, int]:
        return self.names.by_link(event.tgid), time.monotonic_ns()

    def _name(self, usage: JobUsage, pid: int) -> ExecutableName | None:
        """The name of one process by its link."""
        found = self.reader.read_one(usage.children, lambda pid: (self.names.by_link(pid),), pid)
        return found[0] if found is not None else self.names.by_command(pid)

    def _fork(self, event: ProcessEvent) -> None:
        child = event.value
        self._ended.pop(child, None)
        known = self.processes.get(child)
        if known is not None:
            if known.segments[0].start + (CLOCK_TOLERANCE if known.adopted else 0) >= event.time:
                # It was found in the cgroup before its fork event was applied.
                return
            # The PID was reused, so the exit event of the previous process was lost.
            self.finish_lost(child)
        parent = self.processes.get(event.tgid)
        if parent is None:
            self.untracked.add(event)
            return
        usage = parent.usage.children
        if len(self.processes) >= MAX_PROCESSES and len(usage.members) >= GUARANTEED_PROCESSES:
            # Its CPU time is in the job's counter, and the loss is part of the coverage.
            usage.records_lost += 1
            return
        # A child of slurmstepd belongs to the job from its exec on.
        awaits_exec = usage is not parent.usage
        segment = Segment(None if awaits_exec else parent.name, event.time, executed=False)
        self._track(Process(child, usage, segment, parent.step)).awaits_exec = awaits_exec
        count(usage, segment)

    def _exec(self, event: ProcessEvent) -> None:
        process = self.processes.get(event.tgid)
        if process is None:
            self.untracked.add(event)
            return
        if process.adopted and self._was_adopted_after(process, event):
            return
        if process.usage.children is not process.usage:
            process.move_to_job()
        process.usage.executions += 1
        if process.leader_exit is not None:
            # Another thread called exec, which ended the first thread and took over its PID.
            process.leader_exit, process.failed = None, False
            del self._exiting[process.tgid]
        previous = process.segments[-1]
        # Without a link the process has ended or called exec again; its exit record names it.
        name, named_at = self._links.pop(event, (None, time.monotonic_ns()))
        late = event.time - previous.named_at
        if previous.executed and (late <= 0 or (late < CLOCK_TOLERANCE and name == previous.name)):
            # The link was read after this exec, or so shortly before its event that it may have
            # changed already: the name is not that of the previous executable.
            count(process.usage, previous, -1)
            previous.name = None
        segment = Segment(name, event.time, executed=True)
        segment.named_at = named_at
        segment.losses = self.losses
        if name is not None and name.known and not process.usage.has_row(name):
            self._new_executables.append(_NewExecutable(process, segment, name))
        if process.awaits_exec:
            process.awaits_exec = False
            process.measure_exec(segment, self.names.proc)
            process.base_cpu = segment.cpu_before or 0
            segment.cpu_before, segment.io_before = 0, NO_IO
            process.segments[-1] = segment
        elif len(process.segments) >= MAX_SEGMENTS:
            # What the previous executable used is attributed to this one.
            process.usage.folded += 1
            previous.name = previous.name or REPLACED
            count(process.usage, previous)
            segment.cpu_before, segment.io_before = previous.cpu_before, previous.io_before
            process.segments[-1] = segment
        elif event.time - previous.start >= MIN_SEGMENT or previous.executed:
            process.measure_exec(segment, self.names.proc)
            process.segments.append(segment)
        else:
            count(process.usage, previous, -1)
            segment.cpu_before, segment.io_before = previous.cpu_before, previous.io_before
            process.segments[-1] = segment
        count(process.usage, segment)

    def _was_adopted_after(self, process: Process, event: ProcessEvent) -> bool:
        """Whether a process was adopted, and its executable counted, after this exec. The kernel
        sends the event a moment after the link has changed."""
        first = process.segments[0]
        if event.time < first.start:
            return True
        name, _ = self._links.get(event, (None, 0))
        close = first.executed and event.time < first.named_at + CLOCK_TOLERANCE
        same = name in (None, first.name) or first.name is OTHER_PROGRAMS
        return close and len(process.segments) == 1 and same

    def _query_new(self) -> None:
        """Determine device and inode of the executables that are new to their job, while their
        processes are alive: others of the same file may end before their link is read."""
        if not self._new_executables:
            return
        by_job: dict[JobUsage, list[_NewExecutable]] = {}
        for new in self._new_executables:
            by_job.setdefault(new.process.usage.children, []).append(new)
        self._new_executables = []
        for job, executables in by_job.items():
            wanted = executables[: max(0, MAX_CANDIDATES - len(self._candidates))]
            found = self.reader.read(job, self._query, wanted)
            for (process, segment, _), file in zip(wanted, found, strict=True):
                if file is not None:
                    self._candidates.append(_Candidate(process, segment, *file))

    def _query(self, new: _NewExecutable) -> tuple[FileId, int] | None:
        return self.names.query(new.process.tgid, new.name)

    def _confirm(self, candidate: _Candidate) -> None:
        """Learn what was determined before the last drain, unless the process has called exec
        since: the inode may then be that of another executable than the name."""
        process, segment, executable, uid = candidate
        if process.segments[-1] is segment:
            self._learn(process.usage, segment, executable, uid)

    def _learn(
        self, usage: JobUsage, segment: Segment, executable: FileId | None, uid: int
    ) -> None:
        """Learn the path of a file from a process whose link was read.

        Other jobs learn it only if every exec of the process is known: a name that was read before
        an exec does not belong to the file that is executed now.
        """
        name = segment.name
        if name is None or not name.known or executable is None:
            return
        if not name.own_namespace:
            if segment.losses == self.losses:
                self.names.learn(executable, without_script(name).path, uid)
        elif self.names.path_of(executable, uid) == without_script(name).path:
            # The path leads to the same file on the node.
            count(usage, segment, -1)
            segment.name = name._replace(own_namespace=False)
            count(usage, segment)
        usage.learn(executable, without_script(segment.name or name))
        self._unresolved.resolve_in(usage, executable)

    def _exit(self, event: ProcessEvent, record: ExitRecord | None) -> None:
        process = self.processes.get(event.tgid)
        if event.pid in self.exit_times:
            self.exit_times[event.pid] = event.time
        if process is None:
            if event.tgid in self._ended and record is not None:
                # The kernel decides which thread is the last before it writes the records, and
                # another one may be held up in between.
                self._ended[event.tgid][0].add_late_thread(record, event.time)
            else:
                self.untracked.add(event, record)
            return
        is_leader = event.pid == event.tgid
        if event.value & 0x7F == signal.SIGKILL:
            # Possibly for memory; the cgroup that counts it may be removed soon.
            process.usage.peak_outdated = True
        if record is None:
            if is_leader:
                process.failed = event.value != 0
                self.finish_lost(event.tgid)
            return
        process.add_thread(record)
        if record.tgid:
            # The status is that of the last thread. The first one may end early, or be ended by
            # an exec in another thread, and the process continues.
            if record.last_of_group:
                process.failed = event.value != 0
                self._finish(process, record, event.time)
        elif is_leader:
            process.failed = event.value != 0
            process.leader_exit = (record, event.time)
            self._exiting[process.tgid] = process

    def _finish_delayed(self, before: int) -> None:
        """Record the processes of an older kernel whose first thread exited before a time."""
        for process in list(self._exiting.values()):
            if process.leader_exit is not None and process.leader_exit[1] <= before:
                self._finish(process, *process.leader_exit)

    def _finish(self, process: Process, record: ExitRecord, ended: int) -> None:
        """Record an ended process by its exit records."""
        if process.awaits_exec:
            # It was part of the launcher to its end.
            self._remove(process, record.parent)
            return
        self._name_by_record(process, record, ended)
        # A record rounds bytes and calls down to multiples of 1,024; a polled value does not.
        io = IoCounters(*map(max, process.exited_io, process.polled_io))
        process.usage.rounded_records += 1
        if process.exited_peak > max(LARGE_PROCESS, process.usage.memory_peak // 4):
            process.usage.peak_outdated = True
        process.record_usage(ended, process.exited_cpu, io, exact=True)
        self._remove(process, record.parent)
        self._ended[process.tgid] = process, time.monotonic_ns()

    def _name_by_record(self, process: Process, record: ExitRecord, ended: int) -> None:
        """Name the last executable: by its link if that was read in time, else by its record."""
        last = process.segments[-1]
        if last.name is not None:
            if not last.executed:
                return
            is_command = not last.name.known and last.name != OTHER_PROGRAMS
            if last.named_at < ended and not is_command:
                self._learn(process.usage, last, record.executable, record.uid)
                return
        name = self._name_of(process.usage, record)
        if last.name is None:
            last.name = name
        elif (name.known or not last.name.known) and name != last.name:
            # The PID belonged to another process by the time the link was read, or the kernel held
            # back its link.
            count(process.usage, last, -1)
            last.name = name
        if not name.known and name.executable is not None:
            self._unresolved.add(process.usage, name, name.executable, record.uid)

    def _name_of(self, usage: JobUsage, record: ExitRecord) -> ExecutableName:
        """Name an ended process by what its job has shown about the file, then by what is known of
        it on the node, then by its command."""
        executable = record.executable
        if executable is not None:
            name = usage.files.get(executable)
            if name is not None:
                return name
            path = self.names.path_of(executable, record.uid)
            if path is not None:
                return ExecutableName(path, known=True)
        return ExecutableName(record.command, known=False, executable=executable)

    def finish_lost(self, tgid: int) -> None:
        """Record a process without exit record by its last polled values."""
        process = self.processes.get(tgid)
        if process is None:
            return
        if process.leader_exit is not None:
            self._finish(process, *process.leader_exit)
            return
        process.usage.records_lost += 1
        process.record_usage(
            time.monotonic_ns(),
            max(process.polled_cpu, process.exited_cpu),
            process.polled_io,
            exact=False,
        )
        self._remove(process, 0)

    def _remove(self, process: Process, parent_pid: int) -> None:
        del self.processes[process.tgid]
        self._exiting.pop(process.tgid, None)
        process.usage.leave(process)
        if process.live is not None:
            process.live.close()
        parent = self.processes.get(parent_pid)
        if parent is not None:
            parent.had_children = True

    def _track(self, process: Process) -> Process:
        self.processes[process.tgid] = process
        process.usage.join(process)
        return process

    def expect_exec(self, live: OpenProcess, usage: JobUsage) -> Process:
        """Track a process that is about to execute a job's command."""
        segment = Segment(None, time.monotonic_ns(), executed=False)
        process = self._track(Process(live.pid, usage, segment))
        process.live = live
        process.awaits_exec = True
        return process

    def adopt(
        self,
        live: OpenProcess,
        usage: JobUsage,
        *,
        step: str = "",
        new: bool = False,
        daemon_since: int | None = None,
    ) -> Process:
        """Track a process that was found alive. A new one counts as an execution, unless it runs
        the same executable as its parent and is most likely a fork.

        A process that was part of slurmstepd at the time ``daemon_since`` may be a child of it
        that has executed the user's program since.
        """
        process = self._adopt_from_fork(live.pid, usage, step) if daemon_since is None else None
        if process is None:
            found = time.monotonic_ns()
            name = self._name(usage, live.pid)
            executed = (
                new and daemon_since is None and not self._runs_program_of_parent(live, usage, name)
            )
            is_daemon = self._is_daemon(live.pid, name)
            awaits_exec = usage.children is usage and is_daemon
            if awaits_exec:
                name, executed = None, False
            segment = Segment(name, daemon_since or found, executed=executed)
            segment.named_at = time.monotonic_ns()
            process = self._track(Process(live.pid, usage, segment, step))
            process.adopted, process.awaits_exec = not awaits_exec, awaits_exec
            usage.executions += executed
            if name is not None and name.known and not usage.has_row(name):
                self._new_executables.append(_NewExecutable(process, segment, name))
                self._query_new()
            count(usage, segment)
        process.live = live
        self._replay(self.untracked.pop(live.pid))
        return process

    def _runs_program_of_parent(
        self, live: OpenProcess, usage: JobUsage, name: ExecutableName | None
    ) -> bool:
        parent = self.reader.read_one(usage.children, lambda live: live.parent(), live)
        # The parent of a job's first process may be this one, and run the same interpreter.
        if parent is None or parent == os.getpid():
            return False
        return name == self._name(usage, parent)

    def _is_daemon(self, pid: int, name: ExecutableName | None) -> bool:
        """Whether a process is slurmstepd, or a child of it that has not executed its program. The
        child may have become the user already, who may call any program so: it has the path of a
        daemon that runs as root."""
        if name is None or not os.path.basename(name.path).startswith(DAEMON_FILE):
            return False
        if not name.own_namespace and name.path in self.daemon_paths:
            return True
        is_root = real_uid(self.names.proc, pid) == 0
        if is_root and name.known and len(self.daemon_paths) < MAX_DAEMON_PATHS:
            self.daemon_paths.add(name.path)
        return is_root

    def adopt_exited(
        self, pid: int, usage: JobUsage, step: str, daemon_since: int | None = None
    ) -> None:
        """Record a process that was listed in a job's cgroup and has ended since, if its events
        are known."""
        if pid in self.processes or self.untracked.fork_of(pid) is None:
            return
        if daemon_since is None:
            self._adopt_from_fork(pid, usage, step)
        else:
            segment = Segment(None, daemon_since, executed=False)
            self._track(Process(pid, usage, segment, step)).adopted = True
        self._replay(self.untracked.pop(pid, ended=True))

    def _adopt_from_fork(self, pid: int, usage: JobUsage, step: str) -> Process | None:
        """Track a process from its fork on; None if its fork event is not known."""
        fork = self.untracked.fork_of(pid)
        if fork is None:
            return None
        parent = self.processes.get(fork.tgid)
        awaits_exec = parent is not None and parent.usage.children is not parent.usage
        name = None
        if not awaits_exec and usage.children is usage:
            name = parent.name if parent is not None else self._name(usage, fork.tgid)
            if self._is_daemon(fork.tgid, name):
                # Its parent is a slurmstepd that is not tracked.
                name, awaits_exec = None, True
        segment = Segment(name, fork.time, executed=False)
        process = self._track(Process(pid, usage, segment, step))
        process.awaits_exec = awaits_exec
        count(usage, segment)
        return process

    def _replay(self, history: list[HistoryItem]) -> None:
        """Apply earlier events of processes that turned out to belong to a job."""
        if not history:
            return
        self._read_links([event for _, event, _ in history])
        for _, event, record in history:
            if event.what == FORK:
                self._fork(event)
            elif event.what == EXEC:
                self._exec(event)
            else:
                self._exit(event, record)

    def detect_exec(self, process: Process, name: ExecutableName | None) -> None:
        """Without events, only a changed link shows that a process called exec."""
        if name is None or same_file(name, process.name) or process.name is OTHER_PROGRAMS:
            return
        if process.awaits_exec and self._is_daemon(process.tgid, name):
            return
        segment = Segment(name, time.monotonic_ns(), executed=True)
        segment.cpu_before = process.polled_cpu - process.base_cpu
        segment.io_before = subtract_io(process.polled_io, process.base_io)
        if process.awaits_exec:
            process.awaits_exec = False
            segment.cpu_before, segment.io_before = 0, NO_IO
            process.segments[-1] = segment
        elif len(process.segments) >= MAX_SEGMENTS:
            process.usage.folded += 1
            segment.cpu_before = process.segments[-1].cpu_before
            segment.io_before = process.segments[-1].io_before
            process.segments[-1] = segment
        else:
            process.segments.append(segment)
        count(process.usage, segment)


class _NewExecutable(NamedTuple):
    """An executable that its job has not run before, and the name that was read."""

    process: Process
    segment: Segment
    name: ExecutableName


class _Candidate(NamedTuple):
    """Device and inode of the executable of a live process, and its user."""

    process: Process
    segment: Segment
    executable: FileId
    uid: int


class PendingExitRecords:
    """Exit records whose exit event has not arrived, by thread id. A thread id may be reused, so
    each has a queue."""

    def __init__(self) -> None:
        self._records: dict[int, deque[ExitRecord]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, record: ExitRecord) -> None:
        queue = self._records.get(record.pid)
        if queue is None:
            queue = self._records[record.pid] = deque()
        queue.append(record)
        self._count += 1
        if self._count > MAX_PENDING_RECORDS:
            # Their exit events were lost. The processes are found missing in the cgroup later.
            self._records.clear()
            self._count = 0

    def pop(self, tid: int) -> ExitRecord | None:
        """The oldest record of a thread id; None if there is none."""
        queue = self._records.get(tid)
        if queue is None:
            return None
        record = queue.popleft()
        self._count -= 1
        if not queue:
            del self._records[tid]
        return record

    def pop_threads(self, tgids: Container[int]) -> list[ExitRecord]:
        """The records of the threads of some processes."""
        found = [
            record for queue in self._records.values() for record in queue if record.tgid in tgids
        ]
        for record in found:
            self._records[record.pid].remove(record)
            self._count -= 1
            if not self._records[record.pid]:
                del self._records[record.pid]
        return found


class UnresolvedExecutables:
    """Rows under a mere command name, by device and inode of the executable."""

    def __init__(self, names: ExecutableNames) -> None:
        self._names = names
        self._rows: dict[FileId, list[_UnresolvedRow]] = {}
        self._count = 0
        self._version = names.version

    def __len__(self) -> int:
        return self._count

    def add(self, usage: JobUsage, name: ExecutableName, executable: FileId, uid: int) -> None:
        if usage.has_row(name):
            return
        self._rows.setdefault(executable, []).append(_UnresolvedRow(weakref.ref(usage), name, uid))
        self._count += 1
        if self._count > MAX_UNRESOLVED:
            self._count -= len(self._rows.pop(next(iter(self._rows))))

    def resolve(self) -> None:
        """Rename the rows whose path is known by now."""
        version = self._names.version
        if version == self._version or not self._rows:
            return
        self._version = version
        for executable in list(self._rows):
            self._resolve(executable, None)

    def resolve_in(self, usage: JobUsage, executable: FileId) -> None:
        """Rename the rows of one job whose path the job has shown."""
        if executable in self._rows:
            self._resolve(executable, usage)

    def _resolve(self, executable: FileId, shown_by: JobUsage | None) -> None:
        rows = self._rows.pop(executable)
        left: list[_UnresolvedRow] = []
        for row in rows:
            usage = row.usage()
            if usage is None:
                continue
            name = usage.files.get(executable) if usage is shown_by else None
            if name is None:
                path = self._names.path_of(executable, row.uid)
                name = ExecutableName(path, known=True) if path is not None else None
            if name is None:
                left.append(row)
            else:
                usage.rename(row.name, name)
        self._count -= len(rows) - len(left)
        if left:
            self._rows[executable] = left


class _UnresolvedRow(NamedTuple):
    usage: weakref.ref[JobUsage]
    name: ExecutableName
    uid: int


#: Serial number, event, and the exit record that belongs to an exit event.
HistoryItem = tuple[int, ProcessEvent, ExitRecord | None]


class UntrackedProcesses:
    """Recent events of processes that belong to no job yet, by PID."""

    def __init__(self, max_age: int = HISTORY_AGE, max_events: int = MAX_HISTORY_EVENTS) -> None:
        self._max_age = max_age
        self._max_events = max_events
        self._serial = 0
        self._histories: dict[int, deque[HistoryItem]] = {}
        #: Time, serial number and PID of each event, the oldest first.
        self._order: deque[tuple[int, int, int]] = deque()
        #: The fork event of each child.
        self._forks: dict[int, ProcessEvent] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, event: ProcessEvent, record: ExitRecord | None = None) -> None:
        self._serial += 1
        self._histories.setdefault(event.tgid, deque()).append((self._serial, event, record))
        self._order.append((event.time, self._serial, event.tgid))
        if event.what == FORK:
            self._forks[event.value] = event
        self._expire(event.time - self._max_age)

    def _expire(self, before: int) -> None:
        order = self._order
        while order and (order[0][0] < before or len(order) > self._max_events):
            _, serial, tgid = order.popleft()
            history = self._histories.get(tgid)
            if history is None or history[0][0] != serial:
                # pop() has removed it.
                continue
            event = history.popleft()[1]
            if event.what == FORK and self._forks.get(event.value) is event:
                del self._forks[event.value]
            if not history:
                del self._histories[tgid]

    def fork_of(self, pid: int) -> ProcessEvent | None:
        """The fork event of a process; None if it is not known."""
        return self._forks.get(pid)

    def pop(self, pid: int, *, ended: bool = False) -> list[HistoryItem]:
        """Remove and return the events of a process and its descendants, in the kernel's order.

        Unless ``ended``, the process is alive, and an exit event of its PID is that of an earlier
        process.
        """
        items: list[HistoryItem] = []
        fork = self._forks.pop(pid, None)
        for item in self._histories.pop(pid, ()):
            event = item[1]
            if fork is not None and event.time < fork.time:
                continue
            if event.what == EXIT and event.pid == pid and not ended and fork is None:
                items.clear()
                continue
            items.append(item)
            if event.what == FORK and event.value != pid:
                items += self.pop(event.value, ended=True)
        return sorted(items, key=_serial_number)

    def clear(self) -> None:
        """Forget all: the event sockets are closed, and PIDs will be reused unnoticed."""
        self._histories.clear()
        self._order.clear()
        self._forks.clear()


def _serial_number(item: HistoryItem) -> int:
    return item[0]
