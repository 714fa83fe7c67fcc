"""Jobs of the controller: ``squeue --json``, ``scontrol show jobs --json`` and slurmrestd."""

from __future__ import annotations

from jobsight.model import JobInfo
from jobsight.scheduler import readers
from jobsight.scheduler.exits import Exit, read_exit
from jobsight.scheduler.reader import RecordReader
from jobsight.scheduler.records import JobRecord
from jobsight.scheduler.tres import MIB, count_gpus, read_tres
from jobsight.scheduler.values import amount, identity, integer, text_or_none


def read_job(reader: RecordReader, cluster: str, source: str) -> JobRecord:
    """One job as the controller has it: with its restart count, without its steps."""
    read = reader.read
    state = read(readers.job_state, "job_state")
    waiting = state is not None and state.waiting
    ended = state is not None and state.ended
    nodes = read(readers.hosts, "nodes")
    start = read(readers.time, "start_time")
    exit = (read(read_exit, "exit_code") or Exit()) if ended else Exit()
    derived = (read(read_exit, "derived_exit_code") or Exit()) if ended else Exit()
    array = read(identity, "array_job_id")
    het = read(identity, "het_job_id")
    allocated = read(read_tres, "tres_alloc_str") or {}
    requested = read(read_tres, "tres_req_str") or {}
    cpus = allocated.get("cpu", read(amount, "cpus"))
    node_count = read(amount, "node_count")
    # A job that was cancelled while it waited has no node: it did not run.
    ran = not waiting and (nodes is not None or not ended)
    memory = allocated.get("mem", requested.get("mem"))
    if memory is None:
        memory = _memory(reader, cpus, node_count)
    return JobRecord(
        info=JobInfo(
            cluster=cluster or read(text_or_none, "cluster") or "",
            job_id=read(integer, "job_id") or 0,
            source=source,
            sluid=read(text_or_none, "sluid", "step_id.sluid"),
            restart_count=read(amount, "restart_cnt"),
            array_job_id=array,
            array_task_id=read(amount, "array_task_id") if array else None,
            het_job_id=het,
            het_offset=read(amount, "het_job_offset") if het else None,
            name=read(text_or_none, "name"),
            user=read(text_or_none, "user_name"),
            uid=read(amount, "user_id"),
            account=read(text_or_none, "account"),
            partition=read(text_or_none, "partition"),
            qos=read(text_or_none, "qos"),
            command=read(text_or_none, "command"),
            nodes=nodes,
            cpus=cpus,
            memory=memory,
            gpus=count_gpus(allocated),
            tres=allocated or None,
            time_limit=read(readers.minutes, "time_limit"),
            submit=read(readers.time, "submit_time"),
            start=start if ran else None,
            # Of a job that runs this is the end of its time limit.
            end=read(readers.time, "end_time") if ended else None,
            state=state.state if state else None,
            exit_code=exit.code,
            exit_signal=exit.signal,
        ),
        state_flags=state.flags if state else (),
        reason=read(text_or_none, "state_reason"),
        reservation=read(readers.name, "resv_name"),
        group=read(text_or_none, "group_name"),
        gid=read(amount, "group_id"),
        comment=read(text_or_none, "comment"),
        constraints=read(text_or_none, "features"),
        container=read(text_or_none, "container"),
        dependency=read(text_or_none, "dependency"),
        licenses=read(text_or_none, "licenses"),
        submit_line=read(text_or_none, "submit_line"),
        working_directory=read(text_or_none, "current_working_directory"),
        wckey=read(text_or_none, "wckey"),
        standard_output=read(text_or_none, "stdout_expanded", "standard_output"),
        standard_error=read(text_or_none, "stderr_expanded", "standard_error"),
        standard_input=read(text_or_none, "stdin_expanded", "standard_input"),
        priority=read(amount, "priority"),
        eligible=read(readers.time, "eligible_time"),
        expected_start=start if waiting else None,
        node_count=node_count,
        tasks=read(amount, "tasks"),
        array_tasks=read(text_or_none, "array_task_string"),
        array_task_limit=read(amount, "array_max_tasks") or None,
        derived_exit_code=derived.code,
        derived_exit_signal=derived.signal,
        flags=read(readers.flags, "flags") or (),
        tres_requested=requested,
        gres=read(readers.flags, "gres_detail") or (),
        raw=reader.raw,
    )


def _memory(reader: RecordReader, cpus: int | None, nodes: int | None) -> int | None:
    per_cpu = reader.read(amount, "memory_per_cpu")
    if per_cpu and cpus:
        return per_cpu * cpus * MIB
    per_node = reader.read(amount, "memory_per_node")
    if per_node and nodes:
        return per_node * nodes * MIB
    return None
