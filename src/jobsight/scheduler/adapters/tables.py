"""Where each field of a record is found in the replies of Slurm, for all releases and formats.

There is one table for each kind of record. A row names the field, its converter, and for each
format the paths of the field, separated by spaces; releases moved some fields, and the first path
with a value counts. A format with its own converter has a pair of converter and paths. Formats:

- ``queue``: a job of the controller as JSON (``squeue --json``, slurmrestd);
- ``accounting``: a job or step of the accounting as JSON (``sacct --json``, slurmrestd);
- ``squeue``, ``sacct``, ``sinfo``: columns of the command;
- ``json``: a node or partition as JSON (``scontrol --json``, ``sinfo --json``, slurmrestd);
- ``pyslurm``, ``pyslurm_db``: PySlurm's controller and accounting; where two paths are given, the
  first is that of the older interface.

:func:`read_job`, :func:`read_step`, :func:`read_node` and :func:`read_partition` build the records;
what depends on more than one value is computed there, once for all formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jobsight.model import JobInfo
from jobsight.scheduler.fields import (
    CONVERSION_ERRORS,
    NUMBERED,
    Exit,
    JobState,
    RecordReader,
    amount,
    count_gpus,
    cpu_time,
    exit_of,
    explain,
    flags,
    from_wait_status,
    hosts,
    is_plausible,
    job_state,
    mebibytes,
    minutes,
    minutes_or_duration,
    node_state,
    number,
    numbered_tres,
    parse_amount,
    parse_duration,
    parse_exit,
    parse_size,
    path_names,
    positive,
    read_exit,
    read_gres,
    read_tres,
    real,
    seconds,
    storable,
    text_only,
    text_or_none,
    time,
    words,
)
from jobsight.scheduler.hostlist import NO_NODES
from jobsight.scheduler.records import JobRecord, NodeInfo, PartitionInfo, StepInfo

Converter = Callable[[Any], Any]


class Field:
    """One row: a field and its paths by format. With ``ended`` it counts once the job has ended."""

    def __init__(
        self,
        name: str,
        convert: Converter,
        *,
        ended: bool = False,
        **paths: str | tuple[Converter, str],
    ) -> None:
        self.name = name
        self.convert = convert
        self.ended = ended
        self.paths = paths


#: A path as it is reported, and its names if there is more than one.
_Path = tuple[str, tuple[str, ...]]
#: A row for one format: field, converter, only if ended, paths.
_Step = tuple[str, Converter, bool, tuple[_Path, ...]]


class Table:
    """The rows of one kind of record."""

    def __init__(self, *rows: Field) -> None:
        self.rows = rows
        self._steps: dict[str, tuple[_Step, ...]] = {}

    def read(self, reader: RecordReader, format: str, *, ended: bool = True) -> dict[str, Any]:
        """The fields that have a value. What cannot be converted is reported to the reader."""
        values: dict[str, Any] = {}
        document = reader.document
        for field, convert, only_ended, paths in self._steps_of(format):
            if only_ended and not ended:
                continue
            for path, names in paths:
                if not names:
                    value = document.get(path)
                else:
                    value = document
                    for name in names:
                        value = value.get(name) if isinstance(value, dict) else None
                # Most columns of a row are empty, and no converter makes a value of that.
                if value is None or value == "":
                    continue
                try:
                    converted = storable(convert(value))
                except CONVERSION_ERRORS as error:
                    reader.report(path, value, explain(error, value))
                    continue
                if converted is not None:
                    values[field] = converted
                    break
        return values

    def paths(self, format: str) -> set[str]:
        """All paths of a format."""
        return {path for _, _, _, paths in self._steps_of(format) for path, _ in paths}

    def _steps_of(self, format: str) -> tuple[_Step, ...]:
        steps = self._steps.get(format)
        if steps is None:
            cells = [(row, cell) for row in self.rows if (cell := row.paths.get(format))]
            steps = self._steps[format] = tuple(
                (row.name, row.convert, row.ended, _split_paths(cell))
                if isinstance(cell, str)
                else (row.name, cell[0], row.ended, _split_paths(cell[1]))
                for row, cell in cells
            )
        return steps


def _split_paths(paths: str) -> tuple[_Path, ...]:
    return tuple((path, path_names(path) if "." in path else ()) for path in paths.split())


# --- converters of one format ------------------------------------------------------------------

_JOB_ID = re.compile(
    r"(?P<job>\d+)(?:_(?:(?P<task>\d+)|\[(?P<tasks>[^\]]*)\])|\+(?P<offset>\d+))?", re.ASCII
)
_TASKS = re.compile(r"[0-9][0-9,:-]*(?:\.\.\.)?(?:%[0-9]+)?", re.ASCII)
_CANCELLED = re.compile(r"CANCELLED by (\S+)", re.ASCII)
#: Steps of PySlurm that have no number of their own.
_PYSLURM_STEPS = {2**32 - 5: "batch", 2**32 - 4: "extern", 2**32 - 6: "interactive",
                  2**32 - 3: "pending"}  # fmt: skip


@lru_cache(maxsize=4)
def _job_id(text: str) -> dict[str, str | None]:
    """sacct's JobID: ``12``, ``12_3``, ``12_[4-9%2]``, ``12+1``."""
    match = _JOB_ID.fullmatch(text)
    if match is None:
        raise ValueError("is not a job id")
    return match.groupdict()


