"""The event loop of the agent: process events, sampling rounds and batches for all jobs.

:meth:`Collector.run` sleeps until a sample, a flush or a timer is due, or until the kernel has
process events. :meth:`Collector.drain` applies the events to the tracker, :meth:`Collector.sample`
takes a sample of one job, :meth:`Collector.flush` sends a batch with a part of every job.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight import __version__
from jobsight.agent.job import FollowedJob
from jobsight.agent.probes.cgroup_files import CgroupGone
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.netlink import (
    Connector,
    EventsUnavailable,
    Taskstats,
    TaskstatsQuery,
)
from jobsight.agent.processes.tracker import ProcessTracker
from jobsight.model import SECOND, Batch, JobInfo, JobPart, Series
from jobsight.transport.spool import Spool, SpoolWriter
from jobsight.util.log_once import LogOnce

if TYPE_CHECKING:
    from jobsight.agent.samplers.whole_node import WholeNode

logger = logging.getLogger(__name__)

#: Events are applied at most this often: joined wake-ups cost a fifth of single ones.
JOIN_INTERVAL: Final = 50_000_000
#: After a pause, so many wake-ups are not joined.
_IMMEDIATE_DRAINS: Final = 3


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """The kernel's identifier of the current boot; "" if it has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class EventSources:
    """Both event sockets. One without the other does not give an exact attribution."""

    def __init__(self) -> None:
        self.connector = Connector()
        try:
            self.taskstats = Taskstats()
            try:
                #: For queries: a reply would be lost among the exit records.
                self.query = TaskstatsQuery()
            except EventsUnavailable:
                self.taskstats.close()
                raise
        except EventsUnavailable:
            self.connector.close()
            raise

    @property
    def overruns(self) -> int:
        return self.connector.overruns + self.taskstats.overruns

    def close(self) -> None:
        self.connector.close()
        self.taskstats.close()
        self.query.close()


