"""Replies of Slurm's JSON tools and of slurmrestd into records, by what they hold.

Version numbers are not asked: sites patch, and plugins of one release speak several. A reply that
is not understood raises :class:`AdaptError`; it never becomes an empty list.

Jobs of the controller: ``squeue --json``, ``scontrol show jobs --json`` and slurmrestd.

Jobs of the accounting: ``sacct --json`` and slurmrestd's ``slurmdb`` replies.

Nodes and partitions: ``sinfo --json`` to 22.05, ``scontrol show nodes --json``, slurmrestd.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from jobsight.model import JobInfo
from jobsight.scheduler import fields
from jobsight.scheduler.adapters.json_stream import ESCAPED, ReplyStream
from jobsight.scheduler.fields import (
    MIB,
    Exit,
    RecordReader,
    amount,
    count_gpus,
    identity,
    integer,
    is_plausible,
    parse_gres,
    parse_node_state,
    read_exit,
    read_tres,
    text_or_none,
    words,
)
from jobsight.scheduler.records import (
    AdaptError,
    JobRecord,
    Jobs,
    NodeInfo,
    Nodes,
    NoList,
    PartitionInfo,
    Partitions,
    Problem,
    SourceError,
    StepInfo,
)

#: Errors that say "there is none": no such job (2017), no such node or partition, nothing found.
_NOTHING = frozenset({2017, 9003})

Record = TypeVar("Record")
Read = Callable[[RecordReader], Record]


def decode_json(data: bytes, what: str) -> Any:
    r"""A short reply as a document. Bytes in names that are no UTF-8 become ``\xNN``."""
    data = data.decode("utf-8", ESCAPED).encode()
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        # Not a document, or one that is not quite JSON: NaN, bare control characters.
        pass
    try:
        return json.loads(data, strict=False)
    except ValueError as error:
        begin = " ".join(data[:60].decode("utf-8", "replace").split())
        raise AdaptError(f"{what} gave no JSON ({error}); it begins with {begin!r}") from None


def stream_jobs(chunks: Iterable[bytes], what: str, cluster: str, source: str) -> Jobs:
    """The jobs of a reply while it comes; what is wrong with it is raised where that is seen."""
    stream = ReplyStream(chunks, "jobs", what)
    problems: list[Problem] = []

    def records() -> Iterator[JobRecord]:
        yield from _Reading("jobs", "job", "job_id", problems).records(
            stream, _job_reader(cluster, source)
        )
        jobs.release = release_of(stream.rest)

    jobs = Jobs(records(), problems)
    return jobs


def adapt_jobs(document: Any, cluster: str = "", source: str = "json") -> Jobs:
    """Jobs of the controller or of the accounting, whichever the reply holds.

    ``cluster`` takes the place of the name that the reply gives.
    """
    named = cluster or _text_under(document, "meta", "slurm", "cluster")
    read = _job_reader(cluster, source, named)
    jobs = Jobs(*_adapt(document, "jobs", "job", "job_id", read))
    jobs.release = release_of(document)
    return jobs


def _job_reader(cluster: str, source: str, named: str = "") -> Read[JobRecord]:
    def read(reader: RecordReader) -> JobRecord:
        if integer(reader.value("job_id")) is None:
            raise ValueError("it has no job id")
        if "job_state" in reader.document:
            return read_queued_job(reader, cluster or named, source)
        if "state" in reader.document and "time" in reader.document:
            record = read_accounted_job(reader, cluster, source)
            record.raw = reader.raw
            return record
        raise ValueError("it is neither a job of the controller nor one of the accounting")

    return read


def adapt_nodes(document: Any, cluster: str = "") -> Nodes:
    """Nodes of ``sinfo --json`` (to 22.05), ``scontrol show nodes --json`` or slurmrestd."""
    named = cluster or _text_under(document, "meta", "slurm", "cluster")

    def read(reader: RecordReader) -> Any:
        if text_or_none(reader.value("name")) is None:
            raise ValueError("it has no name")
        return read_node(reader, named)

    records, problems = _adapt(document, "nodes", "node", "name", read)
    return Nodes(records=records, problems=problems, release=release_of(document))


def adapt_partitions(document: Any, cluster: str = "") -> Partitions:
    """Partitions of ``scontrol show partitions --json`` or slurmrestd."""
    named = cluster or _text_under(document, "meta", "slurm", "cluster")

    def read(reader: RecordReader) -> Any:
        if text_or_none(reader.value("name")) is None:
            raise ValueError("it has no name")
        return read_partition(reader, named)

    records, problems = _adapt(document, "partitions", "partition", "name", read)
    return Partitions(records=records, problems=problems, release=release_of(document))


def release_of(document: Any) -> str | None:
    """The release that a reply names: "22.05.8"."""
    for name in ("slurm", "Slurm"):
        found = _text_under(document, "meta", name, "release")
        if found:
            return found
    return None


class _Document:
    """A reply that is there whole, to be read as a stream is."""

    def __init__(self, document: Any, key: str) -> None:
        if not isinstance(document, Mapping):
            raise AdaptError(f"a reply about {key} is a {type(document).__name__}, not a document")
        self.rest = document
        found = document.get(key)
        self.listed = isinstance(found, list)
        self._entries: list[Any] = found if isinstance(found, list) else []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)


def _adapt(
    document: Any, key: str, kind: str, id_name: str, read: Read[Record]
) -> tuple[list[Record], list[Problem]]:
    reading = _Reading(key, kind, id_name, [])
    return list(reading.records(_Document(document, key), read)), reading.problems


class _Reading:
    """Reads the entries of one reply, and says what is wrong with them."""

    def __init__(self, key: str, kind: str, id_name: str, problems: list[Problem]) -> None:
        self.key = key
        self.kind = kind
        self.id_name = id_name
        self.problems = problems

    def records(self, reply: _Document | ReplyStream, read: Read[Record]) -> Iterator[Record]:
        seen = understood = 0
        for entry in reply:
            seen += 1
            record = self._record(entry, read)
            if record is not None:
                understood += 1
                yield record
        _raise_errors(reply.rest, self.key, answered=bool(seen))
        if not reply.listed:
            shown = ", ".join(list(reply.rest)[:8]) or "nothing"
            raise NoList(f"a reply about {self.key} has no list of them; it holds: {shown}")
        if seen and not understood:
            first = self.problems[0]
            raise AdaptError(f"none of {seen} {self.key} was understood; first: {first}")

    def _record(self, entry: Any, read: Read[Record]) -> Record | None:
        if not isinstance(entry, Mapping):
            kind = type(entry).__name__
            self.problems.append(Problem(f"a {self.kind}", self.key, f"is a {kind}"))
            return None
        reader = RecordReader(entry, f"{self.kind} {entry.get(self.id_name)}")
        try:
            return read(reader)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self.problems.append(Problem(reader.label, self.key, str(error)))
            return None
        finally:
            self.problems += reader.problems


def _raise_errors(document: Mapping[str, Any], key: str, answered: bool) -> None:
    """Slurm's own errors: a reply with some and without records is no empty list."""
    errors = document.get("errors") or []
    if not isinstance(errors, list) or answered:
        return
    for error in errors:
        if not isinstance(error, Mapping):
            raise SourceError(f"Slurm answers about {key} with an error: {error!r:.200}")
        numbers = error.get("error_number", error.get("errno"))
        if numbers in _NOTHING:
            continue
        words = [error.get(name) for name in ("error", "description", "source")]
        said = "; ".join(str(word) for word in words if word) or repr(error)[:200]
        raise SourceError(f"Slurm answers about {key} with an error: {said}")