def _array_job(text: str) -> int | None:
    ids = _job_id(text)
    return int(ids["job"] or 0) if ids["task"] or ids["tasks"] else None


def _array_task(text: str) -> int | None:
    return amount(_job_id(text)["task"])


def _array_tasks(text: str) -> str | None:
    return _job_id(text)["tasks"]


def _squeue_task(text: str) -> int | None:
    """The task of a job; the pending tasks of an array have a list instead."""
    return amount(text) if text.isascii() and text.isdigit() else None


def _squeue_tasks(text: str) -> str | None:
    tasks = text.strip("[]")
    if tasks.isascii() and tasks.isdigit():
        return None
    if not _TASKS.fullmatch(tasks):
        raise ValueError(f"{text[:40]!r} is not a list of array tasks")
    return tasks


def _reason(value: Any) -> str | None:
    return None if value == "None" else text_or_none(value)


def _het_job(text: str) -> int | None:
    ids = _job_id(text)
    return int(ids["job"] or 0) if ids["offset"] else None


def _het_offset(text: str) -> int | None:
    return amount(_job_id(text)["offset"])


def _memory_for(suffix: str) -> Converter:
    """sacct's ReqMem: up to 20.11 a suffix tells whether it is per CPU or per node."""

    def convert(text: str) -> int | None:
        return (
            parse_size(text) if (text[-1:] if text.endswith(("c", "n")) else "") == suffix else None
        )

    return convert


def _cancelling_user(text: str) -> str | None:
    match = _CANCELLED.match(text)
    return match[1] if match else None


def _name(value: Any) -> str | None:
    """21.08 and 22.05 write 0 for a reservation that has no name."""
    return None if value == 0 else text_or_none(value)


def _code_or_pair(value: Any) -> Exit:
    """PySlurm's exit code: "code:signal" in the older interface, the code alone in the newer."""
    return parse_exit(value) if isinstance(value, str) else Exit(amount(value))


def _json_step(value: Any) -> str | None:
    """ "batch", 0, "12.batch" or an object, by release."""
    if isinstance(value, dict):
        return _json_step(value.get("step_id", value.get("id")))
    if isinstance(value, str):
        return value.rpartition(".")[2].lower() or None
    step = amount(value)
    return None if step is None else str(step)


def _pyslurm_step(value: Any) -> str | None:
    if isinstance(value, str) and not value.isdigit():
        return value.lower()
    step = number(value)
    return None if step is None else _PYSLURM_STEPS.get(int(step), str(int(step)))


def _json_memory_peak(value: Any) -> int | None:
    """Usage is in bytes, whereas requested and allocated memory is in MiB."""
    for entry in value:
        if entry.get("type") == "mem":
            return amount(entry.get("count"))
    return None


def _text_memory_peak(text: str) -> int | None:
    return parse_amount(text) if text else None


def _numbered_memory_peak(text: str) -> int | None:
    match = re.search(r"(?:^|,)2=(\d{1,20})", text)
    return amount(int(match[1])) if match else None


def _cpus_in_state(index: int) -> Converter:
    """sinfo's CPUsState: allocated/idle/other/total."""

    def convert(text: str) -> int:
        parts = text.split("/")
        if len(parts) != 4 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"{text[:40]!r} is not a count of CPUs in four states")
        return int(parts[index])

    return convert


def _load(value: Any) -> float | None:
    """The load average in hundredths."""
    load = number(value)
    return None if load is None or load >= 2**32 - 2 or load < 0 else load / 100


def _pyslurm_load(value: Any) -> float | None:
    """In hundredths in the older interface only."""
    load = number(value)
    return load / 100 if isinstance(load, int) else load


def _pyslurm_gres(value: Any) -> dict[str, int]:
    """An object in the newer interface."""
    if isinstance(value, dict):
        return {str(name): amount(count) or 0 for name, count in value.items()}
    return read_gres(value)


