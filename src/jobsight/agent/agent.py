"""The agent of a node: finds the jobs, measures them, and sends batches.

:class:`Agent` compares the cgroups on the node (``jobs/cgroup_watcher.py``) with the jobs that it
follows. It builds a probe, samplers and outputs for each new job and hands them to the
:class:`~jobsight.agent.collector.Collector`, which runs the loop. The same class follows a single
job for ``sams-collector --jobid``.
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
from typing import Final

from jobsight.agent.collector import Collector, boot_id
from jobsight.agent.control import Control, Reply, Request
from jobsight.agent.job import DEFAULT_INTERVALS, FollowedJob, Intervals, JobView, Output
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher, JobCgroup, inodes_of
from jobsight.agent.jobs.first_seen import FirstSeen, same_directories
from jobsight.agent.jobs.identity import (
    Identity,
    PendingJobInfo,
    expand_nodes,
    info_from_cgroup,
    is_complete,
)
from jobsight.agent.probes.cgroup import SlurmProbe
from jobsight.agent.probes.cgroup_files import CgroupGone
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.procfs import Descriptors
from jobsight.agent.sampling import SampledJob, SamplerPlan
from jobsight.model import JobInfo, Sighting, merge_job_info
from jobsight.transport.spool import Spool
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

#: The cgroup of a step is created before its processes enter it; a second scan finds them.
_RESCAN_DELAY: Final = 200_000_000
#: Descriptors for cgroups, sockets and files, not for the files of processes.
_RESERVED_DESCRIPTORS: Final = 4096
#: Event sockets stay open this long after the last job: the next one often follows soon.
IDLE_TIMEOUT: Final = 5_000_000_000
#: And this long after the announcement of a job, which may still wait for its other nodes.
ANNOUNCEMENT_TIMEOUT: Final = 60_000_000_000


class Agent:
    """Follows the jobs of Slurm on this node until it is stopped."""

    def __init__(  # noqa: PLR0913 -- here all parts of an agent are put together
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
        complete_info: Callable[[JobInfo], JobInfo] | None = None,
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
        self._ignored_uids = frozenset(ignore_uids)
        self._intervals = intervals
        self._boot_id = boot_id()
        self._first_seen = FirstSeen(
            run_directory, boot_id=self._boot_id, reader=self.collector.tracker.reader
        )
        self._jobs: dict[str, SampledJob] = {}
        self._pending_info = PendingJobInfo()
        self._query_results: queue.SimpleQueue[list[JobInfo]] = queue.SimpleQueue()
        self._identity = Identity(query_jobs, self._put_result) if query_jobs is not None else None
        #: Completes the identity of a job that ends; it may wait for Slurm.
        self._complete_info = complete_info
        self._control: Control | None = None
        if listen and run_directory is not None:
            self._control = Control(run_directory, self.collector, self._handle_request)
            self.collector.on_batch = self._control.publish
        self._event_window = EventWindow(self.collector, lambda: bool(self._jobs))
        self._rescan_planned = False
        #: The last scan was incomplete.
        self._scan_due = False
        self._last_process_seen = time.monotonic()
        self._log = LogOnce(logger)
        self.collector.watch(self.watcher.fileno(), self._cgroups_changed)
        self.collector.every(1.0, self._tick)
        self.collector.on_gone = self._cgroup_gone
        # A step that has come and gone since is in the counters, which a batch would call exact.
        self.collector.before_flush = self._cgroups_changed

    def run(self) -> None:
        """Follow jobs until :meth:`stop`, then take a last sample of each and send it."""
        logger.info("agent of node %s started", self.node, extra={"action": "start"})
        if self._identity is not None:
            self._identity.start()
        try:
            self._scan()
            self._plan_rescan()
            if not self._scan_due:
                self._first_seen.keep_only(self._jobs.keys())
            self.collector.run()
        finally:
            self._shut_down()
            logger.info("agent of node %s stopped", self.node, extra={"action": "stop"})

    def stop(self) -> None:
        self.collector.stop()

    @property
    def jobs(self) -> list[SampledJob]:
        return list(self._jobs.values())

    # Finding jobs.

    def _cgroups_changed(self) -> None:
        if not self.watcher.changed():
            return
        # The first processes of a job may be running already: receive their events from now on.
        self._event_window.open()
        self._scan()
        self._plan_rescan()

    def _plan_rescan(self) -> None:
        if not self._rescan_planned:
            self._rescan_planned = True
            self.collector.at(time.monotonic_ns() + _RESCAN_DELAY, self._rescan)

    def _rescan(self) -> None:
        self._rescan_planned = False
        self._scan()

    def _scan(self) -> None:
        """Compare the cgroups on the node with the jobs that are followed."""
        try:
            present = self.watcher.jobs()
        except OSError as error:
            # No descriptors or no permission: no job has ended for that. The next tick retries.
            self.collector.report_error("the scan for jobs", error)
            self._scan_due = True
            return
        # A SLUID has no job id until slurmstepd has started.
        self._scan_due = self.watcher.blind or any(cgroup.job_id is None for cgroup in present)
        cgroups = {cgroup.key: cgroup for cgroup in present if self._is_wanted(cgroup)}
        created = self.watcher.pop_created_steps()
        for key, job in list(self._jobs.items()):
            cgroup = cgroups.get(key)
            if cgroup is None or not same_directories(job.cgroup.inodes, cgroup.inodes):
                # The last step of the job may have come and gone with it.
                _add_created_steps(job, created)
                self._finish(key)
        if cgroups:
            self._event_window.open()
        for key, cgroup in cgroups.items():
            known = self._jobs.get(key)
            if known is None:
                self._guarded(key, partial(self._follow, cgroup))
            else:
                known.cgroup = cgroup
                self._guarded(key, known.probe.refresh)
        for job in self._jobs.values():
            _add_created_steps(job, created)

    def _is_wanted(self, cgroup: JobCgroup) -> bool:
        if cgroup.job_id is None or (cgroup.uid is not None and cgroup.uid in self._ignored_uids):
            return False
        if self.job_id is not None and cgroup.job_id != self.job_id:
            return False
        return not self._only_this_node or cgroup.node in (None, self.node)

    def _guarded(self, key: str, action: Callable[[], None]) -> None:
        try:
            action()
        except CgroupGone:
            self._finish_if_gone(key)
        except Exception as error:
            self.collector.report_error("the cgroups of a job", error)
            self._scan_due = True

    # The start of a job.

    def _follow(self, cgroup: JobCgroup) -> None:
        assert cgroup.job_id is not None
        counters = SlurmCounters(cgroup.directories)
        probe = SlurmProbe(
            counters,
            self.collector.tracker,
            events=self.collector.events is not None,
            reason=f"attributed by polling; {self.collector.events_reason}",
        )
        info = self._identify(cgroup.job_id, cgroup)
        is_new = not self._first_seen.is_known(cgroup)
        daemons = [pid for _, pid in counters.daemons()]
        sighting = Sighting(
            cluster=self.collector.cluster,
            job_id=cgroup.job_id,
            node=cgroup.node or self.node,
            boot_id=self._boot_id,
            birth=self._first_seen.creation_time(cgroup, [*daemons, *counters.processes()]),
            sluid=cgroup.sluid,
            restart_count=info.restart_count,
        )
        probe.birth = sighting.birth
        if is_new:
            probe.count_from_start()
        else:
            probe.gaps = self._first_seen.gaps(cgroup)
            probe.add_gap(self._first_seen.last_alive, time.time_ns())
        self.collector.add_info(info)
        followed = FollowedJob(sighting, probe, self.collector.epoch, self._intervals)
        view = JobView(
            sighting=sighting,
            info=info,
            probe=probe,
            usage=probe.usage,
            counters=counters,
            gpus=self._pending_info.pop_gpus(cgroup.job_id),
        )
        job = SampledJob(cgroup, followed, view, probe, self._samplers, self._outputs)
        self._jobs[cgroup.key] = job
        job.attach(followed)
        self.collector.follow(followed)
        logger.info("job %d: following", cgroup.job_id, extra={"action": "follow"})
        self._guarded(cgroup.key, probe.refresh)
        if cgroup.key in self._jobs:
            self.collector.sample(followed)

    def _identify(self, job_id: int, cgroup: JobCgroup) -> JobInfo:
        """The identity of a new job, as far as it is known on the node."""
        info = self._pending_info.pop_info(job_id)
        if self._identity is not None and (info is None or not is_complete(info)):
            # A prolog knows neither the start nor the name of the job.
            self._identity.request()
        if info is None:
            logger.debug("job %d: not announced; identified by its cgroup", job_id)
            info = info_from_cgroup(self.collector.cluster, job_id, cgroup)
        return info

    def announce(self, info: JobInfo) -> None:
        """Add to the identity of a job; ``info`` comes from a prolog or the scheduler."""
        followed = [job for job in self._jobs.values() if job.view.info.job_id == info.job_id]
        for job in followed:
            job.view.info = merge_job_info(job.view.info, info, "overwrite")
        if not followed:
            # A prolog runs before the cgroup exists and before the first process of the job.
            self._pending_info.add_info(info)
            if info.source == "prolog":
                self._event_window.expect_job()
        self.collector.add_info(info)

    def _put_result(self, infos: list[JobInfo]) -> None:
        """Called in the thread that queries Slurm."""
        self._query_results.put(infos)
        self.collector.wake()

    def _apply_results(self) -> None:
        job_ids = {job.view.sighting.job_id for job in self._jobs.values()}
        while not self._query_results.empty():
            for info in self._query_results.get():
                if info.job_id in job_ids:
                    self.announce(info)

    # The end of a job.

    def _cgroup_gone(self, followed: FollowedJob) -> None:
        """A sampling round found the cgroup of a job removed."""
        for key, job in list(self._jobs.items()):
            if job.followed is followed:
                self._finish_if_gone(key)

    def _finish_if_gone(self, key: str) -> None:
        """Slurm removes a job from one hierarchy after the other; it ends with the last."""
        job = self._jobs.get(key)
        if job is None or same_directories(job.cgroup.inodes, inodes_of(job.cgroup.directories)):
            self._scan_due = True
            return
        self._finish(key)

    def _finish(self, key: str) -> None:
        job = self._jobs.pop(key, None)
        if job is None:
            return
        self.collector.drain()
        self._first_seen.forget(job.cgroup)
        self._event_window.job_ended()
        incomplete = any(not is_complete(other.view.info) for other in self._jobs.values())
        if self._identity is not None and not incomplete:
            self._identity.cancel()
        self.collector.finish(job.followed)
        self._finish_documents(job)
        logger.info("job %d: ended", job.view.sighting.job_id, extra={"action": "finish"})

    def _finish_documents(self, job: SampledJob) -> None:
        if self._complete_info is not None:
            job.view.info = self._complete_info(job.view.info)
        job.finish()

    def _tick(self) -> None:
        """Once a second: run the samplers that are due, and check the grace period."""
        now = time.monotonic()
        self._apply_results()
        if self.collector.overruns:
            self._log.report("overruns", "process events were lost: a socket buffer overflowed")
        if self._scan_due:
            self._scan()
        for job in self._jobs.values():
            job.tick(now)
        self._save_progress()
        if any(job.view.usage.members for job in self._jobs.values()):
            self._last_process_seen = now
        if self.grace_period is not None and now - self._last_process_seen > self.grace_period:
            logger.info("no process for %.0f s: stopping", self.grace_period)
            self.stop()

    def _save_progress(self) -> None:
        """For the next agent: until when the jobs were observed, and when they were not."""
        for job in self._jobs.values():
            if isinstance(job.probe, SlurmProbe):
                self._first_seen.set_gaps(job.cgroup, job.probe.gaps)
        if self._jobs:
            self._first_seen.touch()

    def _shut_down(self) -> None:
        """Take a last sample of every job. The next agent follows those that continue."""
        for job in list(self._jobs.values()):
            self.collector.sample(job.followed)
        self.collector.flush(complete=True)
        self._save_progress()
        for job in self._jobs.values():
            self._finish_documents(job)
            job.probe.close()
        self._jobs.clear()
        if self._control is not None:
            self._control.close()
        if self._identity is not None:
            self._identity.stop()
        self.collector.close()
        self.watcher.close()

    # The control socket.

    def _handle_request(self, request: Request) -> Reply:
        if request.do == "status":
            return Reply(True, status=self.status())
        if request.do == "job":
            if request.info is None:
                return Reply(False, "a job needs its info")
            if request.gpus is not None:
                self._assign_gpus(request.info.job_id, tuple(request.gpus))
            info = request.info
            if request.nodes is not None and info.nodes is None:
                info.nodes = expand_nodes(request.nodes)
            self.announce(info)
            return Reply(True)
        followed = [job for job in self._jobs.values() if job.view.info.job_id == request.job_id]
        if not followed:
            return Reply(False, f"job {request.job_id} is not followed on this node")
        self.collector.at(time.monotonic_ns(), self.collector.flush)
        own = [job for job in followed if job.view.sighting.node == request.node]
        view = (own or followed)[-1].view
        return Reply(True, info=view.info, gpus=view.gpus, node=view.sighting.node)

    def _assign_gpus(self, job_id: int, gpus: tuple[str, ...]) -> None:
        followed = [job for job in self._jobs.values() if job.view.sighting.job_id == job_id]
        for job in followed:
            job.view.gpus = gpus
        if not followed:
            self._pending_info.add_gpus(job_id, gpus)

    def status(self) -> dict[str, object]:
        """Figures about the agent itself."""
        collector, spool = self.collector, self.collector.spool
        sampler_errors: Counter[str] = Counter()
        for job in self._jobs.values():
            sampler_errors.update(job.errors.counts)
        return {
            "cluster": collector.cluster,
            "node": collector.node,
            "epoch": collector.epoch,
            "jobs": len(self._jobs),
            "processes": len(collector.tracker.processes),
            "rounds": collector.rounds,
            "round_cpu_nanoseconds": collector.rounds_cpu // max(1, collector.rounds),
            "cpu_nanoseconds": time.process_time_ns(),
            "events": collector.events is not None,
            "events_reason": collector.events_reason,
            "event_overruns": collector.overruns,
            "spool_batches": len(spool) if spool is not None else 0,
            "spool_bytes": spool.size if spool is not None else 0,
            "spool_dropped": spool.dropped if spool is not None else 0,
            "spool_refused": spool.refused if spool is not None else 0,
            "sampler_errors": dict(sampler_errors),
            "faults": dict(collector.errors.counts),
            "scheduler_failures": self._identity.failures if self._identity is not None else 0,
        }


class EventWindow:
    """Opens the event sockets for jobs and closes them on an idle node.

    The first processes of a job start as soon as its cgroups exist, so the announcement by a
    prolog opens the sockets earlier. A node without jobs pays nothing for events.
    """

    def __init__(self, collector: Collector, has_jobs: Callable[[], bool]) -> None:
        self._collector = collector
        self._has_jobs = has_jobs
        self._log = LogOnce(logger)
        self._open_until = 0
        self._close_planned = False

    def open(self) -> None:
        """A job, or its first cgroups, are on the node."""
        self._open_events()
        self._stay_open(IDLE_TIMEOUT)

    def expect_job(self) -> None:
        """A job was announced."""
        self._open_events()
        self._stay_open(ANNOUNCEMENT_TIMEOUT)

    def job_ended(self) -> None:
        """A job has ended, possibly the last."""
        self._stay_open(IDLE_TIMEOUT)

    def _open_events(self) -> None:
        if not self._collector.open_events():
            reason = self._collector.events_reason
            self._log.report(
                "events", f"no process events: {reason}; executables are attributed by polling"
            )

    def _stay_open(self, duration: int) -> None:
        self._open_until = max(self._open_until, time.monotonic_ns() + duration)
        self._plan_close()

    def _plan_close(self) -> None:
        if not self._close_planned:
            self._close_planned = True
            self._collector.at(self._open_until, self._close)

    def _close(self) -> None:
        self._close_planned = False
        if self._has_jobs():
            return
        if time.monotonic_ns() < self._open_until:
            self._plan_close()
        else:
            self._collector.close_events()


def _raise_descriptor_limit() -> None:
    """Raise the limit to its maximum: each process needs two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY:
        Descriptors.limit = max(hard // 2, hard - _RESERVED_DESCRIPTORS)


def _add_created_steps(job: SampledJob, created: Sequence[tuple[Path, str]]) -> None:
    if isinstance(job.probe, SlurmProbe):
        for directory, step in created:
            if directory in job.cgroup.directories.values():
                job.probe.add_created_step(step)