def _text_under(document: Any, *path: str) -> str:
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, str) else ""


def read_queued_job(reader: RecordReader, cluster: str, source: str) -> JobRecord:
    """One job as the controller has it: with its restart count, without its steps."""
    read = reader.read
    state = read(fields.job_state, "job_state")
    waiting = state is not None and state.waiting
    ended = state is not None and state.ended
    nodes = read(fields.hosts, "nodes")
    start = read(fields.time, "start_time")
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
        memory = _queued_memory(reader, cpus, node_count)
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
            time_limit=read(fields.minutes, "time_limit"),
            submit=read(fields.time, "submit_time"),
            start=start if ran else None,
            # Of a job that runs this is the end of its time limit.
            end=read(fields.time, "end_time") if ended else None,
            state=state.state if state else None,
            exit_code=exit.code,
            exit_signal=exit.signal,
        ),
        state_flags=state.flags if state else (),
        reason=read(text_or_none, "state_reason"),
        reservation=read(fields.name, "resv_name"),
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
        eligible=read(fields.time, "eligible_time"),
        expected_start=start if waiting else None,
        node_count=node_count,
        tasks=read(amount, "tasks"),
        array_tasks=read(text_or_none, "array_task_string"),
        array_task_limit=read(amount, "array_max_tasks") or None,
        derived_exit_code=derived.code,
        derived_exit_signal=derived.signal,
        flags=read(fields.flags, "flags") or (),
        tres_requested=requested,
        gres=read(fields.flags, "gres_detail") or (),
        raw=reader.raw,
    )