def _user(text: str) -> str | None:
    """sinfo writes ``root(0)``."""
    name = text.partition("(")[0]
    return None if name == "Unknown" else text_or_none(name)


def _owner(value: Any) -> str | None:
    """The user who has the node exclusively: a name or a number."""
    if isinstance(value, str):
        return text_or_none(value)
    uid = amount(value)
    return None if uid is None else str(uid)


def _first_word(value: Any) -> str | None:
    first, *_ = (*words(value), "")
    return first.upper() or None


def _allowed(value: Any) -> tuple[str, ...] | None:
    """Names that are allowed; None for "all"."""
    names = words(value)
    return None if not names or names in (("ALL",), ("all",)) else names


# --- jobs --------------------------------------------------------------------------------------

# fmt: off
JOB_STATE = {
    "queue": ("job_state",), "accounting": ("state.current", "state"),
    "sacct": ("State",), "squeue": ("State",),
    "pyslurm": ("job_state", "state"), "pyslurm_db": ("state_str", "state"),
}

JOB = Table(
    # Identity.
    Field("cluster", text_or_none, queue="cluster", accounting="cluster association.cluster",
          sacct="Cluster", pyslurm_db="cluster"),
    Field("job_id", amount, queue="job_id", accounting="job_id",
          sacct="JobIDRaw", squeue="JobID",
          pyslurm="job_id id", pyslurm_db="jobid id"),
    Field("sluid", text_or_none, queue="sluid step_id.sluid", accounting="sluid step_id.sluid",
          sacct="SLUID"),
    Field("restart_count", amount, queue="restart_cnt",
          accounting="restart_cnt restart_count restarts",
          sacct="Restarts", squeue="RestartCnt", pyslurm="restart_cnt requeue_count"),
    Field("array_job_id", positive, queue="array_job_id", accounting="array.job_id array_job_id",
          sacct=(_array_job, "JobID"), squeue="ArrayJobID",
          pyslurm="array_job_id array_id", pyslurm_db="array_job_id array_id"),
    Field("array_task_id", amount, queue="array_task_id", accounting="array.task_id",
          sacct=(_array_task, "JobID"), squeue=(_squeue_task, "ArrayTaskID"),
          pyslurm="array_task_id", pyslurm_db="array_task_id"),
    Field("array_tasks", text_or_none, queue="array_task_string", accounting="array.task",
          sacct=(_array_tasks, "JobID"), squeue=(_squeue_tasks, "ArrayTaskID"),
          pyslurm="array_task_str array_tasks_waiting"),
    Field("array_task_limit", positive, queue="array_max_tasks",
          accounting="array.limits.max.running.tasks"),
    Field("het_job_id", positive, queue="het_job_id", accounting="het.job_id het_job_id",
          sacct=(_het_job, "JobID"), squeue="HetJobID",
          pyslurm="het_job_id heterogeneous_id", pyslurm_db="het_job_id heterogeneous_id"),
    Field("het_offset", amount, queue="het_job_offset", accounting="het.job_offset",
          sacct=(_het_offset, "JobID"), squeue="HetJobOffset",
          pyslurm="het_job_offset heterogeneous_offset",
          pyslurm_db="het_job_offset heterogeneous_offset"),

    # Owner, and where the job was submitted to.
    Field("name", text_or_none, queue="name", accounting="name",
          sacct="JobName", squeue=(str, "Name"), pyslurm="name", pyslurm_db="jobname name"),
    Field("user", text_or_none, queue="user_name", accounting="user association.user",
          sacct="User", squeue="UserName", pyslurm="user_name", pyslurm_db="user user_name"),
    Field("uid", amount, queue="user_id", accounting="user_id uid",
          sacct="UID", squeue="UserID", pyslurm="user_id", pyslurm_db="uid user_id"),
    Field("group", text_or_none, queue="group_name", accounting="group",
          sacct="Group", pyslurm="group_name"),
    Field("gid", amount, queue="group_id", accounting="group_id gid",
          sacct="GID", pyslurm="group_id", pyslurm_db="gid group_id"),
    Field("account", text_or_none, queue="account", accounting="account association.account",
          sacct="Account", squeue="Account", pyslurm="account", pyslurm_db="account"),
    Field("partition", text_or_none, queue="partition", accounting="partition",
          sacct="Partition", squeue="Partition", pyslurm="partition", pyslurm_db="partition"),
    Field("qos", text_or_none, queue="qos", accounting="qos",
          sacct="QOS", squeue="QOS", pyslurm="qos", pyslurm_db=(text_only, "qos")),
    Field("reservation", _name, queue="resv_name", accounting="reservation.name",
          sacct="Reservation", pyslurm="resv_name reservation",
          pyslurm_db="resv_name reservation"),
    Field("wckey", text_or_none, queue="wckey", accounting="wckey.wckey",
          sacct="WCKey", pyslurm="wckey", pyslurm_db="wckey"),
    Field("priority", amount, queue="priority", accounting="priority",
          sacct="Priority", pyslurm="priority", pyslurm_db="priority"),

    # What it runs.
    Field("command", text_or_none, queue="command", squeue="Command", pyslurm="command"),
    Field("submit_line", text_or_none, queue="submit_line", accounting="submit_line",
          sacct="SubmitLine", pyslurm_db="submit_line submit_command"),
    Field("working_directory", text_or_none, queue="current_working_directory",
          accounting="working_directory", sacct="WorkDir",
          pyslurm="work_dir working_directory", pyslurm_db="work_dir working_directory"),
    Field("standard_output", text_or_none, queue="stdout_expanded standard_output",
          accounting="stdout_expanded stdout", sacct="StdOut", pyslurm="std_out standard_output"),
    Field("standard_error", text_or_none, queue="stderr_expanded standard_error",
          accounting="stderr_expanded stderr", sacct="StdErr", pyslurm="std_err standard_error"),
    Field("standard_input", text_or_none, queue="stdin_expanded standard_input",
          accounting="stdin_expanded stdin", sacct="StdIn", pyslurm="std_in standard_input"),
    Field("container", text_or_none, queue="container", accounting="container",
          sacct="Container", pyslurm="container", pyslurm_db="container"),
    Field("comment", text_or_none, queue="comment", accounting="comment.job",
          sacct="Comment", pyslurm="comment"),

    # Resources.
    Field("nodes", hosts, queue="nodes", accounting="nodes",
          sacct="NodeList", squeue="NodeList",
          pyslurm="nodes allocated_nodes", pyslurm_db="nodes nodelist"),
    Field("node_count", amount, queue="node_count", accounting="allocation_nodes",
          sacct="NNodes", pyslurm="num_nodes", pyslurm_db="alloc_nodes num_nodes"),
    Field("tasks", amount, queue="tasks", pyslurm="num_tasks ntasks"),
    Field("tres", read_tres, queue="tres_alloc_str", accounting="tres.allocated",
          sacct="AllocTRES", squeue="tres-alloc",
          pyslurm="tres_alloc_str", pyslurm_db=(numbered_tres, "tres_alloc_str")),
    Field("tres_requested", read_tres, queue="tres_req_str", accounting="tres.requested",
          sacct="ReqTRES", pyslurm="tres_req_str", pyslurm_db=(numbered_tres, "tres_req_str")),
    Field("cpus", amount, queue="cpus", accounting=(positive, "required.CPUs required.cpus"),
          sacct=(positive, "AllocCPUS ReqCPUS"), squeue="NumCPUs",
          pyslurm="num_cpus cpus", pyslurm_db="cpus req_cpus"),
    Field("memory", mebibytes, sacct=(_memory_for(""), "ReqMem"),
          pyslurm="memory", pyslurm_db="memory req_mem"),
    Field("memory_per_cpu", mebibytes, queue="memory_per_cpu",
          accounting="required.memory_per_cpu", sacct=(_memory_for("c"), "ReqMem")),
    Field("memory_per_node", mebibytes, queue="memory_per_node",
          accounting="required.memory_per_node", sacct=(_memory_for("n"), "ReqMem")),
    Field("gres", words, queue="gres_detail", accounting="used_gres"),
    Field("constraints", text_or_none, queue="features", accounting="constraints",
          sacct="Constraints", pyslurm_db=(text_only, "constraints")),
    Field("licenses", text_or_none, queue="licenses", accounting="licenses", sacct="Licenses"),

    # Times.
    Field("time_limit", minutes, queue="time_limit", accounting="time.limit",
          sacct=(minutes_or_duration, "TimelimitRaw"), squeue=(parse_duration, "TimeLimit"),
          pyslurm="time_limit", pyslurm_db="timelimit time_limit"),
    Field("submit", time, queue="submit_time", accounting="time.submission",
          sacct="Submit", squeue="SubmitTime",
          pyslurm="submit_time", pyslurm_db="submit submit_time"),
    Field("eligible", time, queue="eligible_time", accounting="time.eligible",
          sacct="Eligible", pyslurm="eligible_time", pyslurm_db="eligible eligible_time"),
    Field("start", time, queue="start_time", accounting="time.start",
          sacct="Start", squeue="StartTime", pyslurm="start_time", pyslurm_db="start start_time"),
    # While a job runs, the controller has the end of its time limit here.
    Field("end", time, ended=True, queue="end_time", accounting="time.end",
          sacct="End", squeue="EndTime", pyslurm="end_time", pyslurm_db="end end_time"),
    Field("elapsed", seconds, accounting="time.elapsed", sacct=(parse_duration, "ElapsedRaw"),
          pyslurm_db="elapsed elapsed_time"),
    Field("suspended", seconds, accounting="time.suspended", sacct=(parse_duration, "Suspended"),
          pyslurm_db="suspended suspended_time"),
    Field("cpu_time", cpu_time, accounting="time.total", sacct=(parse_duration, "TotalCPU"),
          pyslurm_db="tot_cpu"),
    Field("cpu_user", cpu_time, accounting="time.user", sacct=(parse_duration, "UserCPU"),
          pyslurm_db="user_cpu"),
    Field("cpu_system", cpu_time, accounting="time.system", sacct=(parse_duration, "SystemCPU"),
          pyslurm_db="sys_cpu"),

    # State and outcome.
    # A description takes the place of the reason, as in the column of squeue.
    Field("reason", _reason, queue="state_description state_reason", accounting="state.reason",
          sacct="Reason", squeue="Reason", pyslurm="state_reason"),
    Field("dependency", text_or_none, queue="dependency", pyslurm=(text_only, "dependency")),
    Field("flags", words, queue="flags", accounting="flags", sacct="Flags"),
    Field("cancelled_by", text_or_none, accounting="kill_request_user",
          sacct=(_cancelling_user, "State")),
    Field("exit", read_exit, ended=True, queue="exit_code", accounting="exit_code",
          sacct=(parse_exit, "ExitCode"), squeue="exit_code",
          pyslurm=(_code_or_pair, "exit_code"), pyslurm_db="exitcode"),
    Field("exit_code", amount, ended=True, pyslurm_db="exit_code"),
    Field("exit_signal", amount, ended=True,
          pyslurm="exit_code_signal", pyslurm_db="exit_code_signal"),
    Field("derived_exit", read_exit, ended=True, queue="derived_exit_code",
          accounting="derived_exit_code", sacct=(parse_exit, "DerivedExitCode")),
)

