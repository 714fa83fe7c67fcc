"""Source ``rest``: slurmrestd over TCP, TLS or a Unix socket, from v0.0.36 on.

The newest version that slurmrestd describes in its OpenAPI document is used. Lists of jobs are
read while they arrive; all other replies are read completely, up to a maximum size.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jobsight.model import SECOND
from jobsight.scheduler.adapters.json import (
    adapt_jobs,
    adapt_nodes,
    adapt_partitions,
    cluster_of,
    decode_json,
    release_of,
    stream_jobs,
    text_at,
)
from jobsight.scheduler.adapters.policy import (
    Policy,
    read_associations,
    read_coordinators,
    read_qos,
    read_reservations,
)
from jobsight.scheduler.records import (
    AdaptError,
    Jobs,
    Nodes,
    Partitions,
    SourceError,
    join_jobs,
    single_cluster,
)
from jobsight.scheduler.sources.json import check_release
from jobsight.scheduler.sources.replies import Replies
from jobsight.transport.client import Address, HttpClient, HttpError, StreamedReply

_VERSION = re.compile(r"/(slurm|slurmdb)/v0\.0\.(\d{1,4})/jobs/?", re.ASCII)
#: Tried in turn if slurmrestd does not describe itself.
_KNOWN_VERSIONS: Final = range(48, 35, -1)
#: In bytes; 100,000 nodes or associations fit.
_MAX_REPLY_SIZE: Final = 512 * 2**20


#: What Slurm writes for a token that is missing, wrong or expired; with status 500 in some releases
_AUTHENTICATION: Final = re.compile(rb"authenticat|unauthorized|ESLURM_AUTH", re.IGNORECASE)


class UnavailableError(SourceError):
    """slurmrestd does not answer or refuses the credentials, so no other path is tried."""


class RestSource:
    """The HTTP interface of Slurm."""

    name = "rest"
    whole = False

    def __init__(
        self,
        cluster: str,
        url: str,
        *,
        user: str | None = None,
        token_file: str | None = None,
        timeout: float = 60.0,
        replies: Replies | None = None,
    ) -> None:
        self._cluster = cluster
        address = Address.parse(
            "scheduler.rest.url",
            url,
            expected="unix:/run/slurmrestd.socket or http://host:6820",
            unix=True,
        )
        self._client = HttpClient(address, timeout=timeout, keep_alive=False)
        self._user = user
        self._token_file = token_file
        self._replies = replies
        self._versions: dict[str, int] | None = None
        self._duplicates = False

    def probe(self) -> str:
        versions = self._discover()
        release = release_of(self._query("slurm", "ping")) or "of an unnamed release"
        return (
            f"slurmrestd answers, Slurm {release}, v0.0.{versions['slurm']} and "
            f"dbv0.0.{versions['slurmdb']}"
        )

    def check_exit_codes(self) -> None:
        """Raise if this release has exit code 0 for every failed job (21.08 and 22.05)."""
        check_release(release_of(self._query("slurm", "ping")) or "", "slurmrestd")

    def cluster_name(self) -> str | None:
        """As every reply has it; before 23.02 the only cluster of the accounting, or that of the
        controller's jobs."""
        name = cluster_of(self._query("slurm", "ping"))
        if name:
            return name
        with suppress(AdaptError, SourceError):
            document = self._query("slurmdb", "clusters")
            clusters = document.get("clusters") if isinstance(document, dict) else None
            if isinstance(clusters, list) and len(clusters) == 1:
                return text_at(clusters[0], "name") or None
        return single_cluster(adapt_jobs(self._query("slurm", "jobs")))

    def queue(self) -> Jobs:
        return self._jobs("slurm", ["jobs"])

    def accounting(self, since: int, until: int) -> Jobs:
        window = {
            "start_time": f"uts{since // SECOND}",
            "end_time": f"uts{-(-until // SECOND)}",
        }
        self._discover()
        if self._duplicates:
            # Without it, newer versions return only the last run of a requeued job.
            window["show_duplicates"] = "true"
        return self._jobs("slurmdb", ["jobs"], window)

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        """One request per job: the list of jobs has no filter for ids in older versions."""
        return self._jobs("slurmdb", [f"job/{int(job_id)}" for job_id in job_ids])

    def nodes(self) -> Nodes:
        return adapt_nodes(self._query("slurm", "nodes"), self._cluster)

    def partitions(self) -> Partitions:
        return adapt_partitions(self._query("slurm", "partitions"), self._cluster)

    def policy(self) -> Policy:
        policy = Policy()
        for part, key, read in (
            ("slurm", "reservations", read_reservations),
            ("slurmdb", "qos", read_qos),
            ("slurmdb", "associations", read_associations),
        ):
            setattr(policy, key, read(self._list(part, key), self._cluster, policy.problems))
        policy.coordinators = read_coordinators(
            self._list("slurmdb", "accounts"), policy.associations, policy.problems
        )
        return policy

    def _list(self, part: str, key: str) -> list[Any]:
        document = self._query(part, key)
        members = document if isinstance(document, dict) else {}
        # 22.05 and older write "QOS".
        entries = members.get(key, members.get(key.upper()))
        if not isinstance(entries, list):
            raise AdaptError(f"slurmrestd's reply about {key} has no list of them")
        return entries

    def _jobs(self, part: str, names: Sequence[str], query: dict[str, str] | None = None) -> Jobs:
        return join_jobs(self._job_reply(part, name, query or {}) for name in names)

    def _job_reply(self, part: str, name: str, query: dict[str, str]) -> Jobs:
        target = self._target(part, name, query)
        reply = self._open(target)
        if reply.status >= 400:
            return adapt_jobs(self._document(target, reply), self._cluster, "slurmrestd")
        chunks: Iterable[bytes] = self._chunks(reply)
        if self._replies is not None:
            chunks = self._replies.keep(f"{part}-jobs", chunks)
        return stream_jobs(chunks, f"slurmrestd {_path(target)}", self._cluster, "slurmrestd")

    def _chunks(self, reply: StreamedReply) -> Iterator[bytes]:
        with self._explained():
            yield from reply

    def _query(self, part: str, what: str) -> Any:
        return self._get(self._target(part, what, {}))

    def _target(self, part: str, what: str, query: dict[str, str]) -> str:
        target = f"/{part}/v0.0.{self._discover()[part]}/{what}"
        return f"{target}?{urlencode(query)}" if query else target

    def _get(self, target: str) -> Any:
        return self._document(target, self._open(target))

    def _open(self, target: str) -> StreamedReply:
        with self._explained():
            reply = self._client.stream("GET", target, headers=self._headers())
        if reply.status in (401, 403):
            reply.close()
            raise self._refused(target, str(reply.status))
        return reply

    def _refused(self, target: str, answer: str) -> UnavailableError:
        if self._token_file or os.environ.get("SLURM_JWT"):
            why = "the user or the token (scheduler.rest.user, scheduler.rest.token_file) is not"
            why += " accepted; it may have expired"
        else:
            why = "no token is set; expected scheduler.rest.token_file or SLURM_JWT"
        return UnavailableError(f"slurmrestd refuses {_path(target)} with {answer}: {why}")

    def _document(self, target: str, reply: StreamedReply) -> Any:
        with self._explained():
            body = reply.read(_MAX_REPLY_SIZE)
        if reply.status >= 400 and _AUTHENTICATION.search(body[:10_000]):
            raise self._refused(target, f"{reply.status}, authentication failed")
        try:
            document = decode_json(body, f"slurmrestd {_path(target)}")
        except AdaptError:
            if reply.status >= 400:
                text = " ".join(body[:200].decode("utf-8", "replace").split())
                raise SourceError(f"slurmrestd {_path(target)}: {reply.status}: {text}") from None
            raise
        errors = document.get("errors") if isinstance(document, dict) else None
        if reply.status >= 400 and not errors:
            raise SourceError(f"slurmrestd {_path(target)}: answered with status {reply.status}")
        return document

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except HttpError as error:
            raise UnavailableError(
                f"slurmrestd at {self._client.address.shown} does not answer: {error}"
            ) from None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        token = os.environ.get("SLURM_JWT", "")
        if self._token_file:
            try:
                # Read for each request: tokens are short-lived and renewed by another program.
                token = Path(self._token_file).read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError):
                raise SourceError(f"the token file {self._token_file} cannot be read") from None
            # The output of `scontrol token` is accepted unchanged.
            token = token.removeprefix("SLURM_JWT=")
        if token:
            if not token.isprintable():
                raise SourceError("the token for slurmrestd has more than one line")
            headers["X-SLURM-USER-TOKEN"] = token
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        return headers

    def _discover(self) -> dict[str, int]:
        """The newest version of both parts: as described by slurmrestd, or found by trying."""
        if self._versions is None:
            versions = self._described_versions()
            if set(versions) != {"slurm", "slurmdb"}:
                versions = self._tried_versions()
            self._versions = versions
        return self._versions

    def _described_versions(self) -> dict[str, int]:
        for target in ("/openapi/v3", "/openapi"):
            try:
                document = self._get(target)
            except UnavailableError:
                raise
            except (AdaptError, SourceError):
                continue
            paths = document.get("paths") if isinstance(document, dict) else None
            versions: dict[str, int] = {}
            for path in paths or ():
                match = _VERSION.fullmatch(path)
                if match:
                    versions[match[1]] = max(versions.get(match[1], 0), int(match[2]))
            if versions:
                newest = f"/slurmdb/v0.0.{versions.get('slurmdb')}/jobs"
                self._duplicates = any(
                    "show_duplicates" in _parameters(paths, path) for path in (newest, f"{newest}/")
                )
                return versions
        return {}

    def _tried_versions(self) -> dict[str, int]:
        for version in _KNOWN_VERSIONS:
            try:
                self._get(f"/slurm/v0.0.{version}/ping")
            except UnavailableError:
                raise
            except (AdaptError, SourceError):
                continue
            return {"slurm": version, "slurmdb": version}
        raise AdaptError("slurmrestd supports none of v0.0.36 to v0.0.48")


def _path(target: str) -> str:
    """For messages: without the query."""
    return target.partition("?")[0]


def _parameters(paths: Any, path: str) -> set[str]:
    """The query parameters of a path."""
    try:
        return {parameter["name"] for parameter in paths[path]["get"]["parameters"]}
    except (KeyError, TypeError):
        return set()