def _queued_memory(reader: RecordReader, cpus: int | None, nodes: int | None) -> int | None:
    per_cpu = reader.read(amount, "memory_per_cpu")
    if per_cpu and cpus:
        return per_cpu * cpus * MIB
    per_node = reader.read(amount, "memory_per_node")
    if per_node and nodes:
        return per_node * nodes * MIB
    return None


def read_accounted_job(reader: RecordReader, cluster: str, source: str) -> JobRecord:
    """One job with its steps."""
    read = reader.read
    state = read(fields.job_state, "state.current", "state")
    nodes = read(fields.hosts, "nodes")
    ended = state is not None and state.ended
    waiting = state is not None and state.waiting
    start = read(fields.time, "time.start")
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
        memory = _accounted_memory(reader, asked, node_count)
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
            time_limit=read(fields.minutes, "time.limit"),
            submit=read(fields.time, "time.submission"),
            start=start if ran else None,
            end=read(fields.time, "time.end") if ended else None,
            state=state.state if state else None,
            exit_code=exit.code,
            exit_signal=exit.signal,
        ),
        state_flags=state.flags if state else (),
        reason=read(text_or_none, "state.reason"),
        reservation=read(fields.name, "reservation.name"),
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
        eligible=read(fields.time, "time.eligible"),
        expected_start=expected,
        elapsed=read(fields.seconds, "time.elapsed"),
        suspended=read(fields.seconds, "time.suspended"),
        node_count=node_count,
        array_tasks=read(text_or_none, "array.task"),
        array_task_limit=read(amount, "array.limits.max.running.tasks") or None,
        derived_exit_code=derived.code,
        derived_exit_signal=derived.signal,
        cancelled_by=read(text_or_none, "kill_request_user"),
        flags=read(fields.flags, "flags") or (),
        tres_requested=requested,
        gres=read(fields.flags, "used_gres") or (),
        steps=steps,
    )
    add_cpu_times(
        record, *(read(fields.cpu_time, f"time.{part}") for part in ("total", "user", "system"))
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
    if is_plausible(found, state):
        return found
    reader.report(path, reader.value(path), "says success for a job that failed; not believed")
    return Exit()


def _accounted_memory(reader: RecordReader, cpus: int | None, nodes: int | None) -> int | None:
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
    state = read(fields.job_state, "state")
    ended = state is not None and state.ended
    exit = _exit(reader, "exit_code", state.state if state else "") if ended else Exit()
    found = StepInfo(
        step=step,
        name=read(text_or_none, "step.name"),
        state=state.state if state else None,
        exit_code=exit.code,
        exit_signal=exit.signal,
        start=read(fields.time, "time.start"),
        end=read(fields.time, "time.end") if ended else None,
        tasks=read(amount, "tasks.count"),
        nodes=read(fields.hosts, "nodes.range", "nodes.list"),
        cpu_time=read(fields.cpu_time, "time.total") if ended else None,
        cpu_user=read(fields.cpu_time, "time.user") if ended else None,
        cpu_system=read(fields.cpu_time, "time.system") if ended else None,
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


def read_node(reader: RecordReader, cluster: str) -> NodeInfo:
    """One node."""
    read = reader.read
    state = read(_node_state, "state")
    more = read(fields.flags, "state_flags") or ()
    flags = dict.fromkeys((*(state[1] if state else ()), *(flag.upper() for flag in more)))
    return NodeInfo(
        cluster=cluster or read(text_or_none, "cluster_name") or "",
        name=read(text_or_none, "name") or "",
        state=state[0] if state else None,
        state_flags=tuple(flags),
        reason=read(text_or_none, "reason"),
        reason_user=read(text_or_none, "reason_set_by_user"),
        reason_time=read(fields.time, "reason_changed_at"),
        address=read(text_or_none, "address"),
        host=read(text_or_none, "hostname"),
        port=read(amount, "port"),
        architecture=read(text_or_none, "architecture"),
        system=read(text_or_none, "operating_system"),
        version=read(text_or_none, "version", "slurmd_version"),
        boards=read(amount, "boards"),
        sockets=read(amount, "sockets"),
        cores=read(amount, "cores"),
        threads=read(amount, "threads"),
        cpus=read(amount, "cpus"),
        cpus_allocated=read(amount, "alloc_cpus"),
        cpus_idle=read(amount, "alloc_idle_cpus", "idle_cpus"),
        load=read(fields.load, "cpu_load"),
        memory=read(fields.mebibytes, "real_memory"),
        memory_allocated=read(fields.mebibytes, "alloc_memory"),
        memory_free=read(fields.mebibytes, "free_mem", "free_memory"),
        temporary_disk=read(fields.mebibytes, "temporary_disk"),
        weight=read(amount, "weight"),
        features=read(fields.flags, "features") or (),
        features_active=read(fields.flags, "active_features") or (),
        partitions=read(fields.flags, "partitions") or (),
        reservation=read(text_or_none, "reservation"),
        owner=read(_owner, "owner"),
        comment=read(text_or_none, "comment"),
        extra=read(text_or_none, "extra"),
        gres=read(_gres, "gres") or {},
        gres_used=read(_gres, "gres_used") or {},
        tres=read(read_tres, "tres") or {},
        tres_used=read(read_tres, "tres_used") or {},
        booted=read(fields.time, "boot_time"),
        daemon_started=read(fields.time, "slurmd_start_time"),
        last_busy=read(fields.time, "last_busy"),
        raw=reader.raw,
    )


def read_partition(reader: RecordReader, cluster: str) -> PartitionInfo:
    """One partition; to 22.05 a flat record, then one with tables inside."""
    read = reader.read
    return PartitionInfo(
        cluster=cluster or read(text_or_none, "cluster") or "",
        name=read(text_or_none, "name") or "",
        state=read(_one_word, "partition.state", "state"),
        nodes=read(fields.hosts, "nodes.configured", "nodes"),
        node_count=read(amount, "nodes.total", "total_nodes"),
        cpus=read(amount, "cpus.total", "total_cpus"),
        time_limit=read(fields.minutes, "maximums.time", "max_time_limit"),
        default_time=read(fields.minutes, "defaults.time", "default_time_limit"),
        accounts_allowed=read(fields.flags, "accounts.allowed", "allowed_accounts") or (),
        accounts_denied=read(fields.flags, "accounts.deny", "denied_accounts") or (),
        groups_allowed=read(fields.flags, "groups.allowed", "allowed_groups") or (),
        qos_allowed=read(fields.flags, "qos.allowed", "allowed_qos") or (),
        qos=read(_text_only, "qos.assigned", "qos"),
        priority_tier=read(amount, "priority.tier", "priority_tier"),
        priority_factor=read(amount, "priority.job_factor", "priority_job_factor"),
        tres=read(read_tres, "tres.configured", "tres") or {},
        raw=reader.raw,
    )


def _node_state(value: Any) -> tuple[str, tuple[str, ...]]:
    return parse_node_state(words(value))


def _one_word(value: Any) -> str | None:
    found = words(value)
    return found[0].upper() if found else None


def _text_only(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _owner(value: Any) -> str | None:
    """A user who has the node alone: a name, or a number."""
    if isinstance(value, str):
        return text_or_none(value)
    found = amount(value)
    return None if found is None else str(found)


def _gres(value: Any) -> dict[str, int]:
    return parse_gres(value) if isinstance(value, str) else parse_gres(",".join(words(value)))