STEP = Table(
    Field("step", str.lower, accounting=(_json_step, "step.id step"),
          pyslurm_db=(_pyslurm_step, "stepid id")),
    Field("name", text_or_none, accounting="step.name", sacct="JobName",
          pyslurm_db="stepname name"),
    Field("start", time, accounting="time.start", sacct="Start", pyslurm_db="start start_time"),
    Field("end", time, ended=True, accounting="time.end", sacct="End", pyslurm_db="end end_time"),
    Field("tasks", amount, accounting="tasks.count", sacct="NTasks",
          pyslurm_db="ntasks num_tasks"),
    Field("nodes", hosts, accounting="nodes.range nodes.list", sacct="NodeList",
          pyslurm_db="nodes nodelist"),
    Field("tres", read_tres, accounting="tres.allocated", sacct="AllocTRES",
          pyslurm_db=(numbered_tres, "tres_alloc_str")),
    Field("cpu_time", cpu_time, ended=True, accounting="time.total",
          sacct=(parse_duration, "TotalCPU"), pyslurm_db="tot_cpu"),
    Field("cpu_user", cpu_time, ended=True, accounting="time.user",
          sacct=(parse_duration, "UserCPU"), pyslurm_db="user_cpu"),
    Field("cpu_system", cpu_time, ended=True, accounting="time.system",
          sacct=(parse_duration, "SystemCPU"), pyslurm_db="sys_cpu"),
    Field("memory_peak", _json_memory_peak, ended=True, accounting="tres.requested.max",
          sacct=(_text_memory_peak, "MaxRSS"),
          pyslurm_db=(_numbered_memory_peak, "stats.tres_usage_in_max")),
    Field("exit", read_exit, ended=True, accounting="exit_code", sacct=(parse_exit, "ExitCode"),
          pyslurm_db="exitcode"),
    Field("exit_code", amount, ended=True, pyslurm_db="exit_code"),
    Field("exit_signal", amount, ended=True, pyslurm_db="exit_code_signal"),
)
# fmt: on

