"""The agent's engine: process events, sampling rounds and batches for all jobs of a node.

What went wrong in the agent itself: counted every time, logged once per cause.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from jobsight import __version__
from jobsight.agent.job import FollowedJob
from jobsight.agent.probes.cgroup_files import CgroupGone
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.netlink import Connector, EventsUnavailable, Taskstats
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import SECOND, Batch, JobInfo, JobPart
from jobsight.transport.spool import Spool, SpoolWriter
from jobsight.util.log_once import LogOnce

#: Events are taken in at most this often: joined wake-ups cost a fifth of single ones.
JOIN: Final = 50_000_000
#: After a pause this many wake-ups are not joined.
_AT_ONCE: Final = 3


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The kernel's name for the time since the last boot; "" where it has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class EventSources:
    """Both event sockets, opened together: one without the other cannot give an exact split."""

    def __init__(self) -> None:
        self.connector = Connector()
        try:
            self.taskstats = Taskstats()
        except EventsUnavailable:
            self.connector.close()
            raise

    @property
    def overruns(self) -> int:
        return self.connector.overruns + self.taskstats.overruns

    def close(self) -> None:
        self.connector.close()
        self.taskstats.close()


class Collector:
    """Follows jobs until told to stop. One thread runs it; others wake it through ``wake``."""

    def __init__(
        self,
        spool: Spool | None,
        *,
        cluster: str,
        node: str,
        flush_interval: float = 10.0,
        after_flush: Callable[[], None] | None = None,
    ) -> None:
        self.spool = spool
        self.cluster = cluster
        self.node = node
        self.epoch = os.urandom(16).hex()
        self.tracker = ProcessTracker(ExecutableNames())
        self.tracker.catch_up = self._take_in
        self.jobs: list[FollowedJob] = []
        self.events: EventSources | None = None
        self.events_reason = ""
        self._flush_interval = round(flush_interval * SECOND)
        self._writer = SpoolWriter(spool, after_flush) if spool is not None else None
        self._infos: list[JobInfo] = []
        self._next_flush = time.monotonic_ns() + self._flush_interval
        self._last_drain = 0
        #: While events are left to gather: until when.
        self._joined_until = 0
        self._at_once = 0
        #: Events were taken in, and nobody has looked whether they were somebody's last.
        self._unsettled = False
        self._stop = threading.Event()
        self._closed_overruns = 0
        self.faults = Faults(logger)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        #: Called when a sampling round finds a job's cgroup removed.
        self.on_gone: Callable[[FollowedJob], None] = self.finish
        #: Called with every batch, before it is numbered and spooled.
        self.on_batch: Callable[[Batch], None] | None = None
        #: Sampling rounds so far and the CPU time they took.
        self.rounds = 0
        self.rounds_cpu = 0
        #: Due time, interval or None, and what to do.
        self._timers: list[tuple[int, int | None, Callable[[], None]]] = []

    def open_events(self) -> bool:
        """Ask the kernel for process events; the reason stays where it refuses."""
        if self.events is None:
            try:
                self.events = EventSources()
            except EventsUnavailable as error:
                self.events_reason = str(error.strerror)
                return False
            self._poll.register(self.events.connector.fileno(), select.POLLIN)
        return True

    def close_events(self) -> None:
        """A node without jobs has no use for them, and they would cost."""
        if self.events is not None:
            self._joined_until = 0
            self._poll.unregister(self.events.connector.fileno())
            self._closed_overruns += self.events.overruns
            self.events.close()
            self.events = None

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back from the loop whenever there is something to read."""
        self._poll.register(descriptor, select.POLLIN)
        self._watched[descriptor] = callback

    def watch_room(self, descriptor: int, *, wanted: bool) -> None:
        """Call back, too, when a watched descriptor has room for what is to be written."""
        if descriptor in self._watched:
            self._poll.modify(descriptor, select.POLLIN | (select.POLLOUT if wanted else 0))

    def at(self, due: int, action: Callable[[], None]) -> None:
        """Do something once, from the loop, at a time of the monotonic clock."""
        self._timers.append((due, None, action))

    def every(self, interval: float, action: Callable[[], None]) -> None:
        """Do something again and again, from the loop."""
        step = round(interval * SECOND)
        self._timers.append((time.monotonic_ns() + step, step, action))

    def unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    @property
    def overruns(self) -> int:
        return self._closed_overruns + (self.events.overruns if self.events else 0)

    def follow(self, job: FollowedJob) -> None:
        job.overruns_before = self.overruns
        self.jobs.append(job)

    def add_info(self, info: JobInfo) -> None:
        """Send what is known about a job along with the next batch."""
        # It is filled in further while the batch waits for the disk.
        self._infos.append(msgspec.structs.replace(info))

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except OSError:
            # Full: it will wake anyway. Closed: nobody is left to be woken.
            pass

    def stop(self) -> None:
        """End the loop from another thread, or from a signal."""
        self._stop.set()
        self.wake()

    def run(self) -> None:
        """The loop: sleep until something is due or the kernel has something to say."""
        while not self._stop.is_set():
            ready = {descriptor for descriptor, _ in self._poll.poll(self._timeout() / 1_000_000)}
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            for descriptor in ready & self._watched.keys():
                # One callback may take away another's descriptor.
                self._watched.get(descriptor, _nothing)()
            if self.events is not None:
                self._join(self.events.connector.fileno(), ready)
            self._do_what_is_due()

    def _timeout(self) -> float:
        now = time.monotonic_ns()
        due = min(
            [
                self._next_flush,
                *([self._joined_until] if self._joined_until else []),
                *(job.next_sample for job in self.jobs),
                *(timer[0] for timer in self._timers),
            ]
        )
        return max(0, due - now)

    def _join(self, connector: int, ready: set[int]) -> None:
        """The first event is taken in at once, to read its link; a stream of them is joined."""
        now = time.monotonic_ns()
        if self._joined_until:
            # One that is ready although it is not asked for has overflowed.
            if now >= self._joined_until or connector in ready:
                self.drain()
            return
        if connector not in ready:
            return
        until = self._last_drain + JOIN
        if now >= until:
            self._at_once = _AT_ONCE
            self.drain()
        elif self._at_once:
            # A fork is followed by its exec within a moment, and that is the one to see alive.
            self._at_once -= 1
            self.drain()
        else:
            # Everything else, such as the directories of a new job, is still noticed at once.
            self._joined_until = until
            self._poll.modify(connector, 0)

    def drain(self) -> None:
        """Take in all events. Records after events: each exit event then finds its record."""
        if self.events is None:
            return
        self._last_drain = time.monotonic_ns()
        if self._joined_until:
            self._joined_until = 0
            self._poll.modify(self.events.connector.fileno(), select.POLLIN)
        self._take_in()
        self._settle()

    def _settle(self) -> None:
        self._unsettled = False
        for job in self.jobs:
            try:
                job.probe.read_final_counters()
            except Exception as error:
                self.faults.note("a job's last reading", error)

    def _take_in(self) -> None:
        if self.events is None:
            return
        before = self.events.overruns
        events = self.events.connector.drain()
        self._unsettled |= bool(events)
        self.tracker.apply(events, self.events.taskstats.drain())
        if self.events.overruns != before:
            # Every job looks once at who is there.
            self.tracker.losses += 1

    def _do_what_is_due(self) -> None:
        now = time.monotonic_ns()
        for job in list(self.jobs):
            if job.next_sample <= now:
                self.sample(job)
        if self._next_flush <= now:
            self.flush()
        for timer in [timer for timer in self._timers if timer[0] <= now]:
            self._timers.remove(timer)
            _, interval, action = timer
            if interval is not None:
                self._timers.append((now + interval, interval, action))
            action()

    def sample(self, job: FollowedJob) -> None:
        """One round of one job, after all events that came before it."""
        self.drain()
        before = time.thread_time_ns()
        try:
            job.sample(time.time_ns(), time.monotonic_ns())
        except CgroupGone:
            self.on_gone(job)
        except Exception as error:
            # One job must never end the others' measuring.
            self.faults.note("a sampling round", error)
        if self._unsettled:
            # A process may have ended while others were looked at.
            self._settle()
        self.rounds += 1
        self.rounds_cpu += time.thread_time_ns() - before

    def flush(self) -> None:
        """Write what has gathered as one batch."""
        self._next_flush = time.monotonic_ns() + self._flush_interval
        # The books must not be behind the counters, which are read now.
        self.drain()
        self._put([job.part(self.overruns) for job in self.jobs])

    def finish(self, job: FollowedJob) -> None:
        """The job has ended on this node: send its last word."""
        self.jobs.remove(job)
        job.probe.close()
        self._put([job.part(self.overruns, final=True)])

    def _put(self, parts: list[JobPart]) -> None:
        infos, self._infos = self._infos, []
        if not parts and not infos:
            return
        batch = Batch(
            cluster=self.cluster,
            node=self.node,
            spool="",
            sequence=0,
            written=time.time_ns(),
            monotonic=time.monotonic_ns(),
            agent=f"jobsight {__version__}",
            jobs=infos,
            parts=parts,
        )
        if self.on_batch is not None:
            self.on_batch(batch)
        if self._writer is not None:
            self._writer.put(batch)

    def close(self) -> None:
        """End; everything that was put is in the spool then."""
        if self._writer is not None:
            self._writer.end()
            self._writer = None
        self.close_events()
        read, write = self._wake_read, self._wake_write
        # A late signal must not write into whatever gets these numbers next.
        self._wake_read = self._wake_write = -1
        os.close(read)
        os.close(write)


def _nothing() -> None:
    pass


logger = logging.getLogger("jobsight.agent")


class Faults(LogOnce):
    """Internal errors of the agent: logged once per cause, counted always."""

    def note(self, where: str, error: Exception) -> None:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = f"{where}: {type(error).__name__}: {text}"
        # A traceback is logged for bugs only, not for I/O errors.
        bug = None if isinstance(error, OSError) else error
        self.report(cause, cause, level=logging.ERROR, error=bug)
