"""Collector of one job, from prolog to epilog.

:class:`JobCollector` is the entry point. If the node's agent runs, :class:`AttachedCollector`
subscribes to the job's batches there and runs only samplers and outputs; otherwise an agent
restricted to the job measures it in this process.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.agent.agent import Agent
from jobsight.agent.control import Request, Subscription, send_request
from jobsight.agent.job import FollowedJob, JobView, Output, ProbeReport, Row
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher, JobCgroup
from jobsight.agent.jobs.identity import JobQuery, info_from_cgroup
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.executables import ExecutableNames
from jobsight.agent.processes.proc_reader import ProcessReader
from jobsight.agent.processes.process import JobUsage, Process, Segment
from jobsight.agent.sampling import SampledJob, SamplerPlan
from jobsight.errors import JobsightError
from jobsight.model import (
    ExecutableUse,
    JobInfo,
    JobPart,
    JobTotals,
    merge_job_info,
)

if TYPE_CHECKING:
    from jobsight.model import JobInfo
    from jobsight.sams.node.settings import SamsSettings


logger = logging.getLogger(__name__)

#: Seconds to wait for a part of the node's agent.
PART_TIMEOUT: Final = 5.0
#: Seconds to wait for the end of a job whose collector is stopped.
_END_TIMEOUT: Final = 1.0
#: Seconds between two lists of the job's processes, and samplers that need none.
_MEMBERS_INTERVAL: Final = 10.0
_WITHOUT_PROCESSES: Final = frozenset(
    {"sams.sampler.Core", "sams.sampler.Software", "sams.sampler.SlurmInfo"}
)


class AttachedProbe:
    """The last part of the job that the node's agent sent."""

    def __init__(self) -> None:
        self.part: JobPart | None = None
        self.read_at: int | None = None

    def sample(self) -> Row:
        return {}

    def read_final_counters(self) -> None:
        """The node's agent reads the counters."""

    def report(self, events_lost: int) -> ProbeReport:
        if self.part is None:
            return ProbeReport(self.totals(), [], [], {})
        part = self.part
        return ProbeReport(self.totals(), part.executables, part.steps, part.coverage)

    def executables(self) -> list[ExecutableUse]:
        return self.part.executables if self.part else []

    def totals(self) -> JobTotals:
        if self.part is not None and self.part.totals is not None:
            return self.part.totals
        return JobTotals(time=time.time_ns(), cpu_source="process tree")

    def refresh(self) -> None:
        """The node's agent finds new steps."""

    def close(self) -> None:
        """The node's agent holds the descriptors."""


