"""Jobs of the accounting: ``sacct --json`` and slurmrestd's ``slurmdb`` replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobsight.model import JobInfo
from jobsight.scheduler import readers
from jobsight.scheduler.exits import Exit, believable, read_exit
from jobsight.scheduler.reader import RecordReader
from jobsight.scheduler.records import JobRecord, StepInfo
from jobsight.scheduler.tres import MIB, count_gpus, read_tres
from jobsight.scheduler.values import amount, identity, integer, text_or_none


def read_job(reader: RecordReader, cluster: str, source: str) -> JobRecord:
    """One job with its steps."""
    read = reader.read
    state = read(readers.job_state, "state.current", "state")
    nodes = read(readers.hosts, "nodes")
    ended = state is not None and state.ended
    waiting = state is not None and state.waiting
    start = read(readers.time, "time.start")
    expected = start if waiting else None
    # A job that was cancelled while it waited has an end, and in some releases a start equal to
    # it, but never a node.
    ran = not waiting and (nodes is not None or not ended)
    exit = _exit(reader, "exit_code", state.state if state else "") if ended else Exit()
    derived = _exit(reader, "derived_exit_code", "") if ended else Exit()
    allocated = read(read_tres, "tres.allocated") or {}
    requested = read(read_tres, "tres.requested") or {}
    array = read(identity, "array.job_id", "array_job_id")
    het = read(identity, "het.job_id", "het_job_id")
    asked = read(identity, "required.CPUs", "required.cpus")
    node_count = read(amount, "allocation_nodes")
    memory = allocated.get("mem", requested.get("mem"))
    if memory is None:
        memory = _memory(reader, asked, node_count)
    steps = [_step(reader, step) for step in reader.value("steps") or ()]
    record = JobRecord(
        info=JobInfo(
            cluster=cluster or read(text_or_none, "cluster", "association.cluster") or "",
            job_id=read(integer, "job_id") or 0,
            source=source,
            sluid=read(text_or_none, "sluid", "step_id.sluid"),
            restart_count=read(amount, "restart_cnt", "restart_count", "restarts"),
            array_job_id=array,
            array_task_id=read(amount, "array.task_id") if array else None,
            het_job_id=het,
            het_offset=read(amount, "het.job_offset") if het else None,
            name=read(text_or_none, "name"),
            user=read(text_or_none, "user", "association.user"),
            uid=read(amount, "user_id", "uid"),
            account=read(text_or_none, "account", "association.account"),
            partition=read(text_or_none, "partition"),
            qos=read(text_or_none, "qos"),
            nodes=nodes,
            cpus=allocated.get("cpu", asked),
            memory=memory,
            gpus=count_gpus(allocated),
            tres=allocated or None,
            time_limit=read(readers.minutes, "time.limit"),
            submit=read(readers.time, "time.submission"),
            start=start if ran else None,
            end=read(readers.time, "time.end") if ended else None,
            state=state.state if state else None,
            exit_code=exit.code,
            exit_signal=exit.signal,
        ),
        state_flags=state.flags if state else (),
        reason=read(text_or_none, "state.reason"),
        reservation=read(readers.name, "reservation.name"),
        group=read(text_or_none, "group"),
        gid=read(amount, "group_id", "gid"),
        comment=read(text_or_none, "comment.job"),
        constraints=read(text_or_none, "constraints"),
        container=read(text_or_none, "container"),
        licenses=read(text_or_none, "licenses"),
        submit_line=read(text_or_none, "submit_line"),
        working_directory=read(text_or_none, "working_directory"),
        wckey=read(text_or_none, "wckey.wckey"),
        standard_output=read(text_or_none, "stdout_expanded", "stdout"),
        standard_error=read(text_or_none, "stderr_expanded", "stderr"),
        standard_input=read(text_or_none, "stdin_expanded", "stdin"),
        priority=read(amount, "priority"),
        eligible=read(readers.time, "time.eligible"),
        expected_start=expected,
        elapsed=read(readers.seconds, "time.elapsed"),
        suspended=read(readers.seconds, "time.suspended"),
        node_count=node_count,
        array_tasks=read(text_or_none, "array.task"),
        array_task_limit=read(amount, "array.limits.max.running.tasks") or None,
        derived_exit_code=derived.code,
        derived_exit_signal=derived.signal,
        cancelled_by=read(text_or_none, "kill_request_user"),
        flags=read(readers.flags, "flags") or (),
        tres_requested=requested,
        gres=read(readers.flags, "used_gres") or (),
        steps=steps,
    )
    add_cpu_times(
        record, *(read(readers.cpu_time, f"time.{part}") for part in ("total", "user", "system"))
    )
    return record


def add_cpu_times(
    record: JobRecord, total: int | None, user: int | None, system: int | None
) -> None:
    """The job's own times, or those of its steps where it has none: many releases say 0."""
    if record.info.end is None:
        # A step is booked when it ends. Half of the steps is not the job's time.
        return
    if total:
        record.cpu_time, record.cpu_user, record.cpu_system = total, user, system
        return
    sums = [
        sum(getattr(step, field) or 0 for step in record.steps)
        for field in ("cpu_time", "cpu_user", "cpu_system")
    ]
    if record.steps or total is not None:
        record.cpu_time, record.cpu_user, record.cpu_system = sums


