"""The agent of a node: one process for all jobs, or the same engine for one of them.

Figures about the agent itself.

When the kernel's process events are listened to: while there are jobs, and a little around them.

A job's first processes start as soon as its cgroups exist, so an announcement by a prolog opens
the sockets earlier. A node without jobs keeps them closed.
"""

from __future__ import annotations

import logging
import queue
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobsight.agent.collector import Collector, boot_id
from jobsight.agent.control import Control, Reply, Request
from jobsight.agent.job import DEFAULT_INTERVALS, FollowedJob, JobView, Output
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher, JobCgroup, inodes_of
from jobsight.agent.jobs.first_seen import FirstSeen, same_directories
from jobsight.agent.jobs.identity import Identity, PendingJobInfo, info_from_cgroup
from jobsight.agent.probes.cgroup import SlurmProbe
from jobsight.agent.probes.cgroup_files import CgroupGone
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.procfs import Descriptors
from jobsight.agent.sampling import SampledJob, SamplerPlan
from jobsight.model import JobInfo, Sighting, merge_job_info
from jobsight.transport.spool import Spool

if TYPE_CHECKING:
    from jobsight.agent.sampling import SampledJob


logger = logging.getLogger("jobsight.agent")

Intervals = tuple[tuple[int | None, float], ...]
#: A step's directory is made before its processes are moved in; the second look finds them.
_SECOND_LOOK: Final = 200_000_000
#: Descriptors for everything but the live processes: cgroups, sockets, files.
_RESERVE: Final = 4096


