"""Sink ``opensearch``: monthly indices of runs, one index of pending jobs and one of nodes.

It uses NDJSON over HTTP, which OpenSearch and Elasticsearch both accept. Document ids contain the
cluster, and only documents whose digest differs from the stored one are written. The index
templates below define the type of each field.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from jobsight.errors import ConfigError
from jobsight.model import SECOND, real_signal
from jobsight.scheduler.fields import gpus_of
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.base import SinkError, SinkJob
from jobsight.transport.client import Address, HttpClient, HttpError, tls_context
from jobsight.util.batching import batched
from jobsight.util.decoding import decode_json_as
from jobsight.util.log_once import LogOnce
from jobsight.util.outer import format_rfc3339, to_seconds

logger = logging.getLogger(__name__)

#: Documents in one request; some services refuse requests of more than 10 MB.
_BATCH_SIZE = 500
#: Statuses of an item that may succeed later.
_TEMPORARY = frozenset({429, 502, 503, 504})


class OpenSearchSink:
    """Writes changed documents by ``_bulk``; documents that are refused for good are logged."""

    name = "opensearch"

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "jobsight",
        user: str | None = None,
        password_file: str | None = None,
        ca_file: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        address = Address.parse("sinks.opensearch.url", url, expected="https://host:9200")
        self._prefix = prefix
        self._prepared = False
        #: Documents that the service refuses for good, with its reason.
        self.refused: dict[str, str] = {}
        self._log = LogOnce(logger)
        self._client = HttpClient(
            address,
            timeout=timeout,
            tls=tls_context(ca_file),
            credentials=_credentials(user, password_file),
            use_environment=True,
        )

    def prepare(self) -> None:
        if self._prepared:
            return
        for name, template in TEMPLATES.items():
            body = template | {"index_patterns": [f"{self._prefix}-{name}*"]}
            self._send("PUT", f"/_index_template/{self._prefix}-{name}", body)
        self._prepared = True

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        documents = {}
        for job in jobs:
            index = f"{self._prefix}-jobs-{month_of(job)}"
            documents[index, job.key] = job_source(job)
        return self._write(documents)

    def pending(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
        index = f"{self._prefix}-waiting"
        return self._replace(index, cluster, {(index, job.key): job_source(job) for job in jobs})

    def nodes(self, cluster: str, nodes: Sequence[NodeInfo]) -> int:
        index = f"{self._prefix}-nodes"
        documents = {(index, f"{cluster}:{node.name}"): node_source(node) for node in nodes}
        return self._replace(index, cluster, documents)

    def close(self) -> None:
        self._client.close()

    def _replace(
        self, index: str, cluster: str, documents: Mapping[tuple[str, str], dict[str, Any]]
    ) -> int:
        known = set(self._keys(index, cluster))
        gone = [(index, key) for key in sorted(known - {key for _, key in documents})]
        for group in batched(gone, _BATCH_SIZE):
            self._bulk([{"delete": {"_index": index, "_id": key}} for index, key in group], {404})
        return len(gone) + self._write(documents)

    def _keys(self, index: str, cluster: str) -> Iterator[str]:
        """The ids of all documents of a cluster."""
        after: list[str] | None = None
        while True:
            query: dict[str, Any] = {
                "size": 1000,
                "_source": False,
                "query": {"term": {"cluster": cluster}},
                "sort": [{"key": "asc"}],
            }
            if after is not None:
                query["search_after"] = after
            reply = self._send("POST", f"/{index}/_search?ignore_unavailable=true", query)
            found = reply["hits"]["hits"]
            yield from (hit["_id"] for hit in found)
            if len(found) < 1000:
                return
            after = found[-1]["sort"]

    def _write(self, documents: Mapping[tuple[str, str], dict[str, Any]]) -> int:
        written = 0
        for group in batched(documents.items(), _BATCH_SIZE):
            known = self._digests([address for address, _ in group])
            lines: list[Any] = []
            for (index, key), source in group:
                source["digest"] = hashlib.blake2b(
                    json.dumps(source, sort_keys=True).encode(), digest_size=8
                ).hexdigest()
                if known.get((index, key)) != source["digest"]:
                    lines += [{"index": {"_index": index, "_id": key}}, source | {"key": key}]
            written += self._bulk(lines, set())
        return written

    def _digests(self, addresses: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        docs = [{"_index": index, "_id": key, "_source": ["digest"]} for index, key in addresses]
        reply = self._send("POST", "/_mget", {"docs": docs})
        return {
            (found["_index"], found["_id"]): found.get("_source", {}).get("digest", "")
            for found in reply["docs"]
            if found.get("found")
        }

    def _bulk(self, lines: Sequence[Any], expected: set[int]) -> int:
        """Send actions and documents; returns how many were accepted."""
        if not lines:
            return 0
        body = b"\n".join(map(msgspec.json.encode, lines)) + b"\n"
        reply = self._send("POST", "/_bulk", body)
        accepted, temporary = 0, []
        for item in reply["items"]:
            ((_, result),) = item.items()
            if result["status"] < 300 or result["status"] in expected:
                accepted += 1
            elif result["status"] in _TEMPORARY:
                temporary.append(result)
            elif len(self.refused) < 1000:
                reason = _reason(result.get("error"))
                self.refused[result["_id"]] = reason
                self._log.report(reason, f"OpenSearch refuses document {result['_id']}: {reason}")
        if temporary:
            reason = _reason(temporary[0].get("error"))
            raise SinkError(f"OpenSearch put off {len(temporary)} documents; first: {reason}")
        return accepted

    def _send(self, method: str, path: str, body: Any) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        try:
            reply = self._client.request(method, path, content=data, headers={"Content-Type": kind})
            document: Any = decode_json_as(object, reply.body) if reply.body else {}
        except (HttpError, msgspec.DecodeError) as error:
            raise SinkError(f"OpenSearch does not answer: {error}") from None
        if reply.status in (401, 403):
            raise SinkError(
                f"OpenSearch refuses {path} with {reply.status}: the user or the password "
                "(sinks.opensearch.user, sinks.opensearch.password_file) is not accepted"
            )
        if reply.status >= 400:
            reason = _reason(document.get("error") if isinstance(document, dict) else None)
            raise SinkError(f"OpenSearch refuses {path} with {reply.status}: {reason}")
        return document


def _credentials(user: str | None, password_file: str | None) -> tuple[str, str] | None:
    if user is None:
        return None
    if password_file is None:
        raise ConfigError("sinks.opensearch.user needs sinks.opensearch.password_file")
    try:
        return user, Path(password_file).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"sinks.opensearch.password_file: {password_file} cannot be read"
        ) from None


def _reason(error: Any) -> str:
    if isinstance(error, Mapping):
        cause = error.get("caused_by")
        more = f" ({cause['reason']})" if isinstance(cause, Mapping) and "reason" in cause else ""
        return f"{error.get('reason', error)}{more}"[:300]
    return str(error or "without a message")[:300]


_WORD = {"type": "keyword", "ignore_above": 1024}
_COUNT = {"type": "long"}
_TIME = {"type": "date", "format": "strict_date_optional_time_nanos"}
_REAL = {"type": "double"}
_TEXT = {"type": "text", "fields": {"word": _WORD}}

_COMMON = {"key": _WORD, "digest": _WORD, "cluster": _WORD, "state": _WORD, "reason": _WORD}
_COLOUR = {"properties": {"job_state_color": _COUNT}}

_JOB_FIELDS: dict[str, Any] = {
    **_COMMON,
    **dict.fromkeys(("job_id", "array_job_id", "array_task_id", "uid"), _COUNT),
    **dict.fromkeys(("het_job_id", "het_offset", "restart_count"), _COUNT),
    **dict.fromkeys(("cpus", "gpus", "memory_bytes", "node_count", "priority"), _COUNT),
    **dict.fromkeys(("exit_code", "exit_signal"), _COUNT),
    **dict.fromkeys(("memory_used_peak_bytes", "memory_kernel_peak_bytes"), _COUNT),
    **dict.fromkeys(("user", "account", "partition", "qos", "reservation", "sluid"), _WORD),
    **dict.fromkeys(("nodes", "gpu_types", "flags", "state_flags"), _WORD),
    **dict.fromkeys(("name", "comment", "working_directory", "submit_line"), _TEXT),
    **dict.fromkeys(("submit", "start", "end", "eligible"), _TIME),
    **dict.fromkeys(("time_limit_seconds", "elapsed_seconds", "pending_seconds"), _REAL),
    **dict.fromkeys(("cpu_seconds", "slurm_cpu_seconds", "core_seconds", "cpu_share"), _REAL),
    **dict.fromkeys(("gpus_held", "gpus_never_used", "gpu_memory_peak_bytes"), _COUNT),
    **dict.fromkeys(("gpu_held_seconds", "gpu_measured_seconds", "gpu_profiled_seconds"), _REAL),
    **dict.fromkeys(("gpu_used_seconds", "gpu_energy_joules"), _REAL),
    "findings": {
        "properties": {
            **dict.fromkeys(("kind", "severity", "audience", "state", "change"), _WORD),
            **dict.fromkeys(("title", "text"), _TEXT),
            "cost": {
                "properties": dict.fromkeys(
                    ("core_hours", "gpu_hours", "memory_gb_hours", "energy_kwh"), _REAL
                )
            },
        }
    },
    "grafana_helpers": _COLOUR,
}
_NODE_FIELDS: dict[str, Any] = {
    **_COMMON,
    **dict.fromkeys(("name", "partitions", "features", "state_flags", "gpu_types"), _WORD),
    **dict.fromkeys(("reservation", "architecture", "system", "version"), _WORD),
    **dict.fromkeys(("cpus", "cpus_allocated", "cpus_idle", "gpus", "gpus_used"), _COUNT),
    **dict.fromkeys(("memory_bytes", "memory_allocated_bytes", "memory_free_bytes"), _COUNT),
    **dict.fromkeys(("booted", "last_busy", "reason_time"), _TIME),
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
        "exit_signal": real_signal(info.exit_signal),
        "nodes": list(info.nodes or ()),
        "node_count": record.node_count,
        "cpus": info.cpus,
        "gpus": info.gpus,
        "gpu_types": sorted(gpus_of(info.tres or {})),
        "memory_bytes": info.memory,
        "priority": record.priority,
        "time_limit_seconds": _seconds(info.time_limit),
        "submit": _rfc3339(info.submit),
        "eligible": _rfc3339(record.eligible),
        "start": _rfc3339(info.start),
        "end": _rfc3339(info.end),
        "elapsed_seconds": _seconds(elapsed),
        "pending_seconds": _seconds(_pending(job)),
        "core_seconds": _seconds(core_time),
        "slurm_cpu_seconds": _seconds(record.cpu_time),
        "cpu_seconds": _seconds(figures.cpu_time),
        "cpu_share": share,
        "memory_used_peak_bytes": figures.memory_used_peak,
        "memory_kernel_peak_bytes": figures.memory_peak,
        **figures.gpu_fields(),
        "findings": job.findings or None,
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
        "reason_time": _rfc3339(node.reason_time),
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
        "memory_bytes": node.memory,
        "memory_allocated_bytes": node.memory_allocated,
        "memory_free_bytes": node.memory_free,
        "load": node.load,
        "booted": _rfc3339(node.booted),
        "last_busy": _rfc3339(node.last_busy),
        "grafana_helpers": {"job_state_color": _colour(node.state)},
    }
    return {name: value for name, value in found.items() if value is not None}


def _colour(state: str | None) -> int:
    return 0 if state in _BAD else 5 if state in _MIDDLING or state is None else 10


def _pending(job: SinkJob) -> int | None:
    """How long the job was eligible before it started."""
    info = job.record.info
    begin = job.record.eligible or info.submit
    return None if info.start is None or begin is None else max(0, info.start - begin)


def _seconds(duration: int | None) -> float | None:
    return None if duration is None else to_seconds(duration)


def _rfc3339(time: int | None) -> str | None:
    return None if time is None else format_rfc3339(time)
