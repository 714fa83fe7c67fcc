"""The controller's jobs by ``squeue`` with fixed columns; small enough for the agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from jobsight.model import JobInfo
from jobsight.scheduler.commands import Runner, new_mark, split_records
from jobsight.scheduler.errors import AdaptError, SourceError
from jobsight.scheduler.exits import from_wait_status
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.states import parse_job_state
from jobsight.scheduler.times import parse_duration, parse_time
from jobsight.scheduler.tres import count_gpus, parse_tres

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
    mark = new_mark()
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
