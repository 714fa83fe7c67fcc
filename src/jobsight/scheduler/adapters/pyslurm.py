"""PySlurm's dictionaries as records: the older interface's, the newer one's, the accounting's.

They differ from Slurm's own JSON in names and units, and in faults: the older interface leaves the
signal of one job standing in the exit codes of those that follow.
"""

from __future__ import annotations

import re
from typing import Any

from jobsight.model import SECOND, JobInfo
from jobsight.scheduler import fields
from jobsight.scheduler.adapters.json import add_cpu_times
from jobsight.scheduler.fields import (
    MIB,
    Exit,
    RecordReader,
    amount,
    count_gpus,
    from_wait_status,
    identity,
    number,
    parse_exit,
    parse_gres,
    parse_job_state,
    parse_node_state,
    parse_tres,
    text_or_none,
    words,
)
from jobsight.scheduler.hostlist import expand_hosts
from jobsight.scheduler.records import JobRecord, NodeInfo, PartitionInfo, StepInfo

#: Steps that have no number of their own.
_STEPS = {2**32 - 5: "batch", 2**32 - 4: "extern", 2**32 - 6: "interactive", 2**32 - 3: "pending"}
#: The accounting numbers its resources; those above 1000 are the site's own.
_TRES = {1: "cpu", 2: "mem", 3: "energy", 4: "node", 5: "billing", 6: "fs/disk", 7: "vmem",
         8: "pages"}  # fmt: skip


def read_queued(reader: RecordReader, cluster: str, shape: str) -> JobRecord:
    """A job of the controller, by ``job().get()`` or ``Jobs.load()``."""
    read = reader.read
    older = shape == "job"
    state = read(parse_job_state, "job_state", "state")
    ended = state is not None and state.ended
    waiting = state is not None and state.waiting
    nodes = read(expand_hosts, "nodes", "allocated_nodes") or None
    start = read(fields.time, "start_time")
    ran = not waiting and (nodes is not None or not ended)
    exit = _queued_exit(reader, state.state if state else "") if ended else Exit()
    allocated = read(parse_tres, "tres_alloc_str") or {}
    requested = read(parse_tres, "tres_req_str") or {}
    array = read(identity, "array_job_id", "array_id")
    het = read(identity, "het_job_id", "heterogeneous_id")
    cpus = allocated.get("cpu", read(amount, "num_cpus", "cpus"))
    node_count = read(amount, "num_nodes")
    memory = allocated.get("mem", requested.get("mem"))
    if memory is None:
        memory = read(fields.mebibytes, "memory")
    return JobRecord(
        info=JobInfo(
            cluster=cluster,
            job_id=read(amount, "job_id", "id") or 0,
            source="pyslurm",
            restart_count=read(amount, "restart_cnt", "requeue_count"),
            array_job_id=array,
            array_task_id=read(amount, "array_task_id") if array else None,
            het_job_id=het,
            het_offset=read(amount, "het_job_offset", "heterogeneous_offset") if het else None,
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
            time_limit=read(fields.minutes, "time_limit"),
            submit=read(fields.time, "submit_time"),
            start=start if ran else None,
            end=read(fields.time, "end_time") if ended else None,
            state=state.state if state else None,
            exit_code=exit.code,
            exit_signal=exit.signal,
        ),
        state_flags=state.flags if state else (),
        reason=read(text_or_none, "state_reason"),
        reservation=read(fields.name, "resv_name", "reservation"),
        gid=read(amount, "group_id"),
        group=read(text_or_none, "group_name"),
        comment=read(text_or_none, "comment"),
        container=read(text_or_none, "container"),
        dependency=None if not older else read(text_or_none, "dependency"),
        working_directory=read(text_or_none, "work_dir", "working_directory"),
        wckey=read(text_or_none, "wckey"),
        standard_output=read(text_or_none, "std_out", "standard_output"),
        standard_error=read(text_or_none, "std_err", "standard_error"),
        standard_input=read(text_or_none, "std_in", "standard_input"),
        priority=read(amount, "priority"),
        eligible=read(fields.time, "eligible_time"),
        expected_start=start if waiting else None,
        node_count=node_count,
        tasks=read(amount, "num_tasks", "ntasks"),
        array_tasks=read(text_or_none, "array_task_str", "array_tasks_waiting"),
        tres_requested=requested,
        raw=reader.raw,
    )


def _queued_exit(reader: RecordReader, state: str) -> Exit:
    if "exit_code_signal" in reader.document:
        code = reader.read(amount, "exit_code")
        signal = reader.read(amount, "exit_code_signal")
    else:
        found = reader.read(parse_exit, "exit_code") or Exit()
        code, signal = found.code, found.signal
    # The signal may be an earlier job's: it counts only where this one must have had one.
    if code or state == "COMPLETED" or not signal:
        return Exit(code or 0, None)
    return Exit(None, signal) if state in ("FAILED", "OUT_OF_MEMORY") else Exit()


