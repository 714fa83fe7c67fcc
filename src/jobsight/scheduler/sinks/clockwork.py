"""Jobs and nodes as documents of Clockwork, for its database and for its routes.

``slurm`` and ``cw`` have the fields of Clockwork; ``jobsight`` has the others. Clockwork has times
in seconds, time limits in minutes, memory in MiB, and ids as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jobsight.model import SECOND, JobInfo, real_signal
from jobsight.scheduler.fields import MIB, gpus_of
from jobsight.scheduler.hostlist import compress_hosts
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.base import SinkJob
from jobsight.util.outer import format_rfc3339, to_seconds

_NAMES = {"cpu": "num_cpus", "node": "num_nodes", "billing": "billing"}


def job_document(job: SinkJob) -> dict[str, Any]:
    """A run or a pending job."""
    record, info = job.record, job.record.info
    return {
        "slurm": {
            "job_id": str(info.job_id),
            "array_job_id": str(info.array_job_id or 0),
            "array_task_id": None if info.array_task_id is None else str(info.array_task_id),
            "name": info.name,
            "username": info.user,
            "uid": info.uid,
            "account": info.account,
            "cluster_name": info.cluster,
            "partition": info.partition,
            "nodes": compress_hosts(info.nodes) if info.nodes else "None assigned",
            "working_directory": record.working_directory,
            "job_state": info.state,
            "exit_code": _exit(info),
            "time_limit": None if info.time_limit is None else info.time_limit // (60 * SECOND),
            "submit_time": _seconds(info.submit),
            "start_time": _seconds(info.start),
            "end_time": _seconds(info.end),
            "tres_allocated": _tres(info.tres or {}),
            "tres_requested": _tres(record.tres_requested),
            "reservation": record.reservation,
            "comment": record.comment,
        },
        "cw": {"mila_email_username": None},
        "jobsight": {
            "pending": info.start is None,
            "qos": info.qos,
            "gpus": info.gpus,
            "sluid": info.sluid,
            "restart_count": info.restart_count,
            "reason": record.reason,
            "flags": list(record.flags),
            "expected_start": _rfc3339(record.expected_start),
            "slurm_cpu_seconds": _cpu_seconds(record.cpu_time),
            "cpu_seconds": _cpu_seconds(job.figures.cpu_time),
            "memory_used_peak_bytes": job.figures.memory_used_peak,
            "memory_kernel_peak_bytes": job.figures.memory_peak,
            **job.figures.gpu_fields(),
            "findings": job.findings,
        },
    }


def node_document(node: NodeInfo) -> dict[str, Any]:
    """A node."""
    return {
        "slurm": {
            "name": node.name,
            "cluster_name": node.cluster,
            "arch": node.architecture,
            "addr": node.address,
            "comment": node.comment,
            "cores": node.cores,
            "cpus": node.cpus,
            "last_busy": _seconds(node.last_busy),
            "features": ",".join(node.features) or None,
            "gres": _counted(node.gres),
            "gres_used": _counted(node.gres_used),
            "state": node.state.lower() if node.state else None,
            "state_flags": list(node.state_flags),
            "memory": None if node.memory is None else node.memory // MIB,
            "reason": node.reason,
            "reason_changed_at": _seconds(node.reason_time),
            "tres": _counted(node.tres, "="),
            "tres_used": _counted(node.tres_used, "="),
        },
        "cw": {"gpu": _gpu(node)},
        "jobsight": {
            # All types; Clockwork's field holds one.
            "gpus": {name: count for name, count in node.gres.items() if name.startswith("gpu")},
            "partitions": list(node.partitions),
            "cpus_allocated": node.cpus_allocated,
            "reservation": node.reservation,
            "version": node.version,
        },
    }


def _exit(info: JobInfo) -> str | None:
    number = real_signal(info.exit_signal)
    if number is not None:
        return f"SIGNALED:{number if info.exit_code is None else info.exit_code}"
    if info.exit_code is None:
        return None
    return f"{'ERROR' if info.exit_code else 'SUCCESS'}:{info.exit_code}"


def _tres(tres: Mapping[str, int]) -> dict[str, int]:
    found = {_NAMES[name]: count for name, count in tres.items() if name in _NAMES}
    if "mem" in tres:
        found["mem"] = tres["mem"] // MIB
    gpus = sum(gpus_of(tres).values())
    if gpus:
        found["num_gpus"] = gpus
    others = [count for name, count in tres.items() if re.match(r"gres/(?!gpu\b)", name)]
    if others:
        found["gres"] = sum(others)
    return found


def _gpu(node: NodeInfo) -> dict[str, Any]:
    """Clockwork's short form: the first type of GPU that the node has."""
    for name, count in node.gres.items():
        kind, _, model = name.partition(":")
        if kind == "gpu":
            return {"name": model or "gpu", "number": count, "cw_name": _harmonised(model, node)}
    return {}


def _harmonised(model: str, node: NodeInfo) -> str:
    larger = {"v100": "32gb", "p100": "16gb"}.get(model)
    return f"{model}l" if larger in node.features else model or "gpu"


def _counted(amounts: Mapping[str, int], sign: str = ":") -> str | None:
    return ",".join(f"{name}{sign}{count}" for name, count in amounts.items()) or None


def _seconds(time: int | None) -> int | None:
    return None if time is None else time // SECOND


def _cpu_seconds(duration: int | None) -> float | None:
    return None if duration is None else to_seconds(duration)


def _rfc3339(time: int | None) -> str | None:
    return None if time is None else format_rfc3339(time)