class Agent:
    """Follows the jobs that Slurm has on this node until it is told to stop."""

    def __init__(
        self,
        *,
        cluster: str,
        node: str,
        spool: Spool | None,
        samplers: Sequence[SamplerPlan] = (),
        outputs: Sequence[Callable[[JobView], Output]] = (),
        job_id: int | None = None,
        grace_period: float | None = None,
        only_this_node: bool = False,
        ignore_uids: Iterable[int] = (),
        intervals: Intervals = DEFAULT_INTERVALS,
        flush_interval: float = 10.0,
        watcher: CgroupWatcher | None = None,
        run_directory: Path | None = None,
        after_flush: Callable[[], None] | None = None,
        query_jobs: Callable[[], list[JobInfo]] | None = None,
        listen: bool = False,
    ) -> None:
        _raise_descriptor_limit()
        self.collector = Collector(
            spool,
            cluster=cluster,
            node=node,
            flush_interval=flush_interval,
            after_flush=after_flush,
        )
        self.watcher = watcher or CgroupWatcher()
        self.job_id = job_id
        self.grace_period = grace_period
        self.node = node
        self._only_this_node = only_this_node
        self._samplers = samplers
        self._outputs = outputs
        self._ignored = frozenset(ignore_uids)
        self._intervals = intervals
        self._boot_id = boot_id()
        self._births = FirstSeen(run_directory, boot_id=self._boot_id)
        self._jobs: dict[str, SampledJob] = {}
        self._told = PendingJobInfo()
        self._answers: queue.SimpleQueue[list[JobInfo]] = queue.SimpleQueue()
        self._identity = Identity(query_jobs, self._answered) if query_jobs is not None else None
        self._control: Control | None = None
        if listen and run_directory is not None:
            self._control = Control(run_directory, self.collector, self._answer)
            self.collector.on_batch = self._control.publish
        self._window = EventWindow(self.collector, lambda: bool(self._jobs))
        self._look_planned = False
        #: The last look was not a whole one.
        self._look_due = False
        self._last_seen = time.monotonic()
        self.collector.watch(self.watcher.fileno(), self._folders_changed)
        self.collector.every(1.0, self._tick)
        self.collector.on_gone = self._gone

    def run(self) -> None:
        """Follow jobs until :meth:`stop`, then take a last sample of each and send it."""
        if self._identity is not None:
            self._identity.start()
        try:
            self._look()
            self._plan_second_look()
            if not self._look_due:
                self._births.keep_only(self._jobs.keys())
            self.collector.run()
        finally:
            self._end()

    def stop(self) -> None:
        self.collector.stop()

    def announce(self, info: JobInfo) -> None:
        """Somebody (a prolog, the scheduler) says who a job is."""
        followed = [job for job in self._jobs.values() if job.view.info.job_id == info.job_id]
        for job in followed:
            job.view.info = merge_job_info(job.view.info, info, "overwrite")
        if not followed:
            # A prolog comes before the cgroup, and before the job's first process.
            self._told.keep_info(info)
            if info.source == "prolog":
                self._window.expect()
        self.collector.add_info(info)

    def _answered(self, infos: list[JobInfo]) -> None:
        """From the thread that asked Slurm."""
        self._answers.put(infos)
        self.collector.wake()

    def _take_answers(self) -> None:
        here = {job.view.sighting.job_id for job in self._jobs.values()}
        while not self._answers.empty():
            for info in self._answers.get():
                if info.job_id in here:
                    self.announce(info)

    def _answer(self, request: Request) -> Reply:
        """What the socket on the node is told."""
        if request.do == "status":
            return Reply(True, status=self.status())
        if request.do == "job":
            if request.info is None:
                return Reply(False, "a job needs its info")
            if request.gpus is not None:
                self._tell_gpus(request.info.job_id, tuple(request.gpus))
            self.announce(request.info)
            return Reply(True)
        if not any(job.view.sighting.job_id == request.job_id for job in self._jobs.values()):
            return Reply(False, f"job {request.job_id} is not followed on this node")
        self.collector.at(time.monotonic_ns(), self.collector.flush)
        return Reply(True)

    def _tell_gpus(self, job_id: int, gpus: tuple[str, ...]) -> None:
        followed = [job for job in self._jobs.values() if job.view.sighting.job_id == job_id]
        for job in followed:
            job.view.gpus = gpus
        if not followed:
            self._told.keep_gpus(job_id, gpus)

    def status(self) -> dict[str, object]:
        """Figures about the agent itself."""
        return status_of(self.collector, self._jobs.values(), self._identity)

    @property
    def jobs(self) -> list[SampledJob]:
        return list(self._jobs.values())

    def _folders_changed(self) -> None:
        if not self.watcher.changed():
            return
        # A job's first processes are at work already: whatever they do from now on is told.
        self._window.open()
        self._look()
        self._plan_second_look()

    def _plan_second_look(self) -> None:
        if not self._look_planned:
            self._look_planned = True
            self.collector.at(time.monotonic_ns() + _SECOND_LOOK, self._look_again)

    def _look_again(self) -> None:
        self._look_planned = False
        self._look()

    def _look(self) -> None:
        """Compare what there is with what is followed."""
        try:
            found = self.watcher.jobs()
        except OSError as error:
            # No descriptor left, or no permission: nothing is taken for gone, and we look again.
            self.collector.faults.note("looking for jobs", error)
            self._look_due = True
            return
        # A SLUID without its job id: slurmstepd is not there yet.
        self._look_due = self.watcher.blind or any(place.job_id is None for place in found)
        places = {place.key: place for place in found if self._wanted(place)}
        for key, job in list(self._jobs.items()):
            place = places.get(key)
            if place is None or not same_directories(job.place.inodes, place.inodes):
                self._finish(key)
        if places:
            self._window.open()
        for key, place in places.items():
            known = self._jobs.get(key)
            if known is None:
                self._guarded(key, partial(self._begin, place))
            else:
                known.place = place
                self._guarded(key, known.probe.refresh)

    def _wanted(self, place: JobCgroup) -> bool:
        if place.job_id is None or (place.uid is not None and place.uid in self._ignored):
            return False
        if self.job_id is not None and place.job_id != self.job_id:
            return False
        return not self._only_this_node or place.node in (None, self.node)

    def _begin(self, place: JobCgroup) -> None:
        assert place.job_id is not None
        events = self.collector.events is not None
        counters = SlurmCounters(place.directories)
        probe = SlurmProbe(
            counters,
            self.collector.tracker,
            events=events,
            reason=f"attributed by polling; {self.collector.events_reason}",
        )
        info = self._who(place)
        new = not self._births.known(place)
        daemons = [pid for _, pid in counters.daemons()]
        sighting = Sighting(
            cluster=self.collector.cluster,
            job_id=place.job_id,
            node=place.node or self.node,
            boot_id=self._boot_id,
            birth=self._births.of(place, [*daemons, *counters.processes()]),
            sluid=place.sluid,
            restart_count=info.restart_count,
        )
        if new:
            probe.count_from_start()
        self.collector.add_info(info)
        followed = FollowedJob(sighting, probe, self.collector.epoch, self._intervals)
        view = JobView(
            sighting=sighting,
            info=info,
            probe=probe,
            usage=probe.usage,
            counters=counters,
            gpus=self._told.take_gpus(place.job_id),
        )
        job = SampledJob(place, followed, view, probe, self._samplers, self._outputs)
        self._jobs[place.key] = job
        followed.add_columns, followed.sampler_coverage = job.add_columns, job.coverage
        self.collector.follow(followed)
        logger.info("job %d: following", place.job_id, extra={"action": "follow"})
        self._guarded(place.key, probe.refresh)
        if place.key in self._jobs:
            self.collector.sample(followed)

    def _who(self, place: JobCgroup) -> JobInfo:
        """What the node itself knows: Slurm says the rest."""
        assert place.job_id is not None
        known = self._told.take_info(place.job_id)
        if self._identity is not None and (known is None or known.cpus is None):
            # A prolog knows neither what was asked for nor the job's name.
            self._identity.want()
        return known or info_from_cgroup(self.collector.cluster, place.job_id, place)

    def _guarded(self, key: str, action: Callable[[], None]) -> None:
        try:
            action()
        except CgroupGone:
            self._finish_if_gone(key)
        except Exception as error:
            self.collector.faults.note("a job's directories", error)
            self._look_due = True

    def _gone(self, followed: FollowedJob) -> None:
        """A sampling round found the job's cgroup removed."""
        for key, job in list(self._jobs.items()):
            if job.followed is followed:
                self._finish_if_gone(key)

    def _finish_if_gone(self, key: str) -> None:
        """Slurm removes a job from one hierarchy after the other; with the last it is over."""
        job = self._jobs.get(key)
        if job is None or same_directories(job.place.inodes, inodes_of(job.place.directories)):
            self._look_due = True
            return
        self._finish(key)

    def _finish(self, key: str) -> None:
        job = self._jobs.pop(key, None)
        if job is None:
            return
        self.collector.drain()
        self._births.forget(job.place)
        self._window.job_gone()
        self.collector.finish(job.followed)
        job.finish()
        logger.info("job %d: ended", job.view.sighting.job_id, extra={"action": "finish"})

    def _tick(self) -> None:
        """Once a second: samplers that are due, and whether a single job has gone for good."""
        now = time.monotonic()
        self._take_answers()
        if self._look_due:
            self._look()
        for job in self._jobs.values():
            job.tick(now)
        if any(job.view.usage.members for job in self._jobs.values()):
            self._last_seen = now
        if self.grace_period is not None and now - self._last_seen > self.grace_period:
            logger.info("no process for %.0f s: ending", self.grace_period)
            self.stop()

    def _end(self) -> None:
        """Take a last sample of every job; those that go on are followed by the next agent."""
        for job in list(self._jobs.values()):
            self.collector.sample(job.followed)
        self.collector.flush()
        for job in self._jobs.values():
            job.finish()
            job.probe.close()
        self._jobs.clear()
        if self._control is not None:
            self._control.close()
        if self._identity is not None:
            self._identity.end()
        self.collector.close()
        self.watcher.close()


