"""PySlurm, from 22.5 on: always in a process of its own, because some of its calls crash."""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from jobsight.model import SECOND
from jobsight.scheduler.adapters.policy import Policy
from jobsight.scheduler.adapters.pyslurm import read_booked, read_node, read_partition, read_queued
from jobsight.scheduler.fields import RecordReader
from jobsight.scheduler.records import AdaptError, Jobs, Nodes, Partitions, Problem, SourceError
from jobsight.scheduler.sources.pyslurm_child import FORMAT

Record = TypeVar("Record")

#: Seconds around which the accounting is asked for jobs by their ids, which PySlurm cannot do alike
#: in all versions.
_LONG_AGO = 30 * 86400


class ScriptRunner(Protocol):
    """Runs a command with something on its standard input."""

    def __call__(
        self, command: Sequence[str], timeout: float, *, given: bytes
    ) -> Iterable[bytes]: ...


class _Answer(msgspec.Struct):
    format: str = ""
    reason: str = ""
    version: str = ""
    shape: str = ""
    records: list[Any] = []
    #: Stretches of time for which PySlurm raised.
    lost: list[str] = []


class PySlurmSource:
    """Asks a Python that has PySlurm; a crash there is a question without an answer."""

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
        folder = importlib.resources.files("jobsight.scheduler.sources")
        self._script = (folder / "pyslurm_child.py").read_bytes()

    def probe(self) -> str:
        version = self._ask("probe").version
        jobs = self.queue().records
        return f"PySlurm {version} answers, {len(jobs)} jobs"

    def queue(self) -> Jobs:
        answer = self._ask("queue")
        return self._jobs(answer, lambda r: read_queued(r, self._cluster, answer.shape))

    def accounting(self, since: int, until: int) -> Jobs:
        answer = self._ask("accounting", since // SECOND, -(-until // SECOND))
        return self._jobs(answer, lambda r: read_booked(r, self._cluster, answer.shape))

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        wanted = set(job_ids)
        now = self._clock()
        jobs = self.accounting(now - _LONG_AGO * SECOND, now + 60 * SECOND)
        return Jobs((record for record in jobs if record.info.job_id in wanted), jobs.problems)

    def nodes(self) -> Nodes:
        answer = self._ask("nodes")
        records, problems = _read(answer, "node", lambda r: read_node(r, self._cluster))
        return Nodes(records=records, problems=problems, release=answer.version)

    def policy(self) -> Policy:
        return Policy()

    def partitions(self) -> Partitions:
        answer = self._ask("partitions")
        records, problems = _read(
            answer, "partition", lambda r: read_partition(r, self._cluster, answer.shape)
        )
        return Partitions(records=records, problems=problems, release=answer.version)

    def _jobs(self, answer: _Answer, read: Callable[[RecordReader], Any]) -> Jobs:
        records, problems = _read(answer, "job", read)
        problems += [Problem("accounting", "time", f"PySlurm raised for {s}") for s in answer.lost]
        jobs = Jobs(records, problems)
        jobs.release = answer.version
        return jobs

    def _ask(self, question: str, *numbers: int) -> _Answer:
        command = [self._python, "-", question, *map(str, numbers)]
        data = b"".join(self._run(command, self._timeout, given=self._script))
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except msgspec.DecodeError as error:
            raise AdaptError(f"PySlurm's answer about {question} is no JSON: {error}") from None
        if answer.format != FORMAT:
            raise AdaptError(f"PySlurm's answer about {question} is of another program")
        if answer.reason:
            raise SourceError(answer.reason)
        return answer


def _read(
    answer: _Answer, kind: str, read: Callable[[RecordReader], Record]
) -> tuple[list[Record], list[Problem]]:
    records: list[Record] = []
    problems: list[Problem] = []
    for entry in answer.records:
        names = ("job_id", "jobid", "id", "name")
        shown = next((entry[name] for name in names if name in entry), "?")
        reader = RecordReader(entry, f"{kind} {shown}")
        try:
            records.append(read(reader))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problems.append(Problem(reader.label, kind, str(error)))
        problems += reader.problems
    if answer.records and not records:
        raise AdaptError(f"none of {len(answer.records)} {kind}s of PySlurm was understood")
    return records, problems
