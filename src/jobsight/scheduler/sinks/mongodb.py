"""Sink ``mongodb``: the collections ``jobs`` and ``nodes`` of Clockwork, with jobsight's figures.

A document is replaced as a whole, under an id that never changes, and only if its digest differs
from the stored one. ``slurm`` and ``cw`` have the fields of Clockwork; ``jobsight`` has the others.
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
from jobsight.util.batching import batched
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
