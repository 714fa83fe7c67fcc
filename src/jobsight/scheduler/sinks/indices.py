"""What a job and a node are in OpenSearch: their fields, and the templates that give them types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobsight.model import SECOND
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.base import SinkJob
from jobsight.scheduler.tres import gpus_of

_WORD = {"type": "keyword", "ignore_above": 1024}
_COUNT = {"type": "long"}
_TIME = {"type": "date", "format": "epoch_second"}
_REAL = {"type": "double"}
_TEXT = {"type": "text", "fields": {"word": _WORD}}

_COMMON = {"key": _WORD, "digest": _WORD, "cluster": _WORD, "state": _WORD, "reason": _WORD}
_COLOUR = {"properties": {"job_state_color": _COUNT}}

_JOB_FIELDS: dict[str, Any] = {
    **_COMMON,
    **dict.fromkeys(("job_id", "array_job_id", "array_task_id", "uid"), _COUNT),
    **dict.fromkeys(("het_job_id", "het_offset", "restart_count"), _COUNT),
    **dict.fromkeys(("cpus", "gpus", "memory", "node_count", "priority"), _COUNT),
    **dict.fromkeys(("exit_code", "exit_signal", "memory_used_peak", "memory_peak"), _COUNT),
    **dict.fromkeys(("user", "account", "partition", "qos", "reservation", "sluid"), _WORD),
    **dict.fromkeys(("nodes", "gpu_types", "flags", "state_flags"), _WORD),
    **dict.fromkeys(("name", "comment", "working_directory", "submit_line"), _TEXT),
    **dict.fromkeys(("submit_time", "start_time", "end_time", "eligible_time"), _TIME),
    **dict.fromkeys(("time_limit", "elapsed", "waited"), _COUNT),
    **dict.fromkeys(("cpu_time", "slurm_cpu_time", "core_time", "cpu_efficiency"), _REAL),
    "grafana_helpers": _COLOUR,
}
_NODE_FIELDS: dict[str, Any] = {
    **_COMMON,
    **dict.fromkeys(("name", "partitions", "features", "state_flags", "gpu_types"), _WORD),
    **dict.fromkeys(("reservation", "architecture", "system", "version"), _WORD),
    **dict.fromkeys(("cpus", "cpus_allocated", "cpus_idle", "gpus", "gpus_used"), _COUNT),
    **dict.fromkeys(("memory", "memory_allocated", "memory_free"), _COUNT),
    **dict.fromkeys(("booted_time", "last_busy_time", "reason_time"), _TIME),
    "load": _REAL,
    "grafana_helpers": _COLOUR,
}


def _template(fields: dict[str, Any]) -> dict[str, Any]:
    mappings = {"dynamic": False, "properties": fields}
    return {"priority": 100, "template": {"mappings": mappings}}


#: By the index that each is for, without the site's prefix.
TEMPLATES = {
    "jobs": _template(_JOB_FIELDS),
    "waiting": _template(_JOB_FIELDS),
    "nodes": _template(_NODE_FIELDS),
}

#: Colours of Grafana's panels, as the earlier dashboards took them: bad, middling, good.
_BAD = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "DOWN", "ERROR"})
_MIDDLING = frozenset({"PENDING", "CANCELLED", "PREEMPTED", "SUSPENDED", "DRAINED", "UNKNOWN"})


def month_of(job: SinkJob) -> str:
    """The month of the start, in which a run stays for ever."""
    start = job.record.info.start
    assert start is not None
    return datetime.fromtimestamp(start // SECOND, UTC).strftime("%Y.%m")


def job_source(job: SinkJob) -> dict[str, Any]:
    """One run, or a job that waits; what is not known is left out."""
    record, info, figures = job.record, job.record.info, job.figures
    elapsed = None if info.start is None or info.end is None else info.end - info.start
    core_time = None if elapsed is None or info.cpus is None else elapsed * info.cpus
    share = None
    if figures.cpu_time is not None and core_time:
        share = round(figures.cpu_time / core_time, 6)
    found = {
        "cluster": info.cluster,
        "job_id": info.job_id,
        "array_job_id": info.array_job_id,
        "array_task_id": info.array_task_id,
        "het_job_id": info.het_job_id,
        "het_offset": info.het_offset,
        "restart_count": info.restart_count,
        "sluid": info.sluid,
        "name": info.name,
        "user": info.user,
        "uid": info.uid,
        "account": info.account,
        "partition": info.partition,
        "qos": info.qos,
        "reservation": record.reservation,
        "comment": record.comment,
        "working_directory": record.working_directory,
        "submit_line": record.submit_line,
        "state": info.state,
        "state_flags": list(record.state_flags),
        "flags": list(record.flags),
        "reason": record.reason,
        "exit_code": info.exit_code,
        "exit_signal": info.exit_signal,
        "nodes": list(info.nodes or ()),
        "node_count": record.node_count,
        "cpus": info.cpus,
        "gpus": info.gpus,
        "gpu_types": sorted(gpus_of(info.tres or {})),
        "memory": info.memory,
        "priority": record.priority,
        "time_limit": _seconds(info.time_limit),
        "submit_time": _seconds(info.submit),
        "eligible_time": _seconds(record.eligible),
        "start_time": _seconds(info.start),
        "end_time": _seconds(info.end),
        "elapsed": _seconds(elapsed),
        "waited": _waited(job),
        "core_time": _real_seconds(core_time),
        "slurm_cpu_time": _real_seconds(record.cpu_time),
        "cpu_time": _real_seconds(figures.cpu_time),
        "cpu_efficiency": share,
        "memory_used_peak": figures.memory_used_peak,
        "memory_peak": figures.memory_peak,
        "grafana_helpers": {"job_state_color": _colour(info.state)},
    }
    return {name: value for name, value in found.items() if value is not None}


def node_source(node: NodeInfo) -> dict[str, Any]:
    """One node; what is not known is left out."""
    gpus = {name: count for name, count in node.gres.items() if name.startswith("gpu")}
    used = [count for name, count in node.gres_used.items() if name.startswith("gpu")]
    found = {
        "cluster": node.cluster,
        "name": node.name,
        "state": node.state,
        "state_flags": list(node.state_flags),
        "reason": node.reason,
        "reason_time": _seconds(node.reason_time),
        "partitions": list(node.partitions),
        "features": list(node.features),
        "reservation": node.reservation,
        "architecture": node.architecture,
        "system": node.system,
        "version": node.version,
        "cpus": node.cpus,
        "cpus_allocated": node.cpus_allocated,
        "cpus_idle": node.cpus_idle,
        "gpus": sum(gpus.values()),
        "gpus_used": sum(used) if node.gres_used else None,
        "gpu_types": sorted(name.partition(":")[2] or "gpu" for name in gpus),
        "memory": node.memory,
        "memory_allocated": node.memory_allocated,
        "memory_free": node.memory_free,
        "load": node.load,
        "booted_time": _seconds(node.booted),
        "last_busy_time": _seconds(node.last_busy),
        "grafana_helpers": {"job_state_color": _colour(node.state)},
    }
    return {name: value for name, value in found.items() if value is not None}


def _colour(state: str | None) -> int:
    return 0 if state in _BAD else 5 if state in _MIDDLING or state is None else 10


def _waited(job: SinkJob) -> int | None:
    info = job.record.info
    begin = job.record.eligible or info.submit
    return None if info.start is None or begin is None else max(0, _whole(info.start - begin))


def _seconds(time: int | None) -> int | None:
    return None if time is None else _whole(time)


def _whole(time: int) -> int:
    return time // SECOND


def _real_seconds(time: int | None) -> float | None:
    return None if time is None else time / SECOND
