"""Runs a command as a job on this machine, without a scheduler, under the agent's own engine.

What a job that we start ourselves was asked to be, and how it ended.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from jobsight.agent.collector import Collector, boot_id
from jobsight.agent.job import DEFAULT_INTERVALS, FollowedJob
from jobsight.agent.launch.cgroup import KILL_WAIT, OwnCgroup, make_cgroup, sweep
from jobsight.agent.launch.child import ChildProcess, become_subreaper
from jobsight.agent.probes.cgroup import CgroupProbe
from jobsight.agent.probes.process_tree import REASON, ProcessTreeProbe
from jobsight.agent.processes.procfs import Gone, OpenProcess
from jobsight.errors import CommandError
from jobsight.model import JobInfo, Run, Sighting

#: Handed on to the command. Those of the terminal reach it by themselves.
_HANDED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGALRM,
)
_WATCHED: Final = {*_HANDED_ON, signal.SIGCHLD}
#: Where a thread of some library took the signal of the command's end, it is found after this.
_LOOK_EVERY: Final = 1.0
#: The terminal sends a signal to the whole group; the kernel peaks it so.
_FROM_KERNEL: Final = 0x80
#: Polling the tree is the only way to see short programs without privileges, so it is dense.
_TREE_INTERVALS: Final = ((60, 0.1), (3600, 1.0), (None, 10.0))


class Launcher:
    """One job from its first process to the last word about it in the spool."""

    def __init__(self, request: RunRequest, collector: Collector) -> None:
        self.request = request
        self.collector = collector
        self._own: OwnCgroup | None = None
        self._tree: ProcessTreeProbe | None = None
        self._pid = 0
        self._status: int | None = None
        self._cancelled = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._limits = (0, 0)

    def run(self) -> Outcome:
        """Start the command, follow it to its end and write its last batch."""
        if not self.request.arguments or not self.request.arguments[0]:
            raise CommandError(
                "no command was given; right: jobsight run -- COMMAND ARGUMENT...", 2
            )
        self._refuse_too_many_cpus()
        become_subreaper()
        sweep()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        self._handlers = {number: signal.signal(number, self._stray) for number in _HANDED_ON}
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Two descriptors are kept for each process of the job.
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[1], self._limits[1]))
        self._own = make_cgroup(f"jobsight-{self.request.job_id}-{os.getpid()}")
        try:
            return self._run({signal.Signals(number) for number in before})
        finally:
            if self._own is not None:
                self._own.remove()
            while signal.sigtimedwait(_WATCHED, 0) is not None:
                # Meant for a command that had ended; it must not end us before its last batch.
                pass
            self._restore()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _stray(self, number: int, _frame: object) -> None:
        """A signal while nobody waits for one: some library's thread, which does not block it,
        took it, and without this it would end us with the job still running."""
        self._hand_on(number)

    def _restore(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _refuse_too_many_cpus(self) -> None:
        given = len(os.sched_getaffinity(0))
        if self.request.cpus is not None and self.request.cpus > given:
            raise CommandError(
                f"--cpus {self.request.cpus}: this machine gives {given}; ask for {given} or fewer",
                2,
            )

    def _run(self, mask: set[signal.Signals]) -> Outcome:
        if self._own is not None and self.request.memory is not None:
            self._own.limit_memory(self.request.memory)
        # What a job writes names the run it belongs to, so its start is fixed before it starts.
        start = time.time_ns()
        run = Run(self.collector.cluster, self.request.job_id, start)
        command = ChildProcess(
            self.request.arguments,
            environment={**os.environ, "JOBSIGHT_JOB": str(run)},
            before=self._enter,
            signal_mask=mask,
        )
        self._pid = command.pid
        try:
            job = self._follow(command.pid, start)
        except BaseException:
            command.abandon()
            raise
        self.collector.add_info(self._info(start))
        thread = threading.Thread(target=self.collector.run, name="collector", daemon=True)
        try:
            command.start()
        except CommandError:
            self.collector.jobs.remove(job)
            raise
        thread.start()
        self._wait_for(command.pid)
        end = time.time_ns()
        left = self._end_left_overs()
        self.collector.stop()
        thread.join()
        outcome = self._outcome(run, left, job)
        self._finish(job, end, outcome)
        return outcome

    def _enter(self) -> None:
        """In the child: take the CPUs asked for and step into the cgroup, as the last thing."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        for number, handler in self._handlers.items():
            # What was ignored stays ignored (nohup); Python's own handler is none of the command's.
            ignored = handler == signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        if self.request.cpus is not None:
            given = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, given[: self.request.cpus])
        if self._own is not None:
            self._own.enter()

    def _follow(self, pid: int, start: int) -> FollowedJob:
        found = shutil.which(self.request.arguments[0])
        if found is not None:
            # Whatever it does in its first moments, the command itself has a name.
            self.collector.tracker.names.look_at(os.fsencode(found))
        events = self.collector.open_events()
        intervals = DEFAULT_INTERVALS
        probe: CgroupProbe | ProcessTreeProbe
        if self._own is not None:
            probe = CgroupProbe(
                self._own.cgroup,
                self.collector.tracker,
                events=events,
                reason=f"split by polling; {self.collector.events_reason}",
            )
            if events:
                try:
                    self.collector.tracker.expect(OpenProcess(b"/proc", pid), probe.usage)
                except Gone:
                    raise CommandError("the process of the job was ended before it began") from None
        else:
            probe = self._tree = ProcessTreeProbe(pid, REASON)
            probe.tracker.names.scripts = self.collector.tracker.names.scripts
            intervals = _TREE_INTERVALS
        sighting = Sighting(
            cluster=self.collector.cluster,
            job_id=self.request.job_id,
            node=self.collector.node,
            boot_id=boot_id(),
            birth=start,
        )
        job = FollowedJob(sighting, probe, self.collector.epoch, intervals)
        self.collector.follow(job)
        return job

    def _info(self, start: int) -> JobInfo:
        arguments = self.request.arguments
        uid = os.getuid()
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = str(uid)
        return JobInfo(
            cluster=self.collector.cluster,
            job_id=self.request.job_id,
            source="jobsight run",
            name=_text(self.request.name or Path(arguments[0]).name),
            user=user,
            uid=uid,
            account=_text(self.request.account) if self.request.account else None,
            command=_text(" ".join(arguments))[:4096],
            nodes=(self.collector.node,),
            cpus=self.request.cpus,
            memory=self.request.memory,
            submit=start,
            start=start,
            state="RUNNING",
        )

    def _wait_for(self, pid: int) -> None:
        """Hand signals on until the command has ended; reap whatever else comes our way."""
        while self._status is None:
            received = signal.sigtimedwait(_WATCHED, _LOOK_EVERY)
            if received is None or received.si_signo == signal.SIGCHLD:
                self._reap(pid)
                continue
            self._hand_on(received.si_signo, from_terminal=received.si_code == _FROM_KERNEL)

    def _hand_on(self, number: int, *, from_terminal: bool = False) -> None:
        if self._status is not None or not self._pid:
            return
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            self._cancelled = True
        if not from_terminal:
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                pass

    def _reap(self, pid: int) -> None:
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended == 0:
                return
            if ended == pid:
                self._status = status

    def _end_left_overs(self) -> int:
        """A job ends with its command: what it left running is ended, as a scheduler does."""
        if self._own is not None:
            left = self._own.end_left_overs()
        else:
            left = self._end_orphans()
        self._reap(-1)
        return left

    def _end_orphans(self) -> int:
        deadline = time.monotonic() + KILL_WAIT
        seen: set[int] = set()
        while True:
            self._reap(-1)
            pids = _children_of_self()
            if not pids or time.monotonic() > deadline + KILL_WAIT:
                # Those that are still there are another user's and cannot be ended.
                return len(seen)
            seen.update(pids)
            number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
            for pid in pids:
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    continue
            time.sleep(0.05)

    def _finish(self, job: FollowedJob, end: int, outcome: Outcome) -> None:
        usage = job.probe.usage if isinstance(job.probe, CgroupProbe) else None
        deadline = time.monotonic() + 0.5
        while True:
            # The last exit event is sent a moment after the parent could wait for the process.
            self.collector.drain()
            if usage is None or not usage.members or time.monotonic() > deadline:
                break
            time.sleep(0.002)
        if self._tree is not None:
            self._tree.finish()
        else:
            self.collector.sample(job)
        self.collector.add_info(
            JobInfo(
                cluster=outcome.run.cluster,
                job_id=outcome.run.job_id,
                source="jobsight run",
                start=outcome.run.start,
                end=end,
                state=outcome.state,
                exit_code=outcome.exit_code,
                exit_signal=outcome.exit_signal,
            )
        )
        self.collector.finish(job)

    def _outcome(self, run: Run, left: int, job: FollowedJob) -> Outcome:
        status = self._status or 0
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        kills = self._own.cgroup.memory_peaks().oom_kills if self._own is not None else 0
        if number is None and not code:
            state = "COMPLETED"
        elif kills:
            state = "OUT_OF_MEMORY"
        elif self._cancelled:
            state = "CANCELLED"
        else:
            state = "FAILED"
        return Outcome(run, state, code, number, left)


def _children_of_self() -> list[int]:
    try:
        tasks = os.listdir("/proc/self/task")
        return [
            int(pid)
            for task in tasks
            for pid in Path(f"/proc/self/task/{task}/children").read_bytes().split()
        ]
    except OSError:
        return []


def _text(value: str) -> str:
    """Command lines may hold bytes that are not UTF-8; they stand as backslash escapes."""
    return os.fsencode(value).decode("utf-8", "backslashreplace")


class Outcome(msgspec.Struct, frozen=True):
    """How the command ended."""

    run: Run
    state: str
    exit_code: int | None
    exit_signal: int | None
    left_overs: int

    @property
    def status(self) -> int:
        """The exit code that a shell would give."""
        if self.exit_signal is not None:
            return 128 + self.exit_signal
        return self.exit_code or 0


class RunRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What was asked for."""

    arguments: Sequence[str]
    job_id: int
    name: str | None = None
    cpus: int | None = None
    memory: int | None = None
    account: str | None = None
