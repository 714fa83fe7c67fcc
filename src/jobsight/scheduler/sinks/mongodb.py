"""Sink ``mongodb``: the collections ``jobs`` and ``nodes`` of Clockwork, with jobsight's figures.

A document is replaced as a whole, under an id that never changes, and only if its digest differs
from the stored one. ``slurm`` and ``cw`` have the fields of Clockwork; ``jobsight`` has the others.

Clockwork has times in seconds, time limits in minutes, memory in MiB, and ids as text.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from pymongo import ASCENDING, DeleteMany, MongoClient, ReplaceOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from jobsight.errors import ConfigError
from jobsight.model import SECOND, JobInfo, real_signal
from jobsight.scheduler.fields import MIB, gpus_of
from jobsight.scheduler.hostlist import compress_hosts
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.base import SinkError, SinkJob
from jobsight.util.batching import batched
from jobsight.util.outer import format_rfc3339, to_seconds
from jobsight.util.urls import without_credentials

_JOBS_INDICES = (
    ("job_id_cluster_name_and_start", ("slurm.job_id", "slurm.cluster_name", "slurm.start_time")),
    ("username_and_submit_time", ("slurm.username", "slurm.submit_time")),
    ("cluster_name_and_end_time", ("slurm.cluster_name", "slurm.end_time")),
)
_NODES_INDEX = ("name_and_cluster_name", ("slurm.name", "slurm.cluster_name"))
#: Fields of Clockwork's users that hold the name of a user on a cluster.
_USER_NAMES = ("mila_cluster_username", "cc_account_username")
#: Documents in one request.
_BATCH_SIZE = 1000
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class MongoSink:
    """Writes changed documents; a key never has two documents."""

    name = "mongodb"

    def __init__(
        self,
        url: str,
        database: str,
        *,
        timeout: float = 20.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        milliseconds = int(timeout * 1000)
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(
                url,
                serverSelectionTimeoutMS=milliseconds,
                connectTimeoutMS=milliseconds,
                socketTimeoutMS=milliseconds,
                appname="jobsight",
            )
        except (PyMongoError, ValueError):
            # The library's message may contain a part of the URL, such as the password.
            raise ConfigError(
                f"sinks.mongodb.url: {without_credentials(url)!r} is not a URL of MongoDB; "
                "expected mongodb://user:password@host:27017 with a percent-encoded password"
            ) from None
        self._clock = clock
        self._jobs = self._client[database]["jobs"]
        self._nodes = self._client[database]["nodes"]
        self._users = self._client[database]["users"]
        self._prepared = False

    def prepare(self) -> None:
        if self._prepared:
            return
        with _explained():
            for index, (name, fields) in enumerate(_JOBS_INDICES):
                keys = [(field, ASCENDING) for field in fields]
                self._jobs.create_index(keys, name=name, unique=index == 0)
            keys = [(field, ASCENDING) for field in _NODES_INDEX[1]]
            self._nodes.create_index(keys, name=_NODES_INDEX[0], unique=True)
        self._prepared = True

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        documents = {job.key: job_document(job) for job in jobs}
        with _explained():
            self._add_emails(documents.values())
            known = _digests(self._jobs, {"_id": {"$in": list(documents)}})
            return self._write(self._jobs, documents, known)

    def pending(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
        documents = {job.key: job_document(job) for job in jobs}
        with _explained():
            self._add_emails(documents.values())
        there = {"slurm.cluster_name": cluster, "slurm.start_time": None, "jobsight.pending": True}
        return self._replace(self._jobs, documents, there)

    def nodes(self, cluster: str, nodes: Sequence[NodeInfo]) -> int:
        documents = {f"{cluster}:{node.name}": node_document(node) for node in nodes}
        return self._replace(self._nodes, documents, {"slurm.cluster_name": cluster})

    def close(self) -> None:
        self._client.close()

    def _add_emails(self, documents: Iterable[dict[str, Any]]) -> None:
        """Add the address by which Clockwork finds the jobs of a user, from its own users."""
        documents = list(documents)
        names = sorted({document["slurm"]["username"] for document in documents} - {None})
        emails: dict[str, Any] = {}
        for group in batched(names, _BATCH_SIZE):
            for field in _USER_NAMES:
                for user in self._users.find({field: {"$in": group}}):
                    emails.setdefault(user[field], user.get("mila_email_username"))
        for document in documents:
            document["cw"]["mila_email_username"] = emails.get(document["slurm"]["username"])

    def _replace(
        self,
        collection: Collection[dict[str, Any]],
        documents: Mapping[str, dict[str, Any]],
        there: Mapping[str, Any],
    ) -> int:
        """Replace all documents that match a filter by these."""
        with _explained():
            known = _digests(collection, there)
            gone = sorted(known.keys() - documents.keys())
            for group in batched(gone, _BATCH_SIZE):
                collection.bulk_write([DeleteMany({"_id": {"$in": group}})])
            return len(gone) + self._write(collection, documents, known)

    def _write(
        self,
        collection: Collection[dict[str, Any]],
        documents: Mapping[str, dict[str, Any]],
        known: Mapping[str, str],
    ) -> int:
        now = self._clock()
        changes = []
        for key, document in documents.items():
            digest = hashlib.blake2b(_encode(document), digest_size=8).hexdigest()
            if known.get(key) == digest:
                continue
            document["cw"] |= {"last_slurm_update": now, "last_slurm_update_by_sacct": now}
            document["jobsight"]["digest"] = digest
            changes.append(ReplaceOne({"_id": key}, document, upsert=True))
        for group in batched(changes, _BATCH_SIZE):
            collection.bulk_write(group, ordered=False)
        return len(changes)


def _digests(collection: Collection[dict[str, Any]], there: Mapping[str, Any]) -> dict[str, str]:
    found = collection.find(there, {"jobsight.digest": 1}, batch_size=10_000)
    return {document["_id"]: document.get("jobsight", {}).get("digest", "") for document in found}


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BulkWriteError as error:
        refused = error.details.get("writeErrors") or [{}]
        text = str(refused[0].get("errmsg", "without a message"))[:200]
        raise SinkError(f"MongoDB refused {len(refused)} documents; first: {text}") from None
    except PyMongoError as error:
        text = " ".join(str(error).split())
        raise SinkError(f"MongoDB does not take the jobs: {text[:200]}") from None


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
