"""slurmrestd: a unix socket or TCP, with or without a token; v0.0.36 on, the newest it has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jobsight.model import SECOND
from jobsight.scheduler.adapt import (
    adapt_jobs,
    adapt_nodes,
    adapt_partitions,
    decode_json,
    release_of,
    stream_jobs,
)
from jobsight.scheduler.errors import AdaptError, SourceError
from jobsight.scheduler.policy import (
    Policy,
    read_associations,
    read_qos,
    read_reservations,
)
from jobsight.scheduler.records import Jobs, Nodes, Partitions, join_jobs
from jobsight.scheduler.replies import Replies
from jobsight.scheduler.sources.http import Address, Reply, get

_VERSION = re.compile(r"/(slurm|slurmdb)/v0\.0\.(\d{1,4})/jobs/?", re.ASCII)
#: Asked in turn where slurmrestd does not describe itself.
_GUESSES = range(48, 35, -1)


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
        self._address = Address.parse(url)
        self._user = user
        self._token_file = token_file
        self._timeout = timeout
        self._replies = replies
        self._versions: dict[str, int] | None = None
        self._duplicates = False

    def probe(self) -> str:
        versions = self._discover()
        document = self._ask("slurm", "ping")
        release = release_of(document) or "of an unnamed release"
        return (
            f"slurmrestd answers, Slurm {release}, v0.0.{versions['slurm']} and "
            f"dbv0.0.{versions['slurmdb']}"
        )

    def queue(self) -> Jobs:
        return self._jobs("slurm", ["jobs"])

    def accounting(self, since: int, until: int) -> Jobs:
        window = {
            "start_time": f"uts{since // SECOND}",
            "end_time": f"uts{-(-until // SECOND)}",
        }
        self._discover()
        if self._duplicates:
            # Else newer interfaces give only the last run of a requeued job.
            window["show_duplicates"] = "true"
        return self._jobs("slurmdb", ["jobs"], window)

    def accounting_of(self, job_ids: Sequence[int]) -> Jobs:
        """One request for each: the list of jobs takes no ids in the older interfaces."""
        return self._jobs("slurmdb", [f"job/{int(job_id)}" for job_id in job_ids])

    def _jobs(self, part: str, names: Sequence[str], query: dict[str, str] | None = None) -> Jobs:
        return join_jobs(self._reply(part, name, query or {}) for name in names)

    def _reply(self, part: str, name: str, query: dict[str, str]) -> Jobs:
        target = self._target(part, name, query)
        reply = self._open(target)
        if reply.status >= 400:
            return adapt_jobs(self._document(target, reply), self._cluster, "slurmrestd")
        chunks: Iterable[bytes] = reply.body
        if self._replies is not None:
            chunks = self._replies.keep(f"{part}-jobs", chunks)
        return stream_jobs(chunks, f"slurmrestd {_shown(target)}", self._cluster, "slurmrestd")

    def nodes(self) -> Nodes:
        return adapt_nodes(self._ask("slurm", "nodes"), self._cluster)

    def partitions(self) -> Partitions:
        return adapt_partitions(self._ask("slurm", "partitions"), self._cluster)

    def policy(self) -> Policy:
        found = Policy()
        for part, key, read in (
            ("slurm", "reservations", read_reservations),
            ("slurmdb", "qos", read_qos),
            ("slurmdb", "associations", read_associations),
        ):
            document = self._ask(part, key)
            held = document if isinstance(document, dict) else {}
            # 22.05 and older write "QOS".
            entries = held.get(key, held.get(key.upper()))
            if not isinstance(entries, list):
                raise AdaptError(f"slurmrestd's reply about {key} has no list of them")
            setattr(found, key, read(entries, self._cluster, found.problems))
        return found

    def _ask(self, part: str, what: str) -> Any:
        return self._get(self._target(part, what, {}))

    def _target(self, part: str, what: str, query: dict[str, str]) -> str:
        target = f"/{part}/v0.0.{self._discover()[part]}/{what}"
        return f"{target}?{urlencode(query)}" if query else target

    def _get(self, target: str) -> Any:
        return self._document(target, self._open(target))

    def _open(self, target: str) -> Reply:
        reply = get(self._address, target, self._headers(), self._timeout)
        if reply.status in (401, 403):
            reply.body.close()
            raise SourceError(
                f"slurmrestd refuses {_shown(target)} with {reply.status}: the user or the token "
                "(scheduler.rest.user, scheduler.rest.token_file) is not accepted"
            )
        return reply

    def _document(self, target: str, reply: Reply) -> Any:
        shown = _shown(target)
        body = b"".join(reply.body)
        try:
            document = decode_json(body, f"slurmrestd {shown}")
        except AdaptError:
            if reply.status >= 400:
                said = " ".join(body[:200].decode("utf-8", "replace").split())
                raise SourceError(f"slurmrestd {shown}: {reply.status}: {said}") from None
            raise
        errors = document.get("errors") if isinstance(document, dict) else None
        if reply.status >= 400 and not errors:
            raise SourceError(f"slurmrestd {shown}: answered with status {reply.status}")
        return document

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        token = os.environ.get("SLURM_JWT", "")
        if self._token_file:
            try:
                # Read anew each time: tokens are short-lived and put there by somebody else.
                token = Path(self._token_file).read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError):
                raise SourceError(f"the token file {self._token_file} cannot be read") from None
            # What `scontrol token` prints may stand there as it is.
            token = token.removeprefix("SLURM_JWT=")
        if token:
            if not token.isprintable():
                raise SourceError("the token of slurmrestd is more than one line")
            headers["X-SLURM-USER-TOKEN"] = token
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        return headers

    def _discover(self) -> dict[str, int]:
        """The newest version of both parts, from what slurmrestd says of itself or by trying."""
        if self._versions is None:
            found = self._described()
            if set(found) != {"slurm", "slurmdb"}:
                found = self._tried()
            self._versions = found
        return self._versions

    def _described(self) -> dict[str, int]:
        for target in ("/openapi/v3", "/openapi"):
            try:
                document = self._get(target)
            except (AdaptError, SourceError) as error:
                if "does not answer" in str(error) or "refuses" in str(error):
                    raise
                continue
            paths = document.get("paths") if isinstance(document, dict) else None
            found: dict[str, int] = {}
            for path in paths or ():
                match = _VERSION.fullmatch(path)
                if match:
                    found[match[1]] = max(found.get(match[1], 0), int(match[2]))
            if found:
                newest = f"/slurmdb/v0.0.{found.get('slurmdb')}/jobs"
                self._duplicates = any(
                    "show_duplicates" in _parameters(paths, path) for path in (newest, f"{newest}/")
                )
                return found
        return {}

    def _tried(self) -> dict[str, int]:
        for version in _GUESSES:
            try:
                self._get(f"/slurm/v0.0.{version}/ping")
            except (AdaptError, SourceError) as error:
                if "does not answer" in str(error) or "refuses" in str(error):
                    raise
                continue
            return {"slurm": version, "slurmdb": version}
        raise AdaptError("slurmrestd speaks none of v0.0.36 to v0.0.48")


def _shown(target: str) -> str:
    return target.partition("?")[0]


def _parameters(paths: Any, path: str) -> set[str]:
    """The names of what a path takes in its query."""
    try:
        return {parameter["name"] for parameter in paths[path]["get"]["parameters"]}
    except (KeyError, TypeError):
        return set()
