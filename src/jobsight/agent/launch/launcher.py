"""Runs a command as a job on this machine without a scheduler, measured by the collector.

:meth:`Launcher.run` creates a cgroup, starts the command in it (``child.py``), runs the collector
in a thread while it passes signals on to the command, and sends the final part.
"""

from __future__ import annotations

import os
import pwd
import resource
import select
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jobsight.agent.collector import Collector, boot_id
from jobsight.agent.job import DEFAULT_INTERVALS, FollowedJob, JobView
from jobsight.agent.launch.cgroup import (
    KILL_TIMEOUT,
    OwnCgroup,
    create_cgroup,
    remove_stale_cgroups,
)
from jobsight.agent.launch.child import ChildProcess, set_subreaper
from jobsight.agent.probes.cgroup import CgroupProbe
from jobsight.agent.probes.process_tree import REASON, ProcessTreeProbe
from jobsight.agent.processes.procfs import OpenProcess, ProcessGone
from jobsight.errors import CommandError
from jobsight.model import LAUNCHER_SOURCE, JobInfo, Run, Sighting

if TYPE_CHECKING:
    from jobsight.agent.samplers.gpu.choose import Reservation
    from jobsight.agent.samplers.node import Node
    from jobsight.agent.sampling import JobSamplers

#: Passed on to the command. Signals of the terminal reach the command directly.
_FORWARDED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGALRM,
)
_BLOCKED: Final = {*_FORWARDED, signal.SIGCHLD}
#: Seconds after which orphans are reaped, and the end of the command is noticed on a kernel without
#: pidfd, if a thread of a library received the SIGCHLD.
_WAIT_INTERVAL: Final = 1.0
#: The terminal signals the whole process group; si_code is then SI_KERNEL.
_SI_KERNEL: Final = 0x80
#: Without privileges, short programs are only seen by frequent polling.
_TREE_INTERVALS: Final = ((60, 0.1), (3600, 1.0), (None, 10.0))


class RunRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The command and the resources that were requested."""

    arguments: Sequence[str]
    job_id: int
    name: str | None = None
    cpus: int | None = None
    memory: int | None = None
    #: Free GPUs to reserve; None: those that the processes of the command use.
    gpus: int | None = None
    account: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """How the command ended."""

    run: Run
    state: str
    exit_code: int | None
    exit_signal: int | None
    #: Processes that outlived the command and were ended.
    leftovers: int
    #: GPUs that were reserved and that no process of the command used.
    unused_gpus: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The exit status in the convention of a shell."""
        if self.exit_signal is not None:
            return 128 + self.exit_signal
        return self.exit_code or 0


