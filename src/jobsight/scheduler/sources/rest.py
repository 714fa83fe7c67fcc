"""slurmrestd: a unix socket or TCP, with or without a token; v0.0.36 on, the newest it has.

A little HTTP over TCP or a unix socket, with the standard library.
"""

from __future__ import annotations

import functools
import http.client
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.scheduler.adapters.json import (
    adapt_jobs,
    adapt_nodes,
    adapt_partitions,
    decode_json,
    release_of,
    stream_jobs,
)
from jobsight.scheduler.adapters.policy import (
    Policy,
    read_associations,
    read_qos,
    read_reservations,
)
from jobsight.scheduler.records import AdaptError, Jobs, Nodes, Partitions, SourceError, join_jobs
from jobsight.scheduler.sources.replies import Replies

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
        return stream_jobs(
            chunks, f"slurmrestd {_shown_reply(target)}", self._cluster, "slurmrestd"
        )

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
                f"slurmrestd refuses {_shown_reply(target)} with {reply.status}: the user or the "
                "token (scheduler.rest.user, scheduler.rest.token_file) is not accepted"
            )
        return reply

    def _document(self, target: str, reply: Reply) -> Any:
        shown = _shown_reply(target)
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


def _shown_reply(target: str) -> str:
    return target.partition("?")[0]


def _parameters(paths: Any, path: str) -> set[str]:
    """The names of what a path takes in its query."""
    try:
        return {parameter["name"] for parameter in paths[path]["get"]["parameters"]}
    except (KeyError, TypeError):
        return set()


_CHUNK = 1 << 18

Said = Callable[[], AbstractContextManager[None]]


class Body:
    """What a reply holds, while it comes; the connection is closed at its end."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, said: Said
    ) -> None:
        self._connection = connection
        self._response = response
        self._said = said

    def __iter__(self) -> Iterator[bytes]:
        try:
            while True:
                with self._said():
                    chunk = self._response.read(_CHUNK)
                if not chunk:
                    return
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Reply(NamedTuple):
    status: int
    body: Body


class Address(NamedTuple):
    """Where slurmrestd listens: ``unix:/run/slurmrestd.socket``, ``http://host:6820``."""

    scheme: str
    host: str
    port: int | None
    path: str

    @classmethod
    def parse(cls, text: str) -> Address:
        if text.startswith(("unix:", "/")):
            path = text.removeprefix("unix://").removeprefix("unix:")
            if path.startswith("/"):
                return cls("unix", "localhost", None, path)
        parts = urlsplit(text)
        try:
            if parts.scheme in ("http", "https") and parts.hostname:
                return cls(parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/"))
        except ValueError:
            pass
        raise ConfigError(
            f"scheduler.rest.url: {text!r} is no address; right would be "
            "unix:/run/slurmrestd.socket or http://host:6820"
        )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise


def get(address: Address, target: str, headers: Mapping[str, str], timeout: float) -> Reply:
    """One GET; :class:`SourceError` where no reply comes, or where it breaks off."""
    connection = _connection(address, timeout)
    prefix = "" if address.scheme == "unix" else address.path
    said = functools.partial(_explained, address, timeout)
    try:
        with said():
            connection.request("GET", prefix + target, headers=dict(headers))
            response = connection.getresponse()
    except BaseException:
        connection.close()
        raise
    return Reply(response.status, Body(connection, response, said))


@contextmanager
def _explained(address: Address, timeout: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise SourceError(f"slurmrestd gave no answer within {timeout:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SourceError(
            f"slurmrestd at {_shown_error(address)} does not answer: {reason}"
        ) from None


def _connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    if address.scheme == "unix":
        return _UnixConnection(address.path, timeout)
    if address.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout, context=context
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


def _shown_error(address: Address) -> str:
    if address.scheme == "unix":
        return address.path
    return f"{address.host}:{address.port}" if address.port else address.host
