"""Source ``pyslurm``: PySlurm from 22.5 on, always in a child process, because some calls crash."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from jobsight.model import SECOND
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.adapters.pyslurm import (
    adapt_accounting,
    adapt_nodes,
    adapt_partitions,
    adapt_queue,
)
from jobsight.scheduler.records import AdaptError, Jobs, Nodes, Partitions, Problem, SourceError
from jobsight.scheduler.sources.pyslurm_child import FORMAT
from jobsight.util.decoding import decode_json_as

#: Seconds of accounting that are searched for jobs by id: not all versions can filter by id.
_HISTORY = 30 * 86400


class ScriptRunner(Protocol):
    """Runs a command with data on its standard input."""

    def __call__(
        self, command: Sequence[str], timeout: float, *, given: bytes
    ) -> Iterable[bytes]: ...


class _Reply(msgspec.Struct):
    format: str = ""
    reason: str = ""
    version: str = ""
    shape: str = ""
    records: list[Any] = []
    #: Intervals for which PySlurm raised an exception, and the exception.
    lost: list[tuple[str, str]] = []


class PySlurmSource:
    """Queries a Python that has PySlurm; a crash there is a query without an answer."""

    name = "pyslurm"
    whole = False

    def __init__(
        self,
        cluster: str,
        *,
        timeout: float,
        run: ScriptRunner,
        python: str = "python3",
        clock: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._run = run
        self._python = python
        self._clock = clock
        package = importlib.resources.files("jobsight.scheduler.sources")
        self._script = (package / "pyslurm_child.py").read_bytes()

    def probe(self) -> str:
        version = self._query("probe").version
        jobs = self.queue().records
        return f"PySlurm {version} answers, {len(jobs)} jobs"

    def cluster_name(self) -> str | None:
        records = self._query("name").records
        return records[0] if records and isinstance(records[0], str) else None

    def queue(self) -> Jobs:
        reply = self._query("queue")
        jobs = adapt_queue(reply.records, self._cluster)
        jobs.release = reply.version
        return jobs

    def accounting(self, since: int, until: int) -> Jobs:
        reply = self._query("accounting", since // SECOND, -(-until // SECOND))
        jobs = adapt_accounting(reply.records, self._cluster)
        jobs.problems += [
            Problem(f"accounting from {interval}", "time", f"PySlurm raised {error}")
            for interval, error in reply.lost
        ]
        jobs.release = reply.version
        return jobs

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        wanted = set(job_ids)
        now = self._clock()
        jobs = self.accounting(now - _HISTORY * SECOND, now + 60 * SECOND)
        return Jobs((record for record in jobs if record.info.job_id in wanted), jobs.problems)

    def nodes(self) -> Nodes:
        reply = self._query("nodes")
        nodes = adapt_nodes(reply.records, self._cluster)
        nodes.release = reply.version
        return nodes

    def partitions(self) -> Partitions:
        reply = self._query("partitions")
        seconds = reply.shape == "partition"
        partitions = adapt_partitions(reply.records, self._cluster, seconds=seconds)
        partitions.release = reply.version
        return partitions

    def policy(self) -> Policy:
        return Policy()

    def _query(self, question: str, *numbers: int) -> _Reply:
        command = [self._python, "-", question, *map(str, numbers)]
        data = b"".join(self._run(command, self._timeout, given=self._script))
        try:
            reply = decode_json_as(_Reply, data)
        except msgspec.DecodeError as error:
            raise AdaptError(f"PySlurm's reply about {question} is not JSON: {error}") from None
        if reply.format != FORMAT:
            raise AdaptError(f"PySlurm's reply about {question} is from another program")
        if reply.reason:
            raise SourceError(reply.reason)
        return reply