class Collector:
    """Measures jobs until it is stopped. One thread runs it; others call :meth:`wake`."""

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
        self.tracker.catch_up = self._apply_events
        self.jobs: list[FollowedJob] = []
        #: Called when a sampling round finds the cgroup of a job removed.
        self.on_gone: Callable[[FollowedJob], None] = self.finish
        #: Called before a batch with a part of every job is made.
        self.before_flush: Callable[[], None] = _nothing
        #: Called with every batch before it is spooled.
        self.on_batch: Callable[[Batch], None] | None = None
        #: Sampling rounds so far and the CPU time they took.
        self.rounds = 0
        self.rounds_cpu = 0
        #: Errors of the agent itself, by cause.
        self.errors = LogOnce(logger)
        self.events: EventSources | None = None
        #: Why the kernel delivers no events.
        self.events_reason = ""
        self._closed_overruns = 0
        self._last_drain = 0
        self._immediate_drains = 0
        #: The end of the interval in which events are joined; 0 outside of one.
        self._joined_until = 0
        #: Events were applied since the probes last read their final counters.
        self._events_applied = False
        self._flush_interval = round(flush_interval * SECOND)
        self._next_flush = time.monotonic_ns() + self._flush_interval
        self._writer = SpoolWriter(spool, after_flush) if spool is not None else None
        self._infos: list[JobInfo] = []
        self._whole_node: WholeNode | None = None
        self._node_seen = False
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        #: Due time, interval or None, and action.
        self._timers: list[tuple[int, int | None, Callable[[], None]]] = []

    # The loop.

    def run(self) -> None:
        """Measure until :meth:`stop`."""
        while not self._stop.is_set():
            ready = {descriptor for descriptor, _ in self._poll.poll(self._timeout() / 1_000_000)}
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            for descriptor in ready & self._watched.keys():
                # A callback may have removed the descriptor of another.
                self._watched.get(descriptor, _nothing)()
            if self.events is not None:
                self._receive_events(self.events.connector.fileno(), ready)
            now = time.monotonic_ns()
            for job in list(self.jobs):
                if job.next_sample <= now:
                    self.sample(job)
            if self._next_flush <= now:
                self.flush()
            self._run_timers(now)

    def _timeout(self) -> float:
        due = min(
            [
                self._next_flush,
                *([self._joined_until] if self._joined_until else []),
                *(job.next_sample for job in self.jobs),
                *(timer[0] for timer in self._timers),
            ]
        )
        return max(0, due - time.monotonic_ns())

    def _run_timers(self, now: int) -> None:
        for timer in [timer for timer in self._timers if timer[0] <= now]:
            self._timers.remove(timer)
            _, interval, action = timer
            if interval is not None:
                self._timers.append((now + interval, interval, action))
            action()

    def wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except OSError:
            # Full: the loop wakes anyway. Closed: the loop has ended.
            pass

    def stop(self) -> None:
        """End the loop; may be called from another thread or a signal handler."""
        self._stop.set()
        self.wake()

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back from the loop whenever the descriptor is readable."""
        self._poll.register(descriptor, select.POLLIN)
        self._watched[descriptor] = callback

    def watch_writable(self, descriptor: int, *, wanted: bool) -> None:
        """Call back when a watched descriptor is writable, too."""
        if descriptor in self._watched:
            self._poll.modify(descriptor, select.POLLIN | (select.POLLOUT if wanted else 0))

    def unwatch(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def at(self, due: int, action: Callable[[], None]) -> None:
        """Call the action once from the loop, at a time of the monotonic clock."""
        self._timers.append((due, None, action))

    def every(self, interval: float, action: Callable[[], None]) -> None:
        """Call the action from the loop every ``interval`` seconds."""
        nanoseconds = round(interval * SECOND)
        self._timers.append((time.monotonic_ns() + nanoseconds, nanoseconds, action))

    # The node itself.

    def watch_node(self, node: WholeNode, interval: float) -> None:
        """Sample the node as a whole now and every ``interval`` seconds."""
        self._whole_node = node
        self.at(time.monotonic_ns(), self._sample_node)
        self.every(interval, self._sample_node)

    def _sample_node(self) -> None:
        assert self._whole_node is not None
        try:
            self._whole_node.sample(time.time_ns())
        except Exception as error:
            self.report_error("a sample of the node", error)
        # The first sample is sent at once, so that a new node is seen.
        if self._whole_node.full or not self._node_seen:
            self._send([], node_series=self._take_node_series())

    def _take_node_series(self) -> Series | None:
        if self._whole_node is None:
            return None
        series = self._whole_node.take()
        self._node_seen |= series is not None
        return series

    # Process events.

    def open_events(self) -> bool:
        """Subscribe to process events; False, with ``events_reason``, if the kernel refuses."""
        if self.events is None:
            try:
                self.events = EventSources()
            except EventsUnavailable as error:
                self.events_reason = str(error.strerror)
                return False
            self._poll.register(self.events.connector.fileno(), select.POLLIN)
            self.tracker.names.taskstats = self.events.query
            # The first short program of a job is looked up soon.
            self.tracker.names.standard.refresh()
            logger.debug("process events: subscribed")
        return True

    def close_events(self) -> None:
        """Unsubscribe: on a node without jobs, events cost CPU time for nothing."""
        if self.events is not None:
            self._joined_until = 0
            self._poll.unregister(self.events.connector.fileno())
            self._closed_overruns += self.events.overruns
            self.events.close()
            self.events = self.tracker.names.taskstats = None
            self.tracker.clear()
            logger.debug("process events: unsubscribed")

    @property
    def overruns(self) -> int:
        """How often an event socket lost events."""
        return self._closed_overruns + (self.events.overruns if self.events else 0)

    def _receive_events(self, connector: int, ready: set[int]) -> None:
        """Drain the first events after a pause at once, to read links in time; join a stream."""
        now = time.monotonic_ns()
        if self._joined_until:
            # The socket is not polled now: if it is ready nevertheless, it has overflowed.
            if now >= self._joined_until or connector in ready:
                self.drain()
            return
        if connector not in ready:
            return
        until = self._last_drain + JOIN_INTERVAL
        if now >= until:
            self._immediate_drains = _IMMEDIATE_DRAINS
            self.drain()
        elif self._immediate_drains:
            # An exec follows a fork within a moment, and its link should be read in time.
            self._immediate_drains -= 1
            self.drain()
        else:
            # Other descriptors, such as that of the cgroup watcher, are still polled.
            self._joined_until = until
            self._poll.modify(connector, 0)

    def drain(self) -> None:
        """Apply all events, and let the probes read counters that may be removed soon."""
        if self.events is None:
            return
        self._last_drain = time.monotonic_ns()
        if self._joined_until:
            self._joined_until = 0
            self._poll.modify(self.events.connector.fileno(), select.POLLIN)
        self._apply_events()
        self._read_final_counters()

    def _apply_events(self) -> None:
        if self.events is None:
            return
        before = self.events.overruns
        # Records are drained after events: each exit event then finds its record.
        events = self.events.connector.drain()
        records = self.events.taskstats.drain()
        self._events_applied |= bool(events)
        if self.events.overruns != before:
            self.tracker.losses += 1
        self.tracker.apply(events, records)

    def _read_final_counters(self) -> None:
        self._events_applied = False
        for job in self.jobs:
            try:
                job.probe.read_final_counters()
            except Exception as error:
                self.report_error("the final counters of a job", error)

    # Jobs.

    def follow(self, job: FollowedJob) -> None:
        job.overruns_before = self.overruns
        self.jobs.append(job)

    def sample(self, job: FollowedJob) -> None:
        """One sampling round of one job, after all events before it."""
        self.drain()
        before = self._cpu_time()
        try:
            job.sample(time.time_ns(), time.monotonic_ns())
        except CgroupGone:
            self.on_gone(job)
        except Exception as error:
            # An error in one job must not end the measurement of the others.
            self.report_error("a sampling round", error)
        if self._events_applied:
            # A process may have ended during the round.
            self._read_final_counters()
        self.rounds += 1
        self.rounds_cpu += self._cpu_time() - before

    def _cpu_time(self) -> int:
        """CPU time of the loop and of what it lets read."""
        return time.thread_time_ns() + self.tracker.reader.cpu_time

    def flush(self, *, complete: bool = False) -> None:
        """Send a batch with a part of every job; ``complete`` if it is the last of this agent."""
        self._next_flush = time.monotonic_ns() + self._flush_interval
        self.before_flush()
        self.drain()
        parts = [job.part(self.overruns) for job in self.jobs]
        if self._events_applied:
            self._read_final_counters()
        # The last batch of this agent has what others would have had.
        node_series = self._take_node_series() if complete else None
        self._send(parts, complete=complete, node_series=node_series)

    def finish(self, job: FollowedJob) -> None:
        """Send the final part of a job that has ended on this node."""
        self.jobs.remove(job)
        job.probe.close()
        self.tracker.settle()
        self._send([job.part(self.overruns, final=True)])

    def add_info(self, info: JobInfo) -> None:
        """Send the identity of a job with the next batch."""
        # A copy: the original is filled in further while the batch waits for the disk.
        self._infos.append(msgspec.structs.replace(info))

    def _send(
        self,
        parts: list[JobPart],
        *,
        complete: bool = False,
        node_series: Series | None = None,
    ) -> None:
        infos, self._infos = self._infos, []
        if not parts and not infos and node_series is None:
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
            node_series=node_series,
        )
        if self.on_batch is not None:
            self.on_batch(batch)
        if self._writer is not None:
            self._writer.put(batch, complete=complete)

    def report_error(self, where: str, error: Exception) -> None:
        """Count an error of the agent itself, and log it once."""
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = f"{where}: {type(error).__name__}: {text}"
        # A traceback only for bugs, not for I/O errors.
        bug = None if isinstance(error, OSError) else error
        self.errors.report(cause, cause, level=logging.ERROR, error=bug)

    def close(self) -> None:
        """Wait until all batches are in the spool, and close the sockets."""
        if self._writer is not None:
            self._writer.end()
            self._writer = None
        self.close_events()
        self.tracker.reader.close()
        read, write = self._wake_read, self._wake_write
        # A late signal must not write to a reused descriptor.
        self._wake_read = self._wake_write = -1
        os.close(read)
        os.close(write)


def _nothing() -> None:
    pass