def _raise_descriptor_limit() -> None:
    """Two descriptors a process: take what the administrator allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY:
        Descriptors.limit = max(hard // 2, hard - _RESERVE)


def status_of(
    collector: Collector, jobs: Iterable[SampledJob], identity: Identity | None
) -> dict[str, object]:
    """What ``status`` on the node's socket answers."""
    followed = list(jobs)
    errors: Counter[str] = Counter()
    for job in followed:
        errors.update(job.errors)
    rounds = max(1, collector.rounds)
    spool = collector.spool
    return {
        "cluster": collector.cluster,
        "node": collector.node,
        "epoch": collector.epoch,
        "jobs": len(followed),
        "processes": len(collector.tracker.processes),
        "rounds": collector.rounds,
        "round_cpu_nanoseconds": collector.rounds_cpu // rounds,
        "cpu_nanoseconds": time.process_time_ns(),
        "events": collector.events is not None,
        "events_reason": collector.events_reason,
        "event_overruns": collector.overruns,
        "spool_batches": len(spool) if spool is not None else 0,
        "spool_bytes": spool.size if spool is not None else 0,
        "spool_dropped": spool.dropped if spool is not None else 0,
        "spool_refused": spool.refused if spool is not None else 0,
        "sampler_errors": dict(errors),
        "faults": dict(collector.faults.counts),
        "scheduler_failures": identity.failures if identity is not None else 0,
    }


#: The next job often follows the last one, and its first moments are told to open sockets only.
LINGER: Final = 5_000_000_000
#: A prolog comes before the job; where others of its nodes take long, long before.
EXPECTED: Final = 60_000_000_000


class EventWindow:
    """Opens the event sockets, and closes them when they are of no use any more."""

    def __init__(self, collector: Collector, has_jobs: Callable[[], bool]) -> None:
        self._collector = collector
        self._has_jobs = has_jobs
        self._until = 0
        self._planned = False

    def open(self) -> None:
        """A job is here, or its first directories are."""
        self._collector.open_events()
        self._stay(LINGER)

    def expect(self) -> None:
        """A job is about to come."""
        self._collector.open_events()
        self._stay(EXPECTED)

    def job_gone(self) -> None:
        """A job has ended; it may have been the last."""
        self._stay(LINGER)

    def _stay(self, time_left: int) -> None:
        self._until = max(self._until, time.monotonic_ns() + time_left)
        self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._collector.at(self._until, self._close)

    def _close(self) -> None:
        self._planned = False
        if self._has_jobs():
            return
        if time.monotonic_ns() < self._until:
            self._plan()
        else:
            self._collector.close_events()
