"""MongoDB: the collections ``jobs`` and ``nodes``, shaped as Clockwork's, with our figures beside.

A document is replaced whole, by an id that says what it is, and only where it differs from the
one that is there: its digest tells.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from pymongo import ASCENDING, DeleteMany, MongoClient, ReplaceOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError

from jobsight.errors import ConfigError
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.base import SinkError, SinkJob
from jobsight.scheduler.sinks.clockwork import job_document, node_document

_JOBS_INDICES = (
    ("job_id_cluster_name_and_start", ("slurm.job_id", "slurm.cluster_name", "slurm.start_time")),
    ("username_and_submit_time", ("slurm.username", "slurm.submit_time")),
    ("cluster_name_and_end_time", ("slurm.cluster_name", "slurm.end_time")),
)
_NODES_INDEX = ("name_and_cluster_name", ("slurm.name", "slurm.cluster_name"))
#: Documents in one request.
_AT_ONCE = 1000
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class MongoSink:
    """Writes what changed; the same key never gives two documents."""

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
        except (PyMongoError, ValueError) as error:
            raise ConfigError(
                f"sinks.mongodb.url: {error}; right would be mongodb://user:password@host:27017"
            ) from None
        self._clock = clock
        self._jobs = self._client[database]["jobs"]
        self._nodes = self._client[database]["nodes"]
        self._prepared = False

    def prepare(self) -> None:
        if self._prepared:
            return
        with _explained():
            for place, (name, fields) in enumerate(_JOBS_INDICES):
                keys = [(field, ASCENDING) for field in fields]
                self._jobs.create_index(keys, name=name, unique=place == 0)
            keys = [(field, ASCENDING) for field in _NODES_INDEX[1]]
            self._nodes.create_index(keys, name=_NODES_INDEX[0], unique=True)
        self._prepared = True

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        documents = {job.key: job_document(job) for job in jobs}
        with _explained():
            known = _digests(self._jobs, {"_id": {"$in": list(documents)}})
            return self._write(self._jobs, documents, known)

    def waiting(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
        documents = {job.key: job_document(job) for job in jobs}
        there = {"slurm.cluster_name": cluster, "slurm.start_time": None, "jobsight.waiting": True}
        return self._replace(self._jobs, documents, there)

    def nodes(self, cluster: str, nodes: Sequence[NodeInfo]) -> int:
        documents = {f"{cluster}:{node.name}": node_document(node) for node in nodes}
        return self._replace(self._nodes, documents, {"slurm.cluster_name": cluster})

    def close(self) -> None:
        self._client.close()

    def _replace(
        self,
        collection: Collection[dict[str, Any]],
        documents: Mapping[str, dict[str, Any]],
        there: Mapping[str, Any],
    ) -> int:
        """Make the documents all that a filter finds."""
        with _explained():
            known = _digests(collection, there)
            gone = sorted(known.keys() - documents.keys())
            for group in _groups(gone):
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
        for group in _groups(changes):
            collection.bulk_write(group, ordered=False)
        return len(changes)


def _digests(collection: Collection[dict[str, Any]], there: Mapping[str, Any]) -> dict[str, str]:
    found = collection.find(there, {"jobsight.digest": 1}, batch_size=10_000)
    return {document["_id"]: document.get("jobsight", {}).get("digest", "") for document in found}


def _groups(entries: Sequence[Any]) -> Iterable[Any]:
    return (entries[place : place + _AT_ONCE] for place in range(0, len(entries), _AT_ONCE))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BulkWriteError as error:
        refused = error.details.get("writeErrors") or [{}]
        said = str(refused[0].get("errmsg", "no word why"))[:200]
        raise SinkError(f"MongoDB refused {len(refused)} documents; first: {said}") from None
    except PyMongoError as error:
        said = " ".join(str(error).split())
        raise SinkError(f"MongoDB does not take the jobs: {said[:200]}") from None
