"""Collector of one job, from prolog to epilog.

:class:`JobCollector` is the entry point. If the node's agent runs, :class:`AttachedCollector`
subscribes to the job's batches there and runs only samplers and outputs; otherwise an agent
restricted to the job measures it in this process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.agent.agent import Agent
from jobsight.agent.control import Request, Subscription, send_request
from jobsight.agent.job import FollowedJob, JobView, Output, ProbeReport, Row
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher, JobCgroup
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.process import JobUsage
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

#: Seconds to wait for the first part of the node's agent, and for the final one after the epilog.
FINAL_PART_TIMEOUT: Final = 5.0


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
        cluster: str,
        job_id: int,
        samplers: Sequence[SamplerPlan],
        outputs: Sequence[Callable[[JobView], Output]],
    ) -> None:
        self._subscription = subscription
        self._cluster = cluster
        self._job_id = job_id
        self._samplers = samplers
        self._outputs = outputs
        self._probe = AttachedProbe()
        self._stop = threading.Event()
        self._final = threading.Event()
        self._first = threading.Event()
        self._infos: list[JobInfo] = []

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="follower", daemon=True)
        reader.start()
        if not self._first.wait(FINAL_PART_TIMEOUT) or self._probe.part is None:
            self._subscription.close()
            raise JobsightError(f"the node's agent reports nothing about job {self._job_id}")
        job = self._job(self._probe.part)
        while not self._stop.wait(1.0) and not self._final.is_set():
            job.tick(time.monotonic())
        # The epilog may run before the agent sends the final part.
        self._final.wait(FINAL_PART_TIMEOUT)
        job.finish()
        self._subscription.close()

    def _read(self) -> None:
        try:
            for batch in self._subscription.batches():
                for part in batch.parts:
                    self._probe.part = part
                    self._first.set()
                    if part.final:
                        return
        except (OSError, ValueError) as error:
            logger.warning("the connection to the node's agent is lost: %s", error)
        finally:
            self._first.set()
            self._final.set()

    def _job(self, part: JobPart) -> SampledJob:
        cgroup = self._cgroup()
        info = JobInfo(cluster=self._cluster, job_id=self._job_id, source="cgroup", uid=cgroup.uid)
        view = JobView(
            sighting=part.sighting,
            info=info,
            probe=self._probe,
            usage=JobUsage(),
            counters=SlurmCounters(cgroup.directories),
        )
        followed = FollowedJob(part.sighting, self._probe, part.epoch)
        return SampledJob(cgroup, followed, view, self._probe, self._samplers, self._outputs)

    def _cgroup(self) -> JobCgroup:
        watcher = CgroupWatcher()
        try:
            for cgroup in watcher.jobs():
                if cgroup.job_id == self._job_id:
                    return cgroup
        finally:
            watcher.close()
        raise JobsightError(f"job {self._job_id} has no cgroup on this node")


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
    ) -> None:
        self._settings = settings
        self._outputs = outputs
        self._cluster = cluster
        self._job_id = job_id
        self._node = node
        self._run_directory = run_directory
        self._info = info
        self._engine: Agent | AttachedCollector | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()
        if self._engine is not None:
            self._engine.stop()

    def run(self) -> None:
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
        while not self._stop.wait(_SUBSCRIBE_INTERVAL):
            try:
                subscription = Subscription(self._run_directory, self._job_id)
            except JobsightError:
                if time.monotonic() - last_seen > self._settings.grace_period:
                    logger.info("no process for %g s: stopping", self._settings.grace_period)
                    self._stop.set()
                continue
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("the connection to the node's agent is lost: %s", error)
                return
            logger.info("job %d: attached to the node's agent", self._job_id)
            self._run(
                AttachedCollector(
                    subscription,
                    cluster=self._cluster,
                    job_id=self._job_id,
                    samplers=self._settings.samplers,
                    outputs=[_with_info(make, self._info) for make in self._outputs],
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


def _with_info(
    make: Callable[[JobView], Output], info: JobInfo | None
) -> Callable[[JobView], Output]:
    """Add the prolog's information, which the agent does not send."""

    def make_with_info(view: JobView) -> Output:
        if info is not None:
            view.info = merge_job_info(view.info, info, "overwrite")
        return make(view)

    return make_with_info
