"""``sams.output.Http``: posts the record of a job to a receiver."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from jobsight import __version__
from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import check_template, placeholders
from jobsight.agent.outputs.record_spool import (
    DEFAULT_LIMIT,
    RecordKey,
    RecordSpool,
    RecordTooLarge,
    record_key,
)
from jobsight.agent.outputs.sams_record import REFUSED_HEADER, Record, encode_record, with_start
from jobsight.agent.outputs.worker import RecordRefused
from jobsight.config import paths
from jobsight.errors import ConfigError
from jobsight.transport.http import Peer, request
from jobsight.util.urls import without_credentials

if TYPE_CHECKING:
    from jobsight.transport.tls import ClientTls

#: Seconds between two attempts to send the records of earlier jobs.
_RETRY_INTERVAL: Final = 60.0

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class HttpOptions(msgspec.Struct, kw_only=True):
    uri: str
    jobid_hash_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    username: str | None = None
    password: str | None = None
    #: The client certificate, its key, and the CA certificates that verify the server.
    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    connect_timeout: Seconds = 10.0
    #: For the entire request.
    timeout: Seconds = 30.0
    exclude: list[str] = msgspec.field(default_factory=list)
    #: The directory of undelivered records. Required: without it they would be lost when the
    #: receiver is unreachable.
    spool: str = msgspec.field(default_factory=lambda: str(paths.spool_directory() / "http"))
    spool_limit: Annotated[int, msgspec.Meta(ge=2**16)] = DEFAULT_LIMIT

    def __post_init__(self) -> None:
        known = {"jobid": 1, "node": "n", "start": "t"}
        if self.jobid_hash_size:
            known["jobid_hash"] = 1
        elif "jobid_hash" in placeholders("uri", self.uri):
            raise ConfigError("uri: %(jobid_hash)s needs jobid_hash_size, such as 1000")
        check_template("uri", self.uri, known)
        if not _is_http_url(self.uri % known):
            raise ConfigError(
                f"uri: {without_credentials(self.uri)!r} is not a URL; "
                "expected https://HOST/%(jobid)s/%(node)s.json"
            )
        if (self.username is None) != (self.password is None):
            raise ConfigError("username and password are required together")
        if self.key_file and not self.cert_file:
            raise ConfigError("key_file requires cert_file")
        if (self.cert_file or self.ca_file) and not self.uri.startswith("https:"):
            raise ConfigError("cert_file and ca_file require an uri that starts with https://")
        if not os.path.isabs(self.spool):
            # A relative path would depend on the directory in which the service is started.
            raise ConfigError(
                f"spool: {self.spool!r} is not absolute; expected /var/spool/jobsight/http"
            )
        for name in ("cert_file", "key_file", "ca_file"):
            file = getattr(self, name)
            if file and not os.access(file, os.R_OK):
                raise ConfigError(f"{name}: {file} cannot be read")

    def url(self, key: RecordKey) -> str:
        """The URL of one record. Names are escaped, so that none changes the path."""
        fields: dict[str, str | int] = {
            "jobid": key.job_id,
            "node": quote(key.node, safe="", errors="surrogatepass"),
            "start": key.start,
        }
        if self.jobid_hash_size:
            fields["jobid_hash"] = key.job_id // self.jobid_hash_size
        uri = self.uri % fields
        if key.requeued and "start" not in placeholders("uri", self.uri):
            uri, separator, query = uri.partition("?")
            uri = with_start(uri, key.start) + separator + query
        return uri


class HttpOutput:
    """Stores the record in the spool when the job ends, then posts it.

    Nothing is lost if the receiver is unreachable and this process exits: the next process that
    has this output sends the record.
    """

    Options: ClassVar[type[msgspec.Struct]] = HttpOptions

    def __init__(
        self,
        options: HttpOptions,
        view: JobView,
        name: str = "sams.output.Http",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.options = options
        self.spool = RecordSpool(Path(options.spool), options.spool_limit)
        self._record = Record(options.exclude)
        self._clock = clock
        self._next_attempt = clock()
        #: The name of this job's record in the spool.
        self._name: str | None = None

    @property
    def dropped_records(self) -> int:
        """Records of other jobs that were deleted to keep this one."""
        return self.spool.dropped

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._record.store(sampler, document)
        if self._clock() >= self._next_attempt:
            self._next_attempt = self._clock() + _RETRY_INTERVAL
            # Records of earlier jobs. A failure here has been logged before.
            self.spool.deliver(self.send)

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        try:
            self._put(view, documents)
        except OSError:
            # The disk is full: send the record without storing it.
            self.send(record_key(view), self._body(documents))
            return
        assert self._name is not None
        result = self.spool.deliver(self.send)
        if self._name in result.refused:
            raise RecordRefused(f"the record was refused; it is in {self.spool.directory}/refused")
        if self._name in self.spool:
            raise ConnectionError(result.reason or "another process is sending the records")

    def save(self, view: JobView, documents: dict[str, Document]) -> str | None:
        """Store a record that could not be sent; returns its path."""
        return str(self.spool.directory / self._put(view, documents))

    def _put(self, view: JobView, documents: dict[str, Document]) -> str:
        if self._name is None:
            self._name = self.spool.put(record_key(view), self._body(documents))
        return self._name

    def _body(self, documents: dict[str, Document]) -> bytes:
        return encode_record(self._record.finished(documents))

    def send(self, key: RecordKey, body: bytes) -> None:
        """Post one record. Raises OSError if a retry may help, else RecordRefused."""
        parts = urlsplit(self.options.url(key))
        host, secure = parts.hostname or "", parts.scheme == "https"
        try:
            reply = request(
                Peer(
                    host,
                    parts.port or (443 if secure else 80),
                    self._tls().wrapping(host) if secure else None,
                    self.options.connect_timeout,
                ),
                "POST",
                (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
                self._headers(parts.username, parts.password),
                body,
                timeout=self.options.timeout,
            )
        except (OSError, ValueError) as error:
            where = f"{host}:{parts.port or parts.scheme}"
            reason = str(error) or type(error).__name__
            raise ConnectionError(f"{where} does not answer: {reason}") from None
        if 200 <= reply.status < 300:
            return
        text = f"{host} answered {reply.status}: {reply.body[:2000].decode(errors='replace')!r}"
        if 400 <= reply.status < 500 and REFUSED_HEADER in reply.headers:
            raise RecordRefused(text)
        # Also 400 of a proxy, such as that of nginx for a missing client certificate.
        raise RecordTooLarge(text) if reply.status == 413 else ConnectionError(text)

    def _tls(self) -> ClientTls:
        # Imported only if needed: TLS is a fifth of the agent's memory.
        from jobsight.transport.tls import ClientTls

        options = self.options
        return ClientTls(
            options.ca_file,
            options.cert_file,
            options.key_file,
            settings=("cert_file", "key_file"),
        )

    def _headers(self, user: str | None, password: str | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"jobsight/{__version__}"}
        user = self.options.username or (unquote(user) if user else None)
        if user is not None:
            secret = self.options.password or unquote(password or "")
            token = base64.b64encode(f"{user}:{secret}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        return headers

    def close(self) -> None:
        pass


def _is_http_url(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
