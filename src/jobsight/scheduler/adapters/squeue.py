"""The controller's jobs by ``squeue`` with fixed columns; small enough for the agent.

Who the jobs of a node are: one cached question to Slurm for all of them.

For the agent: the standard library and msgspec only. The answer is a value also when Slurm is
away, because an agent goes on without it. The squeue command reads fixed columns; each field is
closed by a mark that is random for each call, so nothing in a name can pass for another field.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler.fields import (
    count_gpus,
    from_wait_status,
    parse_duration,
    parse_job_state,
    parse_time,
    parse_tres,
)
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import AdaptError, SchedulerError, SourceError
from jobsight.scheduler.sources.commands import Runner, new_delimiter, run_command, split_records

#: Free text stands last, so that a row is complete before it begins.
COLUMNS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "UserName", "UserID", "Account", "Partition", "State",
    "RestartCnt", "NodeList", "NumCPUs", "tres-alloc", "TimeLimit", "SubmitTime", "StartTime",
    "EndTime", "exit_code", "QOS", "HetJobID", "HetJobOffset", "Command", "Name",
)  # fmt: skip
#: Columns with another name, or none, before 20.02.
_NEWER = ("HetJobID", "HetJobOffset")
_REFUSED = re.compile(r"invalid.*(format|field)|unrecognized", re.IGNORECASE)
_NONE = frozenset({"", "N/A", "(null)", "n/a"})


def ask_queue(cluster: str, options: Sequence[str], timeout: float, run: Runner) -> list[JobInfo]:
    """Every job that the controller shows, but for those that wait."""
    rows = queue_rows(options, timeout, run)
    infos = [info_of_row(cluster, row) for row in rows]
    return [info for info in infos if info.start is not None]


def queue_rows(options: Sequence[str], timeout: float, run: Runner) -> list[dict[str, str]]:
    """The rows of squeue, each column under its name."""
    try:
        return _rows(COLUMNS, options, timeout, run)
    except SourceError as error:
        if not _REFUSED.search(str(error)):
            raise
        older = tuple(column for column in COLUMNS if column not in _NEWER)
        return _rows(older, options, timeout, run)


def _rows(
    columns: Sequence[str], options: Sequence[str], timeout: float, run: Runner
) -> list[dict[str, str]]:
    mark = new_delimiter()
    # "Column:mark": no width, so nothing is cut, and the mark behind the value.
    wanted = ",".join(f"{column}:{mark}" for column in columns)
    command = ["squeue", "--noheader", f"--Format={wanted}", *options]
    found = split_records(run(command, timeout), mark, len(columns), "squeue")
    return [dict(zip(columns, row, strict=True)) for row in found]


def info_of_row(cluster: str, row: dict[str, str]) -> JobInfo:
    """One row of squeue. What cannot be read is left out; who the job is must be readable."""
    try:
        job_id = int(row["JobID"])
        state = parse_job_state(row["State"])
    except ValueError as error:
        raise AdaptError(f"squeue gave a row that names no job: {error}") from None
    array_task = _optional(int, row["ArrayTaskID"])
    # Every job has an "array job id" in this column; only tasks have a number beside it.
    array = array_task is not None
    ended = state.ended
    nodes = _optional(expand_hosts, row["NodeList"]) or None
    # A job that was cancelled while it waited has a start, equal to its end, but no node.
    ran = not state.waiting and (nodes is not None or not ended)
    # One that completes may have been requeued: start and restart count are the next run's then.
    ran = ran and state.state != "COMPLETING"
    tres = _optional(parse_tres, row["tres-alloc"]) or {}
    exit = from_wait_status(_optional(int, row["exit_code"]) or 0) if ended else None
    return JobInfo(
        cluster=cluster,
        job_id=job_id,
        source="squeue",
        restart_count=_optional(int, row["RestartCnt"]),
        array_job_id=_optional(int, row["ArrayJobID"]) if array else None,
        array_task_id=array_task,
        het_job_id=_optional(int, row.get("HetJobID", "")) or None,
        het_offset=_optional(int, row.get("HetJobOffset", "")),
        name=row["Name"],
        user=_text(row["UserName"]),
        uid=_optional(int, row["UserID"]),
        account=_text(row["Account"]),
        partition=_text(row["Partition"]),
        qos=_text(row["QOS"]),
        command=_text(row["Command"]),
        nodes=nodes,
        cpus=_optional(int, row["NumCPUs"]),
        memory=tres.get("mem"),
        gpus=count_gpus(tres),
        tres=tres or None,
        time_limit=_optional(parse_duration, row["TimeLimit"]),
        submit=_optional(parse_time, row["SubmitTime"]),
        # Of a job that waits this is an expectation, of one that runs the end is.
        start=_optional(parse_time, row["StartTime"]) if ran else None,
        end=_optional(parse_time, row["EndTime"]) if ended else None,
        state=state.state,
        exit_code=exit.code if exit else None,
        exit_signal=exit.signal if exit else None,
    )


def _optional(read: Callable[[str], Any], text: str) -> Any:
    if text in _NONE:
        return None
    try:
        return read(text)
    except ValueError:
        return None


def _text(text: str) -> str | None:
    return None if text in _NONE else text


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