class Launcher:
    """Runs one job, from its first process to its final batch in the spool."""

    def __init__(self, request: RunRequest, collector: Collector, node: Node | None = None) -> None:
        self.request = request
        self.collector = collector
        self._node = node
        self._reservation: Reservation | None = None
        self._samplers: JobSamplers | None = None
        self._own: OwnCgroup | None = None
        self._tree: ProcessTreeProbe | None = None
        self._pid = 0
        self._status: int | None = None
        #: When the command had ended, on the monotonic clock.
        self._ended = 0
        self._cancelled = False
        self._handlers: dict[signal.Signals, Any] = {}
        self._limits = (0, 0)

    def run(self) -> Outcome:
        """Start the command, measure it until it ends, and write the final batch."""
        if not self.request.arguments or not self.request.arguments[0]:
            raise CommandError(
                "no command was given; expected: jobsight run -- COMMAND ARGUMENT...", 2
            )
        available = len(os.sched_getaffinity(0))
        if self.request.cpus is not None and self.request.cpus > available:
            raise CommandError(
                f"--cpus {self.request.cpus}: this machine has {available}; "
                f"expected {available} or fewer",
                2,
            )
        self._reserve_gpus()
        set_subreaper(True)
        remove_stale_cgroups()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        self._handlers = {
            number: signal.signal(number, self._unexpected_signal) for number in _FORWARDED
        }
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Two descriptors stay open for each process of the job.
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[1], self._limits[1]))
        self._own = create_cgroup(f"jobsight-{self.request.job_id}-{os.getpid()}")
        try:
            return self._run({signal.Signals(number) for number in before})
        finally:
            if self._reservation is not None:
                self._reservation.release()
            if self._own is not None:
                self._own.remove()
            while signal.sigtimedwait(_BLOCKED, 0) is not None:
                # Sent to a command that had ended; it must not end the launcher before its
                # final batch.
                pass
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            set_subreaper(False)

    def _reserve_gpus(self) -> None:
        if self.request.gpus is None:
            return
        from jobsight.agent.samplers.gpu.choose import reserve
        from jobsight.agent.samplers.node import this_node

        self._node = self._node or this_node()
        self._reservation = reserve(self.request.gpus, self._node)

    def _sample_gpus(self, job: FollowedJob, probe: CgroupProbe | ProcessTreeProbe) -> None:
        """Measure the GPUs that were reserved, or those that the command uses."""
        if self._reservation is None:
            from jobsight.agent.samplers.gpu.choose import has_driver

            if self._node is None and not has_driver():
                return
        from jobsight.agent.samplers.gpu.sampler import GpuSampler
        from jobsight.agent.sampling import JobSamplers, SamplerPlan

        view = JobView(
            sighting=job.sighting,
            info=self._info(job.sighting.birth),
            probe=probe,
            usage=probe.usage,
            gpus=self._reservation.names if self._reservation is not None else None,
        )
        plan = SamplerPlan("gpu", lambda _: GpuSampler(node=self._node), float("inf"))
        self._samplers = JobSamplers(view, [plan])
        self._samplers.attach(job)

    def _unexpected_signal(self, number: int, _frame: object) -> None:
        """A thread of a library, which does not block the signal, received it. Without a handler
        it would end the launcher while the job is running."""
        self._forward(number)

    def _run(self, mask: set[signal.Signals]) -> Outcome:
        if self._own is not None and self.request.memory is not None:
            self._own.limit_memory(self.request.memory)
        # The environment of the command contains the run, so its start is set before.
        start = time.time_ns()
        run = Run(self.collector.cluster, self.request.job_id, start)
        command = ChildProcess(
            self.request.arguments,
            environment={
                **os.environ,
                **(self._reservation.environment() if self._reservation is not None else {}),
                "JOBSIGHT_JOB": str(run),
            },
            before=self._prepare_child,
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
        leftovers = self._kill_leftovers()
        self.collector.stop()
        thread.join()
        outcome = self._outcome(run, leftovers)
        self._finish(job, outcome)
        return msgspec.structs.replace(outcome, unused_gpus=self._unused_gpus())

    def _unused_gpus(self) -> tuple[str, ...]:
        if self._samplers is None or self._reservation is None:
            return ()
        unused = [use.key for use in self._samplers.gpu_uses(False) if use.used is False]
        self._samplers.close()
        return tuple(unused)

    def _prepare_child(self) -> None:
        """In the child, right before the exec: restrict the CPUs and enter the cgroup."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)
        for number, handler in self._handlers.items():
            # Ignored signals stay ignored (nohup); Python's handlers are not inherited.
            ignored = handler == signal.SIG_IGN
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        if self.request.cpus is not None:
            cpus = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cpus[: self.request.cpus])
        if self._own is not None:
            self._own.enter()

    def _follow(self, pid: int, start: int) -> FollowedJob:
        path = shutil.which(self.request.arguments[0])
        if path is not None:
            # The command is named even if it ends before its link can be read.
            self.collector.tracker.names.learn_path(os.fsencode(path))
        events = self.collector.open_events()
        if events:
            self.collector.tracker.exit_times[pid] = None
        intervals = DEFAULT_INTERVALS
        probe: CgroupProbe | ProcessTreeProbe
        if self._own is not None:
            probe = CgroupProbe(
                self._own.cgroup,
                self.collector.tracker,
                events=events,
                reason=f"attributed by polling; {self.collector.events_reason}",
            )
            if events:
                try:
                    self.collector.tracker.expect_exec(OpenProcess(b"/proc", pid), probe.usage)
                except ProcessGone:
                    raise CommandError("the process of the job ended before it started") from None
        else:
            probe = self._tree = ProcessTreeProbe(pid, REASON)
            probe.tracker.names.include_scripts = self.collector.tracker.names.include_scripts
            intervals = _TREE_INTERVALS
        sighting = Sighting(
            cluster=self.collector.cluster,
            job_id=self.request.job_id,
            node=self.collector.node,
            boot_id=boot_id(),
            birth=start,
        )
        job = FollowedJob(sighting, probe, self.collector.epoch, intervals)
        self._sample_gpus(job, probe)
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
            source=LAUNCHER_SOURCE,
            name=_text(self.request.name or Path(arguments[0]).name),
            user=user,
            uid=uid,
            account=_text(self.request.account) if self.request.account else None,
            command=_text(" ".join(arguments))[:4096],
            nodes=(self.collector.node,),
            cpus=self.request.cpus,
            memory=self.request.memory,
            gpus=self.request.gpus,
            submit=start,
            start=start,
            state="RUNNING",
        )

    def _wait_for(self, pid: int) -> None:
        """Forward signals until the command has ended, and reap adopted orphans."""
        # SIGCHLD is process-directed: a thread that does not block it discards it.
        main = threading.get_ident()
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            pidfd = -1
        else:
            waiter = threading.Thread(target=self._signal_end, args=(pidfd, main), daemon=True)
            waiter.start()
        while self._status is None:
            received = signal.sigtimedwait(_BLOCKED, _WAIT_INTERVAL)
            if received is None or received.si_signo == signal.SIGCHLD:
                self._reap(pid)
                continue
            self._forward(received.si_signo, from_terminal=received.si_code == _SI_KERNEL)
        if pidfd >= 0:
            waiter.join()
            os.close(pidfd)
        self._ended = self._ended or time.monotonic_ns()

    def _signal_end(self, pidfd: int, thread: int) -> None:
        """In a thread: wake the main thread as soon as the command has ended."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
        self._ended = time.monotonic_ns()
        signal.pthread_kill(thread, signal.SIGCHLD)

    def _forward(self, number: int, *, from_terminal: bool = False) -> None:
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

    def _kill_leftovers(self) -> int:
        """End what the command left running, as a scheduler does; returns the number."""
        count = self._own.kill_leftovers() if self._own is not None else self._kill_orphans()
        self._reap(-1)
        return count

    def _kill_orphans(self) -> int:
        deadline = time.monotonic() + KILL_TIMEOUT
        seen: set[int] = set()
        while True:
            self._reap(-1)
            pids = _children_of_self()
            if not pids or time.monotonic() > deadline + KILL_TIMEOUT:
                # Those that remain belong to another user.
                return len(seen)
            seen.update(pids)
            number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
            for pid in pids:
                try:
                    os.kill(pid, number)
                except (ProcessLookupError, PermissionError):
                    continue
            time.sleep(0.05)

    def _end_time(self) -> int:
        """When the command ended, in Unix time: by its exit event if there is one."""
        event = self.collector.tracker.exit_times.get(self._pid)
        return time.time_ns() - (time.monotonic_ns() - (event or self._ended))

    def _finish(self, job: FollowedJob, outcome: Outcome) -> None:
        usage = job.probe.usage if isinstance(job.probe, CgroupProbe) else None
        deadline = time.monotonic() + 0.5
        while True:
            # The last exit event arrives a moment after the process could be waited for.
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
                source=LAUNCHER_SOURCE,
                start=outcome.run.start,
                end=max(outcome.run.start, self._end_time()),
                state=outcome.state,
                exit_code=outcome.exit_code,
                exit_signal=outcome.exit_signal,
            )
        )
        self.collector.finish(job)

    def _outcome(self, run: Run, leftovers: int) -> Outcome:
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
        return Outcome(run, state, code, number, leftovers)


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
    """Bytes that are not UTF-8 as backslash escapes."""
    return os.fsencode(value).decode("utf-8", "backslashreplace")
