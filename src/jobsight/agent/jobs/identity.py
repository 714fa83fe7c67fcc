"""The identity of jobs: user, account, requested resources, from three sources.

:func:`info_from_prolog` reads the environment that slurmd sets for a prolog; a user cannot change
it. :func:`info_from_cgroup` gives what the cgroup itself shows. :class:`Identity` queries Slurm
for the rest of all jobs of a node, :class:`JobQuery` for that of one job. :class:`PendingJobInfo`
keeps announcements until the cgroup of the job appears.
"""

from __future__ import annotations

import logging
import pwd
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from jobsight.agent.jobs.cgroup_watcher import JobCgroup
from jobsight.errors import JobsightError
from jobsight.model import SECOND, JobInfo, merge_job_info
from jobsight.util.backoff import Backoff
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

#: The cgroup of an announced job may never appear.
MAX_PENDING: Final = 1_000
#: Seconds between two queries of slurmctld, however many jobs start, and the largest backoff.
MIN_QUERY_INTERVAL: Final = 5.0
MAX_QUERY_INTERVAL: Final = 300.0
#: Seconds from the start of a job to the query.
JOIN_DELAY: Final = 1.0
#: CPUs on one node or on several, as in SLURM_JOB_CPUS_PER_NODE.
_CPUS: Final = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", re.ASCII)


class PendingJobInfo:
    """Announcements of jobs whose cgroup does not exist yet; the oldest is dropped first."""

    def __init__(self) -> None:
        self._infos: dict[int, JobInfo] = {}
        self._gpus: dict[int, tuple[str, ...]] = {}

    def add_info(self, info: JobInfo) -> None:
        self._infos[info.job_id] = info
        if len(self._infos) > MAX_PENDING:
            del self._infos[next(iter(self._infos))]

    def add_gpus(self, job_id: int, gpus: tuple[str, ...]) -> None:
        self._gpus[job_id] = gpus
        if len(self._gpus) > MAX_PENDING:
            del self._gpus[next(iter(self._gpus))]

    def pop_info(self, job_id: int) -> JobInfo | None:
        return self._infos.pop(job_id, None)

    def pop_gpus(self, job_id: int) -> tuple[str, ...] | None:
        return self._gpus.pop(job_id, None)


def info_from_cgroup(cluster: str, job_id: int, cgroup: JobCgroup) -> JobInfo:
    """The identity of a job as far as its cgroup shows it."""
    user = None
    if cgroup.uid is not None:
        try:
            user = pwd.getpwuid(cgroup.uid).pw_name
        except KeyError:
            user = str(cgroup.uid)
    return JobInfo(
        cluster=cluster,
        job_id=job_id,
        source="cgroup",
        sluid=cgroup.sluid,
        user=user,
        uid=cgroup.uid,
    )


def info_from_prolog(environment: Mapping[str, str], cluster: str, job_id: int) -> JobInfo | None:
    """The identity of a job from the environment of its prolog; None if it is that of another."""
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
        nodes=_nodes(environment),
        cpus=_cpus(environment),
        name=environment.get("SLURM_JOB_NAME") or None,
        start=start * SECOND if start else None,
    )


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a number."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _nodes(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    # slurmd sets the short name in the prolog, slurmctld the long one.
    return expand_nodes(
        environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    )


def expand_nodes(text: str) -> tuple[str, ...] | None:
    """The nodes of a list such as ``n[1-3]``; None if there are none or it is not a list."""
    # Imported only where it is used, to keep the agent small.
    from jobsight.scheduler.hostlist import expand_hosts

    try:
        return expand_hosts(text) or None
    except ValueError as error:
        logger.warning("the prolog's list of nodes is not used: %s", error)
        return None


def _cpus(environment: Mapping[str, str]) -> int | None:
    """The CPUs of all nodes from a text such as ``4(x2),8``; None if it does not cover them."""
    cpus = nodes = 0
    for group in environment.get("SLURM_JOB_CPUS_PER_NODE", "").split(","):
        match = _CPUS.fullmatch(group)
        if match is None:
            return None
        count = int(match[2] or 1)
        cpus += int(match[1]) * count
        nodes += count
    return cpus if nodes == _number(environment, "SLURM_JOB_NUM_NODES") else None


def is_complete(info: JobInfo) -> bool:
    """Whether a record of SAMS can be written: its core hours and record id need these fields."""
    values = (info.user, info.account, info.cpus, info.node_count, info.start, info.name)
    return None not in values


