"""Jobs out of the fixed columns of ``sacct``; text of any release from 19.05 on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from jobsight.model import JobInfo
from jobsight.scheduler.adapters.json import add_cpu_times
from jobsight.scheduler.fields import (
    Exit,
    RecordReader,
    amount,
    count_gpus,
    from_minutes,
    integer,
    parse_amount,
    parse_duration,
    parse_exit,
    parse_job_state,
    parse_size,
    parse_time,
    parse_tres,
    text_or_none,
    words,
)
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import AdaptError, JobRecord, Jobs, Problem, StepInfo

#: Asked for where `sacct -e` knows them. Free text stands last.
COLUMNS = (
    "JobIDRaw", "JobID", "Cluster", "State", "SLUID", "Restarts", "Submit", "Eligible", "Start",
    "End", "ElapsedRaw", "Suspended", "User", "UID", "Group", "GID", "Account", "Partition", "QOS",
    "NodeList", "NNodes", "AllocCPUS", "ReqCPUS", "ReqMem", "AllocTRES", "ReqTRES", "TimelimitRaw",
    "ExitCode", "DerivedExitCode", "Priority", "NTasks", "TotalCPU", "UserCPU", "SystemCPU",
    "MaxRSS", "Flags", "Reason", "Reservation", "Constraints", "Licenses", "Container", "WCKey",
    "StdOut", "StdErr", "StdIn", "WorkDir", "Comment", "SubmitLine", "JobName",
)  # fmt: skip
NEEDED = frozenset({"JobIDRaw", "JobID", "State", "Start", "End", "User", "JobName"})

_JOB_ID = re.compile(
    r"(?P<job>\d+)(?:_(?:(?P<task>\d+)|\[(?P<tasks>[^\]]*)\])|\+(?P<offset>\d+))?", re.ASCII
)
_CANCELLED = re.compile(r"CANCELLED by (\S+)", re.ASCII)


def choose_columns(known: Iterable[str]) -> tuple[str, ...]:
    """Our columns that this sacct has, from what `sacct -e` listed."""
    there = {name.lower() for name in known}
    missing = [name for name in NEEDED if name.lower() not in there]
    if missing:
        raise AdaptError(f"sacct -e does not list the columns {', '.join(sorted(missing))}")
    return tuple(name for name in COLUMNS if name.lower() in there)


def jobs_from_rows(rows: Iterable[Mapping[str, str]], cluster: str, source: str) -> Jobs:
    """Join rows of jobs with the rows of their steps, which follow them."""
    problems: list[Problem] = []
    return Jobs(_jobs(rows, cluster, source, problems), problems)


def _jobs(
    rows: Iterable[Mapping[str, str]], cluster: str, source: str, problems: list[Problem]
) -> Iterator[JobRecord]:
    job: tuple[JobRecord, RecordReader] | None = None
    for row in rows:
        raw_id, dot, step = row["JobIDRaw"].partition(".")
        if not (raw_id.isascii() and raw_id.isdigit()):
            raise AdaptError(f"sacct gave {row['JobIDRaw'][:40]!r} as a job's id")
        reader = RecordReader(row, f"job {row['JobIDRaw']}")
        if not dot:
            if job is not None:
                yield _finished(*job, problems)
            job = _job(reader, int(raw_id), cluster, source), reader
        elif job is not None and job[0].info.job_id == int(raw_id):
            job[0].steps.append(_step(reader, step))
            job[0].raw |= {f"{step}.{key}": value for key, value in reader.raw.items()}
            problems += reader.problems
        else:
            problems.append(Problem(reader.label, "JobIDRaw", "is a step without its job"))
    if job is not None:
        yield _finished(*job, problems)


def _finished(record: JobRecord, reader: RecordReader, problems: list[Problem]) -> JobRecord:
    """The job with the times of its steps, all of which have been read by now."""
    times = [reader.read(parse_duration, f"{part}CPU") for part in ("Total", "User", "System")]
    add_cpu_times(record, *times)
    problems += reader.problems
    return record


def _job(reader: RecordReader, job_id: int, cluster: str, source: str) -> JobRecord:
    read = reader.read
    state = read(parse_job_state, "State")
    ended = state is not None and state.ended
    waiting = state is not None and state.waiting
    nodes = read(expand_hosts, "NodeList") or None
    start = read(parse_time, "Start")
    ran = not waiting and (nodes is not None or not ended)
    exit = (read(parse_exit, "ExitCode") or Exit()) if ended else Exit()
    derived = (read(parse_exit, "DerivedExitCode") or Exit()) if ended else Exit()
    allocated = read(parse_tres, "AllocTRES") or {}
    requested = read(parse_tres, "ReqTRES") or {}
    ids = _JOB_ID.fullmatch(reader.document["JobID"])
    if ids is None:
        reader.report("JobID", reader.document["JobID"], "is not a job's id")
    task, offset = (ids["task"], ids["offset"]) if ids else (None, None)
    tasks = ids["tasks"] if ids else None
    cancelled = _CANCELLED.match(reader.document["State"])
    memory = allocated.get("mem", requested.get("mem"))
    if memory is None:
        memory = _asked_memory(reader)
    info = JobInfo(
        cluster=cluster or read(text_or_none, "Cluster") or "",
        job_id=job_id,
        source=source,
        sluid=read(text_or_none, "SLUID"),
        restart_count=read(integer, "Restarts"),
        array_job_id=int(ids["job"]) if ids and (task or tasks) else None,
        array_task_id=int(task) if task else None,
        het_job_id=int(ids["job"]) if ids and offset else None,
        het_offset=int(offset) if offset else None,
        name=read(text_or_none, "JobName"),
        user=read(text_or_none, "User"),
        uid=read(amount, "UID"),
        account=read(text_or_none, "Account"),
        partition=read(text_or_none, "Partition"),
        qos=read(text_or_none, "QOS"),
        nodes=nodes,
        cpus=allocated.get("cpu") or read(amount, "AllocCPUS") or read(amount, "ReqCPUS"),
        memory=memory,
        gpus=count_gpus(allocated),
        tres=allocated or None,
        time_limit=read(_minutes, "TimelimitRaw"),
        submit=read(parse_time, "Submit"),
        start=start if ran else None,
        end=read(parse_time, "End") if ended else None,
        state=state.state if state else None,
        exit_code=exit.code,
        exit_signal=exit.signal,
    )
    return JobRecord(
        info=info,
        reason=read(text_or_none, "Reason"),
        reservation=read(text_or_none, "Reservation"),
        group=read(text_or_none, "Group"),
        gid=read(amount, "GID"),
        comment=read(text_or_none, "Comment"),
        constraints=read(text_or_none, "Constraints"),
        container=read(text_or_none, "Container"),
        licenses=read(text_or_none, "Licenses"),
        submit_line=read(text_or_none, "SubmitLine"),
        working_directory=read(text_or_none, "WorkDir"),
        wckey=read(text_or_none, "WCKey"),
        standard_output=read(text_or_none, "StdOut"),
        standard_error=read(text_or_none, "StdErr"),
        standard_input=read(text_or_none, "StdIn"),
        priority=read(amount, "Priority"),
        eligible=read(parse_time, "Eligible"),
        expected_start=start if waiting else None,
        elapsed=read(parse_duration, "ElapsedRaw"),
        suspended=read(parse_duration, "Suspended"),
        node_count=read(amount, "NNodes"),
        array_tasks=tasks,
        derived_exit_code=derived.code,
        derived_exit_signal=derived.signal,
        cancelled_by=cancelled[1] if cancelled else None,
        flags=read(words, "Flags") or (),
        tres_requested=requested,
        raw=reader.raw,
    )


def _step(reader: RecordReader, step: str) -> StepInfo:
    read = reader.read
    state = read(parse_job_state, "State")
    ended = state is not None and state.ended
    exit = (read(parse_exit, "ExitCode") or Exit()) if ended else Exit()
    return StepInfo(
        step=step.lower(),
        name=read(text_or_none, "JobName"),
        state=state.state if state else None,
        exit_code=exit.code,
        exit_signal=exit.signal,
        start=read(parse_time, "Start"),
        end=read(parse_time, "End") if ended else None,
        tasks=read(amount, "NTasks"),
        nodes=read(expand_hosts, "NodeList") or None,
        cpu_time=read(parse_duration, "TotalCPU") if ended else None,
        cpu_user=read(parse_duration, "UserCPU") if ended else None,
        cpu_system=read(parse_duration, "SystemCPU") if ended else None,
        memory_peak=read(_bytes, "MaxRSS") if ended else None,
        tres=read(parse_tres, "AllocTRES") or {},
    )


def _asked_memory(reader: RecordReader) -> int | None:
    """What was asked for where no resources are listed: to 20.11 with "n" or "c" at its end."""
    text = str(reader.document.get("ReqMem", ""))
    size = reader.read(parse_size, "ReqMem")
    if size is None:
        return None
    if text.endswith("c"):
        return size * (reader.read(amount, "ReqCPUS") or 1)
    return size * (reader.read(amount, "NNodes") or 1) if text.endswith("n") else size


def _minutes(text: str) -> int | None:
    # UNLIMITED and Partition_Limit are words, and no number of minutes.
    if not (text.isascii() and text.isdigit()):
        return parse_duration(text)
    return from_minutes(int(text))


def _bytes(text: str) -> int | None:
    return parse_amount(text) if text else None
