"""Jobs from the columns of ``sacct``, of any release from 19.05 on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from jobsight.scheduler.adapters.tables import complete_cpu_times, read_job, read_step
from jobsight.scheduler.fields import CONVERSION_ERRORS, RecordReader, explain
from jobsight.scheduler.records import AdaptError, JobRecord, Jobs, Problem

#: Requested if `sacct --helpformat` lists them. Free text is last.
COLUMNS = (
    "JobIDRaw", "JobID", "Cluster", "State", "SLUID", "Restarts", "Submit", "Eligible", "Start",
    "End", "ElapsedRaw", "Suspended", "User", "UID", "Group", "GID", "Account", "Partition", "QOS",
    "NodeList", "NNodes", "AllocCPUS", "ReqCPUS", "ReqMem", "AllocTRES", "ReqTRES", "TimelimitRaw",
    "ExitCode", "DerivedExitCode", "Priority", "NTasks", "TotalCPU", "UserCPU", "SystemCPU",
    "MaxRSS", "Flags", "Reason", "Reservation", "Constraints", "Licenses", "Container", "WCKey",
    "StdOut", "StdErr", "StdIn", "WorkDir", "Comment", "SubmitLine", "JobName",
)  # fmt: skip
REQUIRED = frozenset({"JobIDRaw", "JobID", "State", "Start", "End", "User", "JobName"})


def choose_columns(available: Iterable[str]) -> tuple[str, ...]:
    """The columns to request, of those that this sacct has."""
    names = {name.lower() for name in available}
    missing = [name for name in REQUIRED if name.lower() not in names]
    if missing:
        raise AdaptError(f"sacct -e does not list the columns {', '.join(sorted(missing))}")
    return tuple(name for name in COLUMNS if name.lower() in names)


def jobs_from_rows(rows: Iterable[Mapping[str, str]], cluster: str, source: str) -> Jobs:
    """Jobs with their steps, whose rows follow that of the job."""
    problems: list[Problem] = []
    return Jobs(_jobs(rows, cluster, source, problems), problems)


def _jobs(
    rows: Iterable[Mapping[str, str]], cluster: str, source: str, problems: list[Problem]
) -> Iterator[JobRecord]:
    job: JobRecord | None = None
    seen, understood = 0, 0
    for row in rows:
        seen += 1
        shown_id = row.get("JobIDRaw", "")
        raw_id, dot, step = shown_id.partition(".")
        reader = RecordReader(row, f"job {shown_id[:40]}")
        if not (raw_id.isascii() and raw_id.isdigit()):
            reader.report("JobIDRaw", shown_id, f"{shown_id[:40]!r} is not a job id")
        elif not dot:
            if job is not None:
                complete_cpu_times(job)
                yield job
            job = None
            try:
                job = read_job(reader, "sacct", cluster, source)
                understood += 1
            except CONVERSION_ERRORS as error:
                reader.report("JobIDRaw", shown_id, explain(error, shown_id))
        elif job is not None and job.info.job_id == int(raw_id):
            job.steps.append(read_step(reader, "sacct", step.lower()))
            job.raw |= {f"{step}.{key}": value for key, value in reader.raw.items()}
        else:
            reader.report("JobIDRaw", shown_id, "is a step without its job")
        problems += reader.problems
    if job is not None:
        complete_cpu_times(job)
        yield job
    if seen and not understood:
        raise AdaptError(f"none of {seen} rows of sacct is a job; first: {problems[0]}")