#: Seconds between queries for a job that is still pending, or still completing.
_DELAYS: Final = (0.5, 0.5, 1, 2, 4, 8)


class JobQuery:
    """Queries Slurm for one job: once for each of its runs, however many parts need the reply."""

    def __init__(
        self, query: Callable[[], JobInfo], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._query = query
        self._sleep = sleep
        self._lock = threading.Lock()
        self._info: JobInfo | None = None
        #: A run has ended, so that there is nothing to prefetch.
        self._ended = False

    def prefetch(self) -> None:
        """Query now, in a thread: a job of a second has no start in Slurm's queue once it ends."""
        threading.Thread(target=self._prefetch, name="jobsight-job-query", daemon=True).start()

    def jobs(self) -> list[JobInfo]:
        """The reply as a list, as :class:`Identity` expects it; raises if Slurm is unreachable."""
        with self._lock:
            return [self._reply()]

    def _reply(self) -> JobInfo:
        """The reply for the current run; the caller holds the lock."""
        if self._info is not None:
            return self._info
        info = self._query()
        if is_complete(info):
            # That of a pending job is not: it has neither nodes nor a start yet.
            self._info = info
        return info

    def complete(self, info: JobInfo) -> JobInfo:
        """The identity of a run that ends; the next run of the job is queried again."""
        try:
            for delay in (*_DELAYS, None):
                if is_complete(info):
                    break
                reply = self.jobs()[0]
                info = merge_job_info(info, reply, "overwrite")
                if reply.state != "COMPLETING" or delay is None:
                    break
                # Until its nodes are free, Slurm's queue has no certain start and not all nodes.
                self._sleep(delay)
        except JobsightError as error:
            logger.warning("job %d: its record is incomplete: %s", info.job_id, error)
        with self._lock:
            self._info, self._ended = None, True
        return info

    def _prefetch(self) -> None:
        try:
            for delay in _DELAYS:
                with self._lock:
                    if self._ended or is_complete(self._reply()):
                        return
                self._sleep(delay)
        except JobsightError as error:
            logger.info("Slurm cannot be queried for the job yet: %s", error)


class Identity(threading.Thread):
    """Queries Slurm for the identity of the node's jobs: one query for all, in its own thread.

    A query is made after a job has started that no prolog announced completely, and repeated with
    a backoff while Slurm is unreachable.
    """

    def __init__(
        self,
        query: Callable[[], list[JobInfo]],
        deliver: Callable[[list[JobInfo]], None],
        *,
        min_interval: float = MIN_QUERY_INTERVAL,
    ) -> None:
        super().__init__(name="jobsight-identity", daemon=True)
        self._query = query
        self._deliver = deliver
        self._min_interval = min_interval
        self._next_query = 0.0
        self._backoff = Backoff(min_interval, MAX_QUERY_INTERVAL)
        self._log = LogOnce(logger)
        self._requested = threading.Event()
        self._stopped = threading.Event()

    @property
    def failures(self) -> int:
        """Failed queries since the last success."""
        return self._backoff.failures

    def request(self) -> None:
        """Query soon: a job has started whose identity is incomplete."""
        self._requested.set()

    def cancel(self) -> None:
        """No query is needed: no job is left whose identity is incomplete."""
        self._requested.clear()

    def run(self) -> None:
        delay = 0.0
        while not self._stopped.is_set():
            self._requested.wait()
            # Jobs start together, and one query serves them all.
            delay = max(delay, min(JOIN_DELAY, self._min_interval))
            self._stopped.wait(max(delay, self._next_query - time.monotonic()))
            if not self._stopped.is_set() and self._requested.is_set():
                delay = self._query_once()

    def _query_once(self) -> float:
        """One query; returns the delay before the next."""
        self._requested.clear()
        self._next_query = time.monotonic() + self._min_interval
        try:
            infos = self._query()
        except Exception as error:
            self._log.report("query", f"Slurm cannot be queried for the node's jobs: {error}")
            self._requested.set()
            delay = self._backoff.fail()
            logger.debug("next query of Slurm in %.1f s by the backoff: %s", delay, error)
            return delay
        logger.debug("Slurm returned %d jobs of this node", len(infos))
        self._log.resolve("query", "Slurm can be queried again")
        self._backoff.reset()
        self._deliver(infos)
        return 0.0

    def stop(self) -> None:
        self._stopped.set()
        self._requested.set()