_UNKNOWN_STATE = JobState("")
_NODE_PATHS = {
    format: next(str(row.paths[format]) for row in JOB.rows if row.name == "nodes").split()
    for format in JOB_STATE
}
#: Formats of the controller; all others are of the accounting.
_CONTROLLER = frozenset({"queue", "squeue", "pyslurm"})
_INFO_FIELDS = frozenset(JobInfo.__struct_fields__)


def read_job(reader: RecordReader, format: str, cluster: str, source: str) -> JobRecord:
    """A job without its steps; a ``cluster`` that is not empty replaces the one in the reply."""
    state = _read_state(reader, format)
    pending, ended = state.pending, state.ended
    # The accounting has an end only of jobs that have ended, also in a state that is not known.
    values = JOB.read(reader, format, ended=ended or _ends_anyway(state, format))
    ended = ended or (_ends_anyway(state, format) and "end" in values)
    exit = _read_exit(reader, format, state, values)
    derived: Exit = values.pop("derived_exit", Exit())
    values["cluster"] = cluster or values.get("cluster", "")
    values["source"] = source
    values["state"] = state.state or None
    values["exit_code"], values["exit_signal"] = exit
    values["derived_exit_code"], values["derived_exit_signal"] = derived
    start = values.pop("start", None)
    if pending:
        values["expected_start"] = start
    elif format in _CONTROLLER and state.start_is_of_next_run:
        values.pop("restart_count", None)
    elif not ended or _has_run(reader, format, start, values):
        values["start"] = start
    if "array_job_id" not in values:
        values.pop("array_task_id", None)
    if "het_job_id" not in values:
        values.pop("het_offset", None)
    if format in _CONTROLLER and state.state == "COMPLETING":
        _correct_nodes(values)
    _compute_resources(values)
    if "job_id" not in values:
        raise ValueError("it has no job id")
    info = {name: values.pop(name) for name in _INFO_FIELDS & values.keys()}
    return JobRecord(info=JobInfo(**info), state_flags=state.flags, raw=reader.raw, **values)


