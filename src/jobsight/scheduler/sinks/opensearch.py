"""OpenSearch and Elasticsearch: monthly indices of runs, one of waiting jobs, one of nodes.

Plain HTTP with NDJSON, which both speak; ids hold the cluster. Only documents whose digest
differs from the stored one are written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec

from jobsight.errors import ConfigError
from jobsight.scheduler.records import NodeInfo
from jobsight.scheduler.sinks.base import SinkError, SinkJob
from jobsight.scheduler.sinks.indices import TEMPLATES, job_source, month_of, node_source

#: Documents in one request; some services refuse more than some ten megabytes.
_AT_ONCE = 500
#: Statuses of an item that may be another one the next time.
_PASSING = frozenset({429, 502, 503, 504})


class OpenSearchSink:
    """Writes what changed, by ``_bulk``; what is refused for good is counted and said."""

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
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"sinks.opensearch.url: {url!r} is no address; right would be https://host:9200"
            )
        self._prefix = prefix
        self._prepared = False
        #: Documents that the service will never take, with its words.
        self.refused: dict[str, str] = {}
        self._client = httpx.Client(
            base_url=url,
            auth=_credentials(user, password_file),
            verify=ca_file if ca_file else True,
            timeout=timeout,
        )

    def prepare(self) -> None:
        if self._prepared:
            return
        for name, template in TEMPLATES.items():
            body = template | {"index_patterns": [f"{self._prefix}-{name}*"]}
            self._ask("PUT", f"/_index_template/{self._prefix}-{name}", body)
        self._prepared = True

    def jobs(self, jobs: Sequence[SinkJob]) -> int:
        documents = {}
        for job in jobs:
            index = f"{self._prefix}-jobs-{month_of(job)}"
            documents[index, job.key] = job_source(job)
        return self._write(documents)

    def waiting(self, cluster: str, jobs: Sequence[SinkJob]) -> int:
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
        for group in _groups(gone):
            self._bulk([{"delete": {"_index": index, "_id": key}} for index, key in group], {404})
        return len(gone) + self._write(documents)

    def _keys(self, index: str, cluster: str) -> Iterator[str]:
        """The ids of a cluster's documents, page by page."""
        after: list[str] | None = None
        while True:
            question: dict[str, Any] = {
                "size": 1000,
                "_source": False,
                "query": {"term": {"cluster": cluster}},
                "sort": [{"key": "asc"}],
            }
            if after is not None:
                question["search_after"] = after
            reply = self._ask("POST", f"/{index}/_search?ignore_unavailable=true", question)
            found = reply["hits"]["hits"]
            yield from (hit["_id"] for hit in found)
            if len(found) < 1000:
                return
            after = found[-1]["sort"]

    def _write(self, documents: Mapping[tuple[str, str], dict[str, Any]]) -> int:
        written = 0
        for group in _groups(list(documents.items())):
            known = self._digests([place for place, _ in group])
            lines: list[Any] = []
            for (index, key), source in group:
                source["digest"] = hashlib.blake2b(
                    json.dumps(source, sort_keys=True).encode(), digest_size=8
                ).hexdigest()
                if known.get((index, key)) != source["digest"]:
                    lines += [{"index": {"_index": index, "_id": key}}, source | {"key": key}]
            written += self._bulk(lines, set())
        return written

    def _digests(self, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        docs = [{"_index": index, "_id": key, "_source": ["digest"]} for index, key in places]
        reply = self._ask("POST", "/_mget", {"docs": docs})
        return {
            (found["_index"], found["_id"]): found.get("_source", {}).get("digest", "")
            for found in reply["docs"]
            if found.get("found")
        }

    def _bulk(self, lines: Sequence[Any], expected: set[int]) -> int:
        """Send actions and documents; how many were taken. What passes is tried again later."""
        if not lines:
            return 0
        body = b"\n".join(map(msgspec.json.encode, lines)) + b"\n"
        reply = self._ask("POST", "/_bulk", body)
        taken, passing = 0, []
        for item in reply["items"]:
            ((_, result),) = item.items()
            if result["status"] < 300 or result["status"] in expected:
                taken += 1
            elif result["status"] in _PASSING:
                passing.append(result)
            elif len(self.refused) < 1000:
                self.refused[result["_id"]] = _reason(result.get("error"))
        if passing:
            said = _reason(passing[0].get("error"))
            raise SinkError(f"OpenSearch put off {len(passing)} documents; first: {said}")
        return taken

    def _ask(self, method: str, path: str, body: Any) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        try:
            reply = self._client.request(method, path, content=data, headers={"Content-Type": kind})
            document = reply.json() if reply.content else {}
        except (httpx.HTTPError, ValueError) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise SinkError(f"OpenSearch does not answer: {said[:200]}") from None
        if reply.status_code in (401, 403):
            raise SinkError(
                f"OpenSearch refuses {path} with {reply.status_code}: the user or the password "
                "(sinks.opensearch.user, sinks.opensearch.password_file) is not accepted"
            )
        if reply.status_code >= 400:
            said = _reason(document.get("error") if isinstance(document, dict) else None)
            raise SinkError(f"OpenSearch refuses {path} with {reply.status_code}: {said}")
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
    return str(error or "no word why")[:300]


def _groups(entries: Sequence[Any]) -> Iterable[Any]:
    return (entries[place : place + _AT_ONCE] for place in range(0, len(entries), _AT_ONCE))