def read_booked(reader: RecordReader, cluster: str, shape: str) -> JobRecord:
    """A job of the accounting, by ``slurmdb_jobs().get()`` or ``db.Jobs.load()``."""
    read = reader.read
    state = read(parse_job_state, "state_str", "state")
    ended = state is not None and state.ended
    waiting = state is not None and state.waiting
    nodes = read(expand_hosts, "nodes", "nodelist") or None
    start = read(fields.time, "start", "start_time")
    ran = not waiting and (nodes is not None or not ended)
    exit = _booked_exit(reader) if ended else Exit()
    allocated = read(_numbered_tres, "tres_alloc_str") or {}
    requested = read(_numbered_tres, "tres_req_str") or {}
    array = read(identity, "array_job_id", "array_id")
    het = read(identity, "het_job_id", "heterogeneous_id")
    steps = reader.value("steps")
    entries = list(steps.values()) if isinstance(steps, dict) else list(steps or ())
    record = JobRecord(
        info=JobInfo(
            cluster=cluster or read(text_or_none, "cluster") or "",
            job_id=read(amount, "jobid", "id") or 0,
            source="pyslurm",
            array_job_id=array,
            array_task_id=read(amount, "array_task_id") if array else None,
            het_job_id=het,
            het_offset=read(amount, "het_job_offset", "heterogeneous_offset") if het else None,
            name=read(text_or_none, "jobname", "name"),
            user=read(text_or_none, "user", "user_name"),
            uid=read(amount, "uid", "user_id"),
            account=read(text_or_none, "account"),
            partition=read(text_or_none, "partition"),
            qos=read(_word, "qos"),
            nodes=nodes,
            cpus=allocated.get("cpu") or read(amount, "cpus", "req_cpus"),
            memory=_memory(reader, allocated, requested),
            gpus=count_gpus(allocated),
            tres=allocated or None,
            time_limit=read(fields.minutes, "timelimit", "time_limit"),
            submit=read(fields.time, "submit", "submit_time"),
            start=start if ran else None,
            end=read(fields.time, "end", "end_time") if ended else None,
            state=state.state if state else None,
            exit_code=exit.code,
            exit_signal=exit.signal,
        ),
        state_flags=state.flags if state else (),
        reservation=read(fields.name, "resv_name", "reservation"),
        gid=read(amount, "gid", "group_id"),
        constraints=read(_word, "constraints"),
        container=read(text_or_none, "container"),
        submit_line=read(text_or_none, "submit_line", "submit_command"),
        working_directory=read(text_or_none, "work_dir", "working_directory"),
        wckey=read(text_or_none, "wckey"),
        priority=read(amount, "priority"),
        eligible=read(fields.time, "eligible", "eligible_time"),
        expected_start=start if waiting else None,
        elapsed=read(fields.seconds, "elapsed", "elapsed_time"),
        suspended=read(fields.seconds, "suspended", "suspended_time"),
        node_count=read(amount, "alloc_nodes", "num_nodes"),
        tres_requested=requested,
        steps=[_step(reader, entry) for entry in entries],
        raw=reader.raw,
    )
    add_cpu_times(record, *(_cpu_time(reader, part) for part in ("tot", "user", "sys")))
    return record


def _booked_exit(reader: RecordReader) -> Exit:
    if "exitcode" in reader.document:
        return from_wait_status(reader.read(amount, "exitcode") or 0)
    signal = reader.read(amount, "exit_code_signal")
    return Exit(None, signal) if signal else Exit(reader.read(amount, "exit_code"), None)


def _step(job: RecordReader, document: Any) -> StepInfo:
    reader = RecordReader(document if isinstance(document, dict) else {}, job.label)
    read = reader.read
    state = read(parse_job_state, "state_str", "state")
    ended = state is not None and state.ended
    exit = _booked_exit(reader) if ended else Exit()
    total, user, system = (
        (_cpu_time(reader, part) for part in ("tot", "user", "sys")) if ended else (None,) * 3
    )
    found = StepInfo(
        step=read(_step_name, "stepid", "id") or "?",
        name=read(text_or_none, "stepname", "name"),
        state=state.state if state else None,
        exit_code=exit.code,
        exit_signal=exit.signal,
        start=read(fields.time, "start", "start_time"),
        end=read(fields.time, "end", "end_time") if ended else None,
        tasks=read(amount, "ntasks", "num_tasks"),
        nodes=read(expand_hosts, "nodes", "nodelist") or None,
        cpu_time=total,
        cpu_user=user,
        cpu_system=system,
        memory_peak=read(_peak, "stats.tres_usage_in_max") if ended else None,
        tres=read(_numbered_tres, "tres_alloc_str") or {},
    )
    job.problems += reader.problems
    return found


def _cpu_time(reader: RecordReader, part: str) -> int | None:
    seconds = reader.read(amount, f"{part}_cpu_sec")
    if seconds is None:
        return None
    return seconds * SECOND + (reader.read(amount, f"{part}_cpu_usec") or 0) * 1000


def _step_name(value: Any) -> str | None:
    if isinstance(value, str) and not value.isdigit():
        return value.lower()
    found = number(value)
    return None if found is None else _STEPS.get(int(found), str(int(found)))


