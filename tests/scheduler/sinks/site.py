"""A store with jobs of a scheduler in it, for sinks to be fed from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobsight.model import SECOND, JobInfo
from jobsight.scheduler.records import JobRecord, NodeInfo
from jobsight.store.snapshot import Snapshot
from jobsight.store.store import Store

START = 1_790_000_000


def record(job_id: int, start: int | None = START, **more: Any) -> JobRecord:
    """A job that ended well after ten minutes, or as the keywords say."""
    ran = start is not None
    values: dict[str, Any] = {
        "source": "sacct",
        "name": f"job {job_id}",
        "user": f"user{job_id % 7}",
        "account": "physics",
        "partition": "main",
        "qos": "normal",
        "cpus": 4,
        "memory": 8 * 2**30,
        "gpus": 2,
        "tres": {"cpu": 4, "mem": 8 * 2**30, "node": 2, "gres/gpu:a100": 2, "gres/shard": 3},
        "nodes": ("n1", "n2") if ran else None,
        "time_limit": 3600 * SECOND,
        "submit": (START - 60) * SECOND,
        "start": start * SECOND if start is not None else None,
        "end": (start + 600) * SECOND if start is not None else None,
        "state": "COMPLETED" if ran else "PENDING",
        "exit_code": 0 if ran else None,
    }
    details = {name: more.pop(name) for name in ("array_tasks", "comment") if name in more}
    return JobRecord(
        info=JobInfo(cluster="c1", job_id=job_id, **values | more), cpu_time=9 * SECOND, **details
    )


def book(store: Store, records: Iterable[JobRecord]) -> None:
    """As a scraper does."""
    known = list(records)
    store.record_jobs([record.info for record in known], [record.details for record in known])


def keep(
    store: Store, *, nodes: Iterable[NodeInfo] = (), waiting: Iterable[JobRecord] = ()
) -> None:
    snapshot = Snapshot(store.database, "c1")
    snapshot.replace("node", [(node.name, node) for node in nodes])
    snapshot.replace("pending", [(str(record.info.job_id), record) for record in waiting])


def node(name: str, **more: Any) -> NodeInfo:
    values: dict[str, Any] = {"state": "MIXED", "cpus": 8, "cpus_allocated": 3}
    values |= {"gres": {"gpu:a100": 4}, "gres_used": {"gpu:a100": 1}, "memory": 2**36}
    return NodeInfo(cluster="c1", name=name, **values | more)