def _read_state(reader: RecordReader, format: str) -> JobState:
    state = reader.read(job_state, *JOB_STATE[format]) or _UNKNOWN_STATE
    if state.unknown and state is not _UNKNOWN_STATE:
        reason = f"{', '.join(state.unknown)} is not a known state"
        reader.report(JOB_STATE[format][0], reader.value(JOB_STATE[format][0]), reason)
    return state


def _ends_anyway(state: JobState, format: str) -> bool:
    """Whether the state does not tell if the job has ended, but the recorded end does."""
    return format not in _CONTROLLER and (state is _UNKNOWN_STATE or state.state in state.unknown)


def _has_run(reader: RecordReader, format: str, start: int | None, values: dict[str, Any]) -> bool:
    """Whether a job that has ended has run. What contradicts itself is reported.

    A job that was cancelled while pending has an end, and in some releases a start, but neither
    nodes nor resources.
    """
    end = values.get("end")
    if values.get("nodes") is not None:
        if start is None:
            reader.report("start", None, "a job with nodes has ended without a start")
        elif end is not None and start > end:
            reader.report("start", start, "is after the end")
            return False
        return start is not None
    # The controller has no nodes of some jobs that were cancelled; the accounting decides.
    without_nodes = format in _CONTROLLER or any(
        _says_no_nodes(reader.value(path)) for path in _NODE_PATHS[format]
    )
    if without_nodes or not values.get("tres") or start is None or end is None or start >= end:
        return False
    reader.report("nodes", None, "a job has run without a node list")
    return True


def _correct_nodes(values: dict[str, Any]) -> None:
    """Of a job that is completing, the controller lists and counts the nodes that are not free yet.
    The allocated resources still hold the number of all."""
    count = (values.get("tres") or {}).get("node")
    if count is None or count != len(values.get("nodes") or ()):
        values.pop("nodes", None)
    values["node_count"] = count