def _numbered_tres(text: str) -> dict[str, int]:
    """``1=4,2=100,1001=2``: numbers in the place of names; memory in MiB."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,9})=(\d{1,20})", part)
        if match is None:
            return parse_tres(text)
        count = amount(int(match[2]))
        if count is not None:
            name = _TRES.get(int(match[1]), f"tres/{match[1]}")
            found[name] = count * MIB if name == "mem" else count
    return found


def _peak(text: str) -> int | None:
    """The largest task's memory, in bytes, among numbered resources."""
    match = re.search(r"(?:^|,)2=(\d{1,20})", text)
    return amount(int(match[1])) if match else None


def _memory(
    reader: RecordReader, allocated: dict[str, int], requested: dict[str, int]
) -> int | None:
    found = allocated.get("mem", requested.get("mem"))
    return found if found is not None else reader.read(fields.mebibytes, "memory", "req_mem")


def _word(value: Any) -> str | None:
    return text_or_none(value) if isinstance(value, str) else None


def read_node(reader: RecordReader, cluster: str) -> NodeInfo:
    """A node, by ``node().get()`` or ``Nodes.load()``."""
    read = reader.read
    state = read(lambda value: parse_node_state(value.split("+")), "state")
    load = read(number, "cpu_load")
    return NodeInfo(
        cluster=cluster,
        name=read(text_or_none, "name") or "",
        state=state[0] if state else None,
        state_flags=state[1] if state else (),
        reason=read(text_or_none, "reason"),
        reason_user=read(_word, "reason_user"),
        reason_time=read(fields.time, "reason_time"),
        address=read(text_or_none, "node_addr", "address"),
        host=read(text_or_none, "node_hostname", "hostname"),
        port=read(amount, "slurmd_port"),
        architecture=read(text_or_none, "arch", "architecture"),
        system=read(text_or_none, "os", "operating_system"),
        version=read(text_or_none, "version", "slurm_version"),
        boards=read(amount, "boards"),
        sockets=read(amount, "sockets"),
        cores=read(amount, "cores", "cores_per_socket"),
        threads=read(amount, "threads", "threads_per_core"),
        cpus=read(amount, "cpus", "total_cpus"),
        cpus_allocated=read(amount, "alloc_cpus", "allocated_cpus"),
        cpus_idle=read(amount, "idle_cpus"),
        # Hundredths in the older interface.
        load=None if load is None else load / 100 if isinstance(load, int) else load,
        memory=read(fields.mebibytes, "real_memory"),
        memory_allocated=read(fields.mebibytes, "alloc_mem", "allocated_memory"),
        memory_free=read(fields.mebibytes, "free_mem", "free_memory"),
        temporary_disk=read(fields.mebibytes, "tmp_disk", "temporary_disk"),
        weight=read(amount, "weight"),
        features=read(words, "features", "available_features") or (),
        features_active=read(words, "features_active", "active_features") or (),
        partitions=read(words, "partitions") or (),
        owner=read(_word, "owner"),
        comment=read(text_or_none, "comment"),
        extra=read(text_or_none, "extra"),
        gres=read(_gres, "gres", "configured_gres") or {},
        gres_used=read(_gres, "gres_used", "allocated_gres") or {},
        tres=read(parse_tres, "tres_fmt_str") or {},
        booted=read(fields.time, "boot_time"),
        daemon_started=read(fields.time, "slurmd_start_time"),
        last_busy=read(fields.time, "last_busy", "last_busy_time"),
        raw=reader.raw,
    )


def _gres(value: Any) -> dict[str, int]:
    if isinstance(value, dict):
        return {str(name): int(count) for name, count in value.items()}
    return parse_gres(",".join(value) if isinstance(value, list) else value)


def read_partition(reader: RecordReader, cluster: str, shape: str) -> PartitionInfo:
    """A partition; the older interface counts its times in seconds, the newer in minutes."""
    read = reader.read
    times = fields.seconds if shape == "partition" else fields.minutes
    return PartitionInfo(
        cluster=cluster,
        name=read(text_or_none, "name") or "",
        state=read(text_or_none, "state"),
        nodes=read(fields.hosts, "nodes"),
        node_count=read(amount, "total_nodes"),
        cpus=read(amount, "total_cpus"),
        time_limit=read(times, "max_time"),
        default_time=read(times, "default_time"),
        accounts_allowed=_named(reader, "allow_accounts", "allowed_accounts"),
        groups_allowed=_named(reader, "allow_groups", "allowed_groups"),
        qos_allowed=_named(reader, "allow_qos", "allowed_qos"),
        priority_tier=read(amount, "priority_tier"),
        priority_factor=read(amount, "priority_job_factor"),
        tres=read(parse_tres, "tres_fmt_str") or {},
        raw=reader.raw,
    )


def _named(reader: RecordReader, *paths: str) -> tuple[str, ...]:
    found = reader.read(words, *paths) or ()
    return () if found == ("ALL",) else found
