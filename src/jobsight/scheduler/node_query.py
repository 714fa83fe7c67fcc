"""Who the jobs of a node are: one cached question to Slurm for all of them.

For the agent: the standard library and msgspec only. The answer is a value also when Slurm is
away, because an agent goes on without it. The squeue command reads fixed columns; each field is
closed by a mark that is random for each call, so nothing in a name can pass for another field.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler.commands import Runner, run_command
from jobsight.scheduler.errors import SchedulerError
from jobsight.scheduler.queue import ask_queue

#: Seconds for which an answer serves everybody who asks.
MAX_AGE = 10.0


class NodeJobs(msgspec.Struct, frozen=True):
    """The jobs of a node, running or ended within some minutes; or why they are not known."""

    jobs: tuple[JobInfo, ...] = ()
    #: Empty where Slurm answered. A node without jobs is an answer.
    reason: str = ""

    @property
    def known(self) -> bool:
        return not self.reason


def jobs_of_node(
    node: str, timeout: float = 10.0, *, cluster: str, run: Runner = run_command
) -> NodeJobs:
    """Ask squeue once for all jobs of a node, by the name that Slurm gives the node."""
    options = ["--states=all", f"--nodelist={node}"]
    try:
        return NodeJobs(tuple(ask_queue(cluster, options, timeout, run)))
    except SchedulerError as error:
        return NodeJobs(reason=str(error))


class NodeQuery:
    """The same question, asked at most once in ``max_age`` seconds; for any thread.

    A caller that saw a job which the last answer lacks asks with ``newer_than`` (a reading of the
    clock): an answer that was asked for later than that serves, however old.
    """

    def __init__(
        self,
        node: str,
        cluster: str,
        *,
        timeout: float = 10.0,
        max_age: float = MAX_AGE,
        run: Runner = run_command,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._cluster = cluster
        self._timeout = timeout
        self._max_age = max_age
        self._run = run
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._answer = NodeJobs(reason="Slurm has not been asked yet")

    def jobs(self, newer_than: float | None = None) -> NodeJobs:
        """The answer that is there if it is young enough, else a new one."""
        with self._lock:
            now = self._clock()
            wanted = now - self._max_age if newer_than is None else newer_than
            if self._asked is None or self._asked < wanted:
                self._asked = now
                self._answer = jobs_of_node(
                    self._node, self._timeout, cluster=self._cluster, run=self._run
                )
            return self._answer
