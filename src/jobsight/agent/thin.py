"""One job through the node's own agent: samplers and outputs here, the measuring there.

Beside a node daemon a collector for one job needs no events and no rounds of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from jobsight.agent.control import Follower
from jobsight.agent.job import FollowedJob, JobView, Output
from jobsight.agent.jobs.cgroup_watcher import CgroupWatcher, JobCgroup
from jobsight.agent.probes.cgroup import Row
from jobsight.agent.probes.slurm_cgroup import SlurmCounters
from jobsight.agent.processes.process import JobUsage
from jobsight.agent.sampling import SampledJob, SamplerPlan
from jobsight.errors import JobsightError
from jobsight.model import Coverage, ExecutableUse, JobInfo, JobPart, JobTotals, StepUse

logger = logging.getLogger("jobsight.agent")

#: How long the last word of the node's agent is waited for when the epilog says that it is over.
LAST_WORD: Final = 5.0


class RemoteProbe:
    """What the node's agent last said about the job."""

    def __init__(self) -> None:
        self.part: JobPart | None = None
        self.read_at: int | None = None

    def sample(self) -> Row:
        return {}

    def settle(self) -> None:
        """Nothing is read here."""

    def steps(self) -> list[StepUse]:
        return self.part.steps if self.part else []

    def executables(self) -> list[ExecutableUse]:
        return self.part.executables if self.part else []

    def totals(self) -> JobTotals:
        if self.part is not None and self.part.totals is not None:
            return self.part.totals
        return JobTotals(time=time.time_ns(), cpu_source="process tree")

    def coverage(self, lost: int) -> dict[str, Coverage]:
        return self.part.coverage if self.part else {}

    def refresh(self) -> None:
        """The node's agent looks for steps."""

    def close(self) -> None:
        """The node's agent holds the descriptors."""


class ThinAgent:
    """Follows one job through the node's agent until it ends or :meth:`stop` is called."""

    def __init__(
        self,
        follower: Follower,
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
        self._probe = RemoteProbe()
        self._stop = threading.Event()
        self._final = threading.Event()
        self._first = threading.Event()
        self._infos: list[JobInfo] = []

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="follower", daemon=True)
        reader.start()
        if not self._first.wait(LAST_WORD) or self._probe.part is None:
            self._follower.close()
            raise JobsightError(f"the node's agent says nothing about job {self._job_id}")
        job = self._job(self._probe.part)
        while not self._stop.wait(1.0) and not self._final.is_set():
            job.tick(time.monotonic())
        # The epilog may come before the agent's last word.
        self._final.wait(LAST_WORD)
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
            counters=SlurmCounters(place.folders),
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