def _says_no_nodes(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.strip().lower() in NO_NODES


def read_step(reader: RecordReader, format: str, step: str = "?") -> StepInfo:
    """A step; ``step`` is its name if the record does not hold one."""
    state = reader.read(job_state, *JOB_STATE[format]) or _UNKNOWN_STATE
    values = STEP.read(reader, format, ended=state.ended)
    exit = _read_exit(reader, format, state, values)
    values.setdefault("step", step)
    return StepInfo(
        state=state.state or None, exit_code=exit.code, exit_signal=exit.signal, **values
    )


def complete_cpu_times(record: JobRecord) -> None:
    """Replace CPU times of the job that are missing or 0, as in many releases, by the sums of its
    steps. While the job runs there are none: a step is recorded when it ends."""
    times: list[int | None]
    if record.info.end is None or (record.cpu_time is None and not record.steps):
        times = [None, None, None]
    elif record.cpu_time:
        return
    else:
        times = [
            sum(getattr(step, name) or 0 for step in record.steps)
            for name in ("cpu_time", "cpu_user", "cpu_system")
        ]
    record.cpu_time, record.cpu_user, record.cpu_system = times


def _read_exit(reader: RecordReader, format: str, state: JobState, values: dict[str, Any]) -> Exit:
    """How a job or step ended, with the faults of single formats corrected."""
    exit: Exit | None = values.pop("exit", None)
    code, signal = values.pop("exit_code", None), values.pop("exit_signal", None)
    if not state.ended:
        return Exit()
    if format == "accounting" and exit is not None and not is_plausible(exit, state.state):
        reason = "is success for a job that failed; ignored"
        reader.report("exit_code", reader.value("exit_code"), reason)
        return Exit()
    if format == "pyslurm":
        exit = exit or Exit()
        signal = signal or exit.signal
        # The older interface leaves the signal of one job in the exit codes of the following
        # ones, so it counts only if this job must have had one.
        if exit.code or state.state == "COMPLETED" or not signal:
            return Exit(exit.code or 0, None)
        return exit_of(0, signal) if state.state in ("FAILED", "OUT_OF_MEMORY") else Exit()
    if format == "pyslurm_db" and exit is None:
        return exit_of(0, signal) if signal else Exit(code, None)
    if format == "squeue" and exit is None:
        return from_wait_status(0)
    return exit or Exit()


def _compute_resources(values: dict[str, Any]) -> None:
    """CPUs, memory and GPUs: allocated if that is known, else requested."""
    allocated, requested = values.get("tres") or {}, values.get("tres_requested") or {}
    cpus = allocated.get("cpu", values.get("cpus"))
    per_cpu, per_node = values.pop("memory_per_cpu", None), values.pop("memory_per_node", None)
    memory = allocated.get("mem", requested.get("mem", values.get("memory")))
    if memory is None and per_cpu and cpus:
        memory = per_cpu * cpus
    elif memory is None and per_node and values.get("node_count"):
        memory = per_node * values["node_count"]
    values |= {"cpus": cpus, "memory": memory, "gpus": count_gpus(allocated)}
    # Resources by number must not replace those by name that the controller has.
    by_number = any(name.startswith(NUMBERED) for name in allocated)
    values["tres"] = None if by_number else allocated or None


# --- nodes and partitions ----------------------------------------------------------------------

# fmt: off
NODE = Table(
    Field("cluster", text_or_none, json="cluster_name"),
    Field("name", text_or_none, json="name", sinfo="NodeList", pyslurm="name"),
    Field("state", node_state, json="state", sinfo="StateComplete", pyslurm="state"),
    Field("state_flags", flags, json="state_flags"),
    Field("reason", text_or_none, json="reason", sinfo="Reason", pyslurm="reason"),
    Field("reason_user", text_or_none, json="reason_set_by_user", sinfo=(_user, "UserLong"),
          pyslurm=(text_only, "reason_user")),
    Field("reason_time", time, json="reason_changed_at", sinfo="Timestamp",
          pyslurm="reason_time"),
    Field("address", text_or_none, json="address", sinfo="NodeAddr", pyslurm="node_addr address"),
    Field("host", text_or_none, json="hostname", sinfo="NodeHost",
          pyslurm="node_hostname hostname"),
    Field("port", amount, json="port", sinfo="Port", pyslurm="slurmd_port"),
    Field("architecture", text_or_none, json="architecture", pyslurm="arch architecture"),
    Field("system", text_or_none, json="operating_system", pyslurm="os operating_system"),
    Field("version", text_or_none, json="version slurmd_version", sinfo="Version",
          pyslurm="version slurm_version"),
    Field("boards", amount, json="boards", pyslurm="boards"),
    Field("sockets", amount, json="sockets", sinfo="Sockets", pyslurm="sockets"),
    Field("cores", amount, json="cores", sinfo="Cores", pyslurm="cores cores_per_socket"),
    Field("threads", amount, json="threads", sinfo="Threads", pyslurm="threads threads_per_core"),
    Field("cpus", amount, json="cpus", sinfo="CPUs", pyslurm="cpus total_cpus"),
    Field("cpus_allocated", amount, json="alloc_cpus", sinfo=(_cpus_in_state(0), "CPUsState"),
          pyslurm="alloc_cpus allocated_cpus"),
    Field("cpus_idle", amount, json="alloc_idle_cpus idle_cpus",
          sinfo=(_cpus_in_state(1), "CPUsState"), pyslurm="idle_cpus"),
    Field("load", _load, json="cpu_load", sinfo=(real, "CPUsLoad"),
          pyslurm=(_pyslurm_load, "cpu_load")),
    Field("memory", mebibytes, json="real_memory", sinfo="Memory", pyslurm="real_memory"),
    Field("memory_allocated", mebibytes, json="alloc_memory", sinfo="AllocMem",
          pyslurm="alloc_mem allocated_memory"),
    Field("memory_free", mebibytes, json="free_mem free_memory", sinfo="FreeMem",
          pyslurm="free_mem free_memory"),
    Field("temporary_disk", mebibytes, json="temporary_disk", sinfo="Disk",
          pyslurm="tmp_disk temporary_disk"),
    Field("weight", amount, json="weight", sinfo="Weight", pyslurm="weight"),
    Field("features", words, json="features", sinfo="Features",
          pyslurm="features available_features"),
    Field("features_active", words, json="active_features", sinfo="features_act",
          pyslurm="features_active active_features"),
    Field("partitions", words, json="partitions", pyslurm="partitions"),
    Field("reservation", text_or_none, json="reservation"),
    Field("owner", _owner, json="owner", pyslurm=(text_only, "owner")),
    Field("comment", text_or_none, json="comment", sinfo="Comment", pyslurm="comment"),
    Field("extra", text_or_none, json="extra", sinfo="Extra", pyslurm="extra"),
    Field("gres", read_gres, json="gres", sinfo="Gres",
          pyslurm=(_pyslurm_gres, "gres configured_gres")),
    Field("gres_used", read_gres, json="gres_used", sinfo="GresUsed",
          pyslurm=(_pyslurm_gres, "gres_used allocated_gres")),
    Field("tres", read_tres, json="tres", pyslurm="tres_fmt_str"),
    Field("tres_used", read_tres, json="tres_used"),
    Field("booted", time, json="boot_time", pyslurm="boot_time"),
    Field("daemon_started", time, json="slurmd_start_time", pyslurm="slurmd_start_time"),
    Field("last_busy", time, json="last_busy", pyslurm="last_busy last_busy_time"),
)

# Up to 22.05 the JSON of a partition is flat, since then it has objects.
PARTITION = Table(
    Field("cluster", text_or_none, json="cluster"),
    Field("name", text_or_none, json="name", sinfo="PartitionName", pyslurm="name"),
    Field("state", _first_word, json="partition.state state", sinfo="Available", pyslurm="state"),
    Field("nodes", hosts, json="nodes.configured nodes", sinfo="NodeList", pyslurm="nodes"),
    Field("node_count", amount, json="nodes.total total_nodes", pyslurm="total_nodes"),
    Field("cpus", amount, json="cpus.total total_cpus", sinfo=(_cpus_in_state(3), "CPUsState"),
          pyslurm="total_cpus"),
    Field("time_limit", minutes, json="maximums.time max_time_limit",
          sinfo=(parse_duration, "Time"),
          pyslurm="max_time", pyslurm_old=(seconds, "max_time")),
    Field("default_time", minutes, json="defaults.time default_time_limit",
          sinfo=(parse_duration, "DefaultTime"),
          pyslurm="default_time", pyslurm_old=(seconds, "default_time")),
    Field("accounts_allowed", _allowed, json="accounts.allowed allowed_accounts",
          pyslurm="allow_accounts allowed_accounts"),
    Field("accounts_denied", _allowed, json="accounts.deny denied_accounts"),
    Field("groups_allowed", _allowed, json="groups.allowed allowed_groups", sinfo="Groups",
          pyslurm="allow_groups allowed_groups"),
    Field("qos_allowed", _allowed, json="qos.allowed allowed_qos",
          pyslurm="allow_qos allowed_qos"),
    Field("qos", text_only, json="qos.assigned qos"),
    Field("priority_tier", amount, json="priority.tier priority_tier", sinfo="PriorityTier",
          pyslurm="priority_tier"),
    Field("priority_factor", amount, json="priority.job_factor priority_job_factor",
          sinfo="PriorityJobFactor", pyslurm="priority_job_factor"),
    Field("tres", read_tres, json="tres.configured tres", pyslurm="tres_fmt_str"),
)
# fmt: on


def read_node(reader: RecordReader, format: str, cluster: str) -> NodeInfo:
    values = NODE.read(reader, format)
    state, state_flags = values.pop("state", (None, ()))
    more = (flag.upper() for flag in values.pop("state_flags", ()))
    values["cluster"] = cluster or values.get("cluster", "")
    values.setdefault("name", "")
    return NodeInfo(
        state=state,
        state_flags=tuple(dict.fromkeys((*state_flags, *more))),
        raw=reader.raw,
        **values,
    )


def read_partition(reader: RecordReader, format: str, cluster: str) -> PartitionInfo:
    values = PARTITION.read(reader, format)
    if format == "pyslurm_old":
        # Only the units of its times differ.
        values = PARTITION.read(reader, "pyslurm") | values
    values["cluster"] = cluster or values.get("cluster", "")
    values.setdefault("name", "")
    return PartitionInfo(raw=reader.raw, **values)