def _exit(reader: RecordReader, path: str, state: str) -> Exit:
    found = reader.read(read_exit, path) or Exit()
    if believable(found, state):
        return found
    reader.report(path, reader.value(path), "says success for a job that failed; not believed")
    return Exit()


def _memory(reader: RecordReader, cpus: int | None, nodes: int | None) -> int | None:
    """What was asked for, where no resources are listed: for each CPU, each node, or in all."""
    per_cpu = reader.read(amount, "required.memory_per_cpu")
    if per_cpu and cpus:
        return per_cpu * cpus * MIB
    per_node = reader.read(amount, "required.memory_per_node")
    if per_node and nodes:
        return per_node * nodes * MIB
    return None


def _step(job: RecordReader, document: Mapping[str, Any]) -> StepInfo:
    reader = RecordReader(document, job.label)
    read = reader.read
    step = read(_step_id, "step.id", "step") or "?"
    reader.label = f"{job.label} step {step}"
    state = read(readers.job_state, "state")
    ended = state is not None and state.ended
    exit = _exit(reader, "exit_code", state.state if state else "") if ended else Exit()
    found = StepInfo(
        step=step,
        name=read(text_or_none, "step.name"),
        state=state.state if state else None,
        exit_code=exit.code,
        exit_signal=exit.signal,
        start=read(readers.time, "time.start"),
        end=read(readers.time, "time.end") if ended else None,
        tasks=read(amount, "tasks.count"),
        nodes=read(readers.hosts, "nodes.range", "nodes.list"),
        cpu_time=read(readers.cpu_time, "time.total") if ended else None,
        cpu_user=read(readers.cpu_time, "time.user") if ended else None,
        cpu_system=read(readers.cpu_time, "time.system") if ended else None,
        memory_peak=read(_peak, "tres.requested.max") if ended else None,
        tres=read(read_tres, "tres.allocated") or {},
    )
    job.problems += reader.problems
    job.raw |= {f"steps.{step}.{path}": value for path, value in reader.raw.items()}
    return found


def _step_id(value: Any) -> str | None:
    """ "batch", 0, "12.batch" or an object, by release."""
    if isinstance(value, dict):
        return _step_id(value.get("step_id", value.get("id")))
    if isinstance(value, str):
        return value.rpartition(".")[2].lower() or None
    found = amount(value)
    return None if found is None else str(found)


def _peak(value: Any) -> int | None:
    """The largest task's memory; usage is counted in bytes where requests are in MiB."""
    for entry in value:
        if entry.get("type") == "mem":
            return amount(entry.get("count"))
    return None