class AttachedCollector:
    """Follows one job through the node's agent until it ends or :meth:`stop` is called."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        run_directory: Path,
        job_id: int,
        info: JobInfo | None,
        query: JobQuery | None,
        samplers: Sequence[SamplerPlan],
        outputs: Sequence[Callable[[JobView], Output]],
    ) -> None:
        self._subscription = subscription
        self._run_directory = run_directory
        self._job_id = job_id
        #: What the prolog knows; the agent may know more.
        self._info = info
        self._query = query
        self._samplers = samplers
        self._outputs = outputs
        self._probe = AttachedProbe()
        self._stop = threading.Event()
        self._final = threading.Event()
        self._received = threading.Event()
        #: Additions to the job's identity that the agent has sent since the subscription.
        self._infos: queue.SimpleQueue[JobInfo] = queue.SimpleQueue()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="follower", daemon=True)
        reader.start()
        try:
            self._wait_for_part(lambda part: True)
            if self._probe.part is None:
                raise JobsightError(f"the node's agent reports nothing about job {self._job_id}")
            job = self._job(self._probe.part)
            members = _Members(job.view, [plan.name for plan in self._samplers])
            while not self._stop.wait(1.0) and not self._final.is_set():
                self._apply_infos(job.view)
                members.update(time.monotonic())
                job.tick(time.monotonic())
            self._wait_for_last_part()
            self._apply_infos(job.view)
            if self._query is not None:
                job.view.info = self._query.complete(job.view.info)
            job.finish()
        finally:
            self._subscription.close()

    def _read(self) -> None:
        try:
            for batch in self._subscription.batches():
                for info in batch.jobs:
                    self._infos.put(info)
                for part in batch.parts:
                    self._probe.part = part
                    self._received.set()
                    if part.final:
                        return
        except (OSError, ValueError) as error:
            logger.warning("the connection to the node's agent is lost: %s", error)
        finally:
            self._final.set()
            self._received.set()

    def _wait_for_part(self, wanted: Callable[[JobPart], bool]) -> None:
        """Wait for a part, up to a limit. No other part follows the final one."""
        deadline = time.monotonic() + PART_TIMEOUT
        while not self._final.is_set() and time.monotonic() < deadline:
            if self._probe.part is not None and wanted(self._probe.part):
                return
            self._received.wait(deadline - time.monotonic())
            self._received.clear()

    def _wait_for_last_part(self) -> None:
        """Wait for the final part if the job has ended, else for one as of now.

        The last part may be as old as the agent's flush interval, and SIGHUP may come while the
        job runs.
        """
        if self._final.is_set():
            return
        now = time.time_ns()
        request = Request("follow", self._job_id, node=self._subscription.reply.node)
        reply = send_request(self._run_directory, request)
        if reply is not None and reply.ok:
            self._wait_for_part(lambda part: part.totals is not None and part.totals.time >= now)
            # The epilog may run before the agent sees the end of the job.
            self._final.wait(_END_TIMEOUT)
        else:
            self._final.wait(PART_TIMEOUT)

    def _apply_infos(self, view: JobView) -> None:
        while not self._infos.empty():
            view.info = merge_job_info(view.info, self._infos.get(), "overwrite")

    def _job(self, part: JobPart) -> SampledJob:
        cgroup = self._cgroup(part.sighting.node)
        reply = self._subscription.reply
        info = reply.info or info_from_cgroup(part.sighting.cluster, self._job_id, cgroup)
        if self._info is not None:
            info = merge_job_info(info, self._info, "fill")
        view = JobView(
            sighting=part.sighting,
            info=info,
            probe=self._probe,
            usage=JobUsage(),
            counters=SlurmCounters(cgroup.directories) if cgroup.directories else None,
            gpus=reply.gpus,
        )
        followed = FollowedJob(part.sighting, self._probe, part.epoch)
        return SampledJob(cgroup, followed, view, self._probe, self._samplers, self._outputs)

    def _cgroup(self, node: str) -> JobCgroup:
        watcher = CgroupWatcher()
        try:
            for cgroup in watcher.jobs():
                if cgroup.job_id == self._job_id and cgroup.node in (None, node):
                    return cgroup
        finally:
            watcher.close()
        # It is gone already; the agent's parts are complete without it.
        return JobCgroup("", Path(), {}, self._job_id, None, None, None, {})


class _Members:
    """The live processes of a job, for samplers that read them: the agent sends only sums."""

    def __init__(self, view: JobView, samplers: Sequence[str]) -> None:
        self._view = view
        self._names = ExecutableNames()
        self._reader = ProcessReader()
        self._needed = not set(samplers) <= _WITHOUT_PROCESSES
        self._next_update = 0.0

    def update(self, now: float) -> None:
        counters = self._view.counters
        if not self._needed or now < self._next_update or not isinstance(counters, SlurmCounters):
            return
        self._next_update = now + _MEMBERS_INTERVAL
        try:
            counters.refresh()
            present = set(counters.processes())
        except OSError:
            # The cgroups are being removed.
            present = set()
        usage = self._view.usage
        for pid in usage.members.keys() - present:
            del usage.members[pid]
        new = list(present - usage.members.keys())
        names = self._reader.read(usage, self._names.by_link, new)
        for pid, name in zip(new, names, strict=True):
            segment = Segment(name, time.monotonic_ns(), executed=False)
            usage.members[pid] = Process(pid, usage, segment)
        for process in usage.members.values():
            with suppress(OSError):
                process.threads = len(os.listdir(f"/proc/{process.tgid}/task"))


#: Seconds between two attempts to subscribe: a prolog runs before the job's cgroup exists.
_SUBSCRIBE_INTERVAL: Final = 0.5

Outputs = Sequence[Callable[[JobView], Output]]


class JobCollector:
    """Collects one job, as a client of the node's agent if there is one."""

    def __init__(
        self,
        settings: SamsSettings,
        outputs: Outputs,
        *,
        cluster: str,
        job_id: int,
        node: str,
        run_directory: Path,
        info: JobInfo | None = None,
        query: JobQuery | None = None,
    ) -> None:
        self._settings = settings
        self._outputs = outputs
        self._cluster = cluster
        self._job_id = job_id
        self._node = node
        self._run_directory = run_directory
        self._info = info
        self._query = query
        self._engine: Agent | AttachedCollector | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()
        if self._engine is not None:
            self._engine.stop()

    def run(self) -> None:
        if self._query is not None:
            self._query.prefetch()
        if self._agent_answers():
            self._follow()
        if not self._stop.is_set() and not self._agent_answers():
            self._measure()

    def _agent_answers(self) -> bool:
        return send_request(self._run_directory, Request("status")) is not None

    def _follow(self) -> None:
        """Collect through the agent; again each time the job is requeued to this node."""
        if self._info is not None:
            send_request(self._run_directory, Request("job", self._job_id, self._info))
        last_seen = time.monotonic()
        attached = False
        while True:
            stopping = self._stop.wait(_SUBSCRIBE_INTERVAL)
            # One attempt after the stop as well: the job may have started a moment ago.
            if stopping and attached:
                return
            try:
                subscription = Subscription(self._run_directory, self._job_id, self._node)
            except JobsightError:
                if stopping:
                    return
                if time.monotonic() - last_seen > self._settings.grace_period:
                    logger.info("no process for %g s: stopping", self._settings.grace_period)
                    self._stop.set()
                continue
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("the connection to the node's agent is lost: %s", error)
                return
            attached = True
            logger.info("job %d: attached to the node's agent", self._job_id)
            self._run(
                AttachedCollector(
                    subscription,
                    run_directory=self._run_directory,
                    job_id=self._job_id,
                    info=self._info,
                    query=self._query,
                    samplers=self._settings.samplers,
                    outputs=self._outputs,
                )
            )
            last_seen = time.monotonic()

    def _measure(self) -> None:
        agent = Agent(
            cluster=self._cluster,
            node=self._node,
            spool=None,
            samplers=self._settings.samplers,
            outputs=self._outputs,
            job_id=self._job_id,
            grace_period=self._settings.grace_period,
            query_jobs=self._query.jobs if self._query is not None else None,
            complete_info=self._query.complete if self._query is not None else None,
        )
        if self._info is not None:
            agent.announce(self._info)
        self._run(agent)

    def _run(self, engine: Agent | AttachedCollector) -> None:
        self._engine = engine
        if self._stop.is_set():
            engine.stop()
        try:
            engine.run()
        except JobsightError as error:
            # The job ended between request and reply.
            logger.error("%s", error)
        finally:
            self._engine = None
