"""One job through the node's own agent: samplers and outputs here, the measuring there.

Beside a node daemon a collector for one job needs no events and no rounds of its own.

One job from prolog to epilog: through the node's agent where one runs, else by ourselves.
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


logger = logging.getLogger("jobsight.agent")

#: How long the last word of the node's agent is waited for when the epilog says that it is over.
FINAL_PART_TIMEOUT: Final = 5.0


class AttachedProbe:
    """What the node's agent last said about the job."""

    def __init__(self) -> None:
        self.part: JobPart | None = None
        self.read_at: int | None = None

    def sample(self) -> Row:
        return {}

    def read_final_counters(self) -> None:
        """Nothing is read here."""

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
        """The node's agent looks for steps."""

    def close(self) -> None:
        """The node's agent holds the descriptors."""


class AttachedCollector:
    """Follows one job through the node's agent until it ends or :meth:`stop` is called."""

    def __init__(
        self,
        follower: Subscription,
        *,
        cluster: str,
        job_id: int,
        samplers: Sequence[SamplerPlan],
        outputs: Sequence[Callable[[JobView], Output]],
    ) -> None:
        self._follower = follower
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
            self._follower.close()
            raise JobsightError(f"the node's agent says nothing about job {self._job_id}")
        job = self._job(self._probe.part)
        while not self._stop.wait(1.0) and not self._final.is_set():
            job.tick(time.monotonic())
        # The epilog may come before the agent's last word.
        self._final.wait(FINAL_PART_TIMEOUT)
        job.finish()
        self._follower.close()

    def _read(self) -> None:
        try:
            for batch in self._follower.batches():
                for part in batch.parts:
                    self._probe.part = part
                    self._first.set()
                    if part.final:
                        return
        except (OSError, ValueError) as error:
            logger.warning("the node's agent has gone: %s", error)
        finally:
            self._first.set()
            self._final.set()

    def _job(self, part: JobPart) -> SampledJob:
        place = self._place()
        info = JobInfo(cluster=self._cluster, job_id=self._job_id, source="cgroup", uid=place.uid)
        view = JobView(
            sighting=part.sighting,
            info=info,
            probe=self._probe,
            usage=JobUsage(),
            counters=SlurmCounters(place.directories),
        )
        followed = FollowedJob(part.sighting, self._probe, part.epoch)
        return SampledJob(place, followed, view, self._probe, self._samplers, self._outputs)

    def _place(self) -> JobCgroup:
        finder = CgroupWatcher()
        try:
            for place in finder.jobs():
                if place.job_id == self._job_id:
                    return place
        finally:
            finder.close()
        raise JobsightError(f"job {self._job_id} has no cgroup on this node")


#: A prolog comes before the job's cgroup: so often the agent is asked whether it follows it now.
_PAUSE: Final = 0.5

Outputs = Sequence[Callable[[JobView], Output]]


class JobCollector:
    """Two listeners on one node cost twice: beside an agent this is its client."""

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
        self._folder = run_directory
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
        return send_request(self._folder, Request("status")) is not None

    def _follow(self) -> None:
        """Through the agent, as often as the job comes (it may be requeued to this node)."""
        if self._info is not None:
            send_request(self._folder, Request("job", self._job_id, self._info))
        last_seen = time.monotonic()
        while not self._stop.wait(_PAUSE):
            try:
                follower = Subscription(self._folder, self._job_id)
            except JobsightError:
                if time.monotonic() - last_seen > self._settings.grace_period:
                    logger.info("no process for %g s: ending", self._settings.grace_period)
                    self._stop.set()
                continue
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("the node's agent has gone: %s", error)
                return
            logger.info("job %d: following through the node's agent", self._job_id)
            self._run(
                AttachedCollector(
                    follower,
                    cluster=self._cluster,
                    job_id=self._job_id,
                    samplers=self._settings.samplers,
                    outputs=[_informed(make, self._info) for make in self._outputs],
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
            # The job went in the moment between question and answer.
            logger.error("%s", error)
        finally:
            self._engine = None


def _informed(
    make: Callable[[JobView], Output], info: JobInfo | None
) -> Callable[[JobView], Output]:
    """What the prolog said is known here and not in what the agent sends."""

    def informed(view: JobView) -> Output:
        if info is not None:
            view.info = merge_job_info(view.info, info, "overwrite")
        return make(view)

    return informed
