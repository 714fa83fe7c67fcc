"""Who the jobs are: what was said of jobs that have not come yet, and what the node sees itself.

Who a job is, from the environment that Slurm gives its prolog.

slurmd itself sets these variables for a prolog, and a user has no hand in them. They are believed
only for the job that they name.

Asks Slurm who the jobs of this node are: one question for all of them, beside the loop.
"""

from __future__ import annotations

import logging
import pwd
import threading
from collections.abc import Callable, Mapping
from typing import Final

from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.model import SECOND, JobInfo

#: A prolog may tell of jobs whose directories never come.
_LIMIT: Final = 1_000


class PendingJobInfo:
    """What prologs said before the job's directories came; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._infos: dict[int, JobInfo] = {}
        self._gpus: dict[int, tuple[str, ...]] = {}

    def keep_info(self, info: JobInfo) -> None:
        self._infos[info.job_id] = info
        if len(self._infos) > _LIMIT:
            del self._infos[next(iter(self._infos))]

    def keep_gpus(self, job_id: int, gpus: tuple[str, ...]) -> None:
        self._gpus[job_id] = gpus
        if len(self._gpus) > _LIMIT:
            del self._gpus[next(iter(self._gpus))]

    def take_info(self, job_id: int) -> JobInfo | None:
        return self._infos.pop(job_id, None)

    def take_gpus(self, job_id: int) -> tuple[str, ...] | None:
        return self._gpus.pop(job_id, None)


def info_from_cgroup(cluster: str, job_id: int, place: JobCgroup) -> JobInfo:
    """What the node itself knows of a job."""
    user = None
    if place.uid is not None:
        try:
            user = pwd.getpwuid(place.uid).pw_name
        except KeyError:
            user = str(place.uid)
    return JobInfo(
        cluster=cluster,
        job_id=job_id,
        source="cgroup",
        sluid=place.sluid,
        user=user,
        uid=place.uid,
    )


def info_from_prolog(environment: Mapping[str, str], cluster: str, job_id: int) -> JobInfo | None:
    """What the prolog was told about this job; None where it was told nothing."""
    if environment.get("SLURM_JOB_ID") != str(job_id):
        return None
    start = _number(environment, "SLURM_JOB_START_TIME")
    return JobInfo(
        cluster=environment.get("SLURM_CLUSTER_NAME") or cluster,
        job_id=job_id,
        source="prolog",
        sluid=environment.get("SLURM_JOB_SLUID") or None,
        restart_count=_number(environment, "SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT"),
        het_job_id=_number(environment, "SLURM_HET_JOB_ID"),
        array_job_id=_number(environment, "SLURM_ARRAY_JOB_ID"),
        array_task_id=_number(environment, "SLURM_ARRAY_TASK_ID"),
        user=environment.get("SLURM_JOB_USER") or None,
        uid=_number(environment, "SLURM_JOB_UID"),
        account=environment.get("SLURM_JOB_ACCOUNT") or None,
        partition=environment.get("SLURM_JOB_PARTITION") or None,
        nodes=_nodes(environment.get("SLURM_JOB_NODELIST", "")),
        start=start * SECOND if start else None,
    )


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    """The first of these that is a number."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _nodes(text: str) -> tuple[str, ...] | None:
    # A list with brackets is Slurm's to expand; the server asks it.
    return tuple(text.split(",")) if text and "[" not in text else None


logger = logging.getLogger("jobsight.agent")

#: slurmctld is left in peace: however many jobs begin, it is not asked more often than this.
SHORTEST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0


class Identity(threading.Thread):
    """Asks when a job begins that nobody has told of, and again while Slurm is away."""

    def __init__(
        self,
        ask: Callable[[], list[JobInfo]],
        tell: Callable[[list[JobInfo]], None],
        *,
        pause: float = SHORTEST_PAUSE,
    ) -> None:
        super().__init__(name="identity", daemon=True)
        self._ask = ask
        self._tell = tell
        self._pause = pause
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self.failures = 0
        self.last_error = ""

    def want(self) -> None:
        """A job has begun whose owner is not known."""
        self._wanted.set()

    def run(self) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            if self._ended.is_set():
                return
            self._wanted.clear()
            self._ended.wait(self._pause_after(self.failures))
            self._once()

    def _pause_after(self, failures: int) -> float:
        if failures == 0:
            # Jobs begin together; one answer shall serve them all.
            return min(1.0, self._pause)
        return min(self._pause * 2.0 ** (failures - 1), LONGEST_PAUSE)

    def _once(self) -> None:
        try:
            answer = self._ask()
        except Exception as error:
            self.failures += 1
            if self.last_error != str(error):
                self.last_error = str(error)
                logger.warning("Slurm cannot be asked who the jobs are: %s", error)
            self._wanted.set()
            return
        self.failures, self.last_error = 0, ""
        self._tell(answer)

    def end(self) -> None:
        self._ended.set()
        self._wanted.set()
