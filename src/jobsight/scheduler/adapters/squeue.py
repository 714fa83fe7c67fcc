"""Jobs of the controller from the columns of ``squeue``.

The agent uses this module, so it imports the standard library and msgspec only. Each field ends
with a delimiter that is random for each call, so no job name can pass for another field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler.adapters.tables import read_job
from jobsight.scheduler.fields import RecordReader
from jobsight.scheduler.records import (
    AdaptError,
    JobRecord,
    Jobs,
    Problem,
    SchedulerError,
    SourceError,
)
from jobsight.scheduler.sources.commands import Runner, new_delimiter, run_command, split_records

#: Free text is last, so that a row is complete before it begins.
COLUMNS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "UserName", "UserID", "Account", "Partition", "State",
    "RestartCnt", "NodeList", "NumCPUs", "tres-alloc", "TimeLimit", "SubmitTime", "StartTime",
    "EndTime", "exit_code", "QOS", "HetJobID", "HetJobOffset", "Reason", "Command",
    "Name",
)  # fmt: skip
#: Columns that have another name before 20.02, and one that older on-site scripts do not request.
NEWER_COLUMNS = frozenset({"HetJobID", "HetJobOffset"})
OPTIONAL_COLUMNS = NEWER_COLUMNS | {"Reason"}
_REFUSED = re.compile(r"invalid.*(format|field)|unrecognized", re.IGNORECASE)
_NOT_SET = frozenset({"", "N/A", "(null)", "n/a"})


class NodeJobs(msgspec.Struct, frozen=True):
    """The jobs of a node that run or ended a few minutes ago; or why they are not known."""

    jobs: tuple[JobInfo, ...] = ()
    #: Empty if Slurm answered; a node may have no jobs.
    reason: str = ""

    @property
    def known(self) -> bool:
        return not self.reason


def jobs_of_node(
    node: str, timeout: float = 10.0, *, cluster: str, run: Runner = run_command
) -> NodeJobs:
    """The jobs of a node by its Slurm name, without pending ones. A failure is a value, because
    the agent continues without Slurm."""
    options = ["--states=all", f"--nodelist={node}"]
    try:
        jobs = jobs_from_rows(queue_rows(options, timeout, run), cluster).records
    except SchedulerError as error:
        return NodeJobs(reason=str(error))
    return NodeJobs(tuple(job.info for job in jobs if job.ran))


def job_by_id(
    job_id: int, timeout: float = 10.0, *, cluster: str, run: Runner = run_command
) -> JobInfo:
    """One job of the controller by its raw id; raises :class:`SchedulerError` if there is none."""
    options = ["--states=all", f"--jobs={job_id}"]
    for job in jobs_from_rows(queue_rows(options, timeout, run), cluster).records:
        # The id of an array's first task selects all its tasks.
        if job.info.job_id == job_id:
            return job.info
    raise SourceError(f"squeue knows no job {job_id}")


def queue_rows(options: Sequence[str], timeout: float, run: Runner) -> list[dict[str, str]]:
    """The rows of squeue, by column."""
    try:
        return _rows(COLUMNS, options, timeout, run)
    except SourceError as error:
        if not _REFUSED.search(str(error)):
            raise
        older = [column for column in COLUMNS if column not in NEWER_COLUMNS]
        return _rows(older, options, timeout, run)


def _rows(
    columns: Sequence[str], options: Sequence[str], timeout: float, run: Runner
) -> list[dict[str, str]]:
    delimiter = new_delimiter()
    # "Column:delimiter" without a width: nothing is cut.
    wanted = ",".join(f"{column}:{delimiter}" for column in columns)
    output = run(["squeue", "--noheader", f"--Format={wanted}", *options], timeout)
    rows = split_records(output, delimiter, len(columns), "squeue")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def jobs_from_rows(rows: Iterable[Mapping[str, str]], cluster: str, source: str = "squeue") -> Jobs:
    """The jobs of squeue's rows; a row without a job id or a state is an :class:`AdaptError`.

    A scraper names its own source: "squeue" is the query of a node.
    """
    problems: list[Problem] = []
    return Jobs((_job(row, cluster, source, problems) for row in rows), problems)


def _job(row: Mapping[str, str], cluster: str, source: str, problems: list[Problem]) -> JobRecord:
    known = {name: value for name, value in row.items() if value not in _NOT_SET or name == "Name"}
    reader = RecordReader(known, f"job {row['JobID']}")
    try:
        job = read_job(reader, "squeue", cluster, source)
    except ValueError as error:
        raise AdaptError(f"squeue gave a row that names no job: {error}") from None
    problems += reader.problems
    info = job.info
    if info.state is None:
        raise AdaptError(f"squeue gave a row that names no job: {row['State'][:40]!r} is no state")
    if info.name is None:
        info.name = row["Name"]
    if info.array_task_id is None and job.array_tasks is None:
        # The column has a value for every job.
        info.array_job_id = None
    return job
