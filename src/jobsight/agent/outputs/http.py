"""``sams.output.Http``: the record of a job to a receiver, kept on disk until it has it."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ClassVar, Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from jobsight import __version__
from jobsight.agent.outputs.kept import Address, KeptRecords, Refused, address_of
from jobsight.agent.outputs.mapping import check_template, placeholders
from jobsight.agent.outputs.record import Record, encode_record, with_start
from jobsight.agent.view import Document, JobView
from jobsight.config import paths
from jobsight.errors import ConfigError

#: These say something about the settings or the moment, not about the record.
_LATER: Final = frozenset({401, 403, 407, 408, 425, 429})
#: Seconds until records that an earlier job left behind are tried again.
_PAUSE: Final = 60.0

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class HttpOptions(msgspec.Struct, kw_only=True):
    uri: str
    jobid_hash_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    username: str | None = None
    password: str | None = None
    #: The client's certificate and key, and the authority that the server's must come from.
    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    connect_timeout: Seconds = 10.0
    #: For the whole exchange.
    timeout: Seconds = 30.0
    exclude: list[str] = msgspec.field(default_factory=list)
    #: Where records wait. Never none: what is not on disk is lost when the receiver is away.
    spool: str = msgspec.field(default_factory=lambda: str(paths.spool_directory() / "http"))
    spool_limit: Annotated[int, msgspec.Meta(ge=2**16)] = 64 * 2**20

    def __post_init__(self) -> None:
        known = {"jobid": 1, "node": "n", "start": "t"}
        if self.jobid_hash_size:
            known["jobid_hash"] = 1
        elif "jobid_hash" in placeholders("uri", self.uri):
            raise ConfigError("uri: %(jobid_hash)s needs jobid_hash_size, such as 1000")
        check_template("uri", self.uri, known)
        if not _is_address(self.uri % known):
            raise ConfigError(
                f"uri: {self.uri!r} is no address; right: https://HOST/%(jobid)s/%(node)s.json"
            )
        if (self.username is None) != (self.password is None):
            raise ConfigError("username and password are given together or not at all")
        if self.key_file and not self.cert_file:
            raise ConfigError("key_file: needs cert_file beside it")
        if (self.cert_file or self.ca_file) and not self.uri.startswith("https:"):
            raise ConfigError("cert_file and ca_file: need an uri that starts with https://")
        if not os.path.isabs(self.spool):
            # A service has no folder of its own: such a one would lie wherever it was started.
            raise ConfigError(
                f"spool: {self.spool!r} must begin at /; right: /var/spool/jobsight/http"
            )
        for name in ("cert_file", "key_file", "ca_file"):
            file = getattr(self, name)
            if file and not os.access(file, os.R_OK):
                raise ConfigError(f"{name}: {file} cannot be read")

    def address(self, address: Address) -> str:
        """The address of one record; names are escaped, so that none changes its path."""
        fields: dict[str, str | int] = {
            "jobid": address.job_id,
            "node": quote(address.node, safe="", errors="surrogatepass"),
            "start": address.start,
        }
        if self.jobid_hash_size:
            fields["jobid_hash"] = address.job_id // self.jobid_hash_size
        uri = self.uri % fields
        if address.requeued and "start" not in placeholders("uri", self.uri):
            uri, mark, query = uri.partition("?")
            uri = with_start(uri, address.start) + mark + query
        return uri


class HttpOutput:
    """Posts the record when the job ends; before that it is on disk, so nothing is lost when
    the receiver is away and this process ends. Whoever starts next sends it."""

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
        self.kept = KeptRecords(Path(options.spool), options.spool_limit)
        self._record = Record(options.exclude)
        self._clock = clock
        self._next_try = clock()
        #: The name of this job's record among the kept ones.
        self._mine: str | None = None

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._record.store(sampler, document)
        if self._clock() >= self._next_try:
            self._next_try = self._clock() + _PAUSE
            # What earlier jobs left behind. That it still cannot be sent is no news.
            self.kept.deliver(self.send)

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        try:
            self._keep(view, documents)
        except OSError:
            # No room on this disk: then it has to work without.
            self.send(address_of(view), self._body(documents))
            return
        assert self._mine is not None
        result = self.kept.deliver(self.send)
        if self._mine in result.refused:
            raise Refused(f"the record was refused; it is in {self.kept.folder}/refused")
        if self.kept.holds(self._mine):
            raise ConnectionError(result.reason or "another process is sending records just now")

    def keep(self, view: JobView, documents: dict[str, Document]) -> str | None:
        """Where the record waits when it could not be sent."""
        return str(self.kept.folder / self._keep(view, documents))

    def _keep(self, view: JobView, documents: dict[str, Document]) -> str:
        if self._mine is None:
            self._mine = self.kept.put(address_of(view), self._body(documents))
        return self._mine

    def _body(self, documents: dict[str, Document]) -> bytes:
        return encode_record(self._record.finished(documents))

    def send(self, address: Address, body: bytes) -> None:
        """One exchange. An error that says "later" is an OSError, one that says "never" Refused."""
        parts = urlsplit(self.options.address(address))
        connection = self._connect(parts.scheme, parts.hostname or "", parts.port)
        deadline = threading.Timer(self.options.timeout, _hang_up, [connection])
        deadline.daemon = True
        try:
            connection.connect()
            connection.sock.settimeout(self.options.timeout)
            deadline.start()
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body, self._headers(parts.username, parts.password))
            response = connection.getresponse()
            answer = response.read(2000)
        except (OSError, http.client.HTTPException, ValueError) as error:
            where = f"{parts.hostname}:{parts.port or parts.scheme}"
            reason = str(error) or type(error).__name__
            raise ConnectionError(f"{where} does not answer: {reason}") from None
        finally:
            deadline.cancel()
            connection.close()
        if 200 <= response.status < 300:
            return
        text = f"{parts.hostname} answered {response.status}: {answer.decode(errors='replace')!r}"
        if 400 <= response.status < 500 and response.status not in _LATER:
            raise Refused(text)
        raise ConnectionError(text)

    def _connect(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self.options.connect_timeout)
        context = ssl.create_default_context(cafile=self.options.ca_file)
        if self.options.cert_file:
            context.load_cert_chain(self.options.cert_file, self.options.key_file)
        return http.client.HTTPSConnection(
            host, port, timeout=self.options.connect_timeout, context=context
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


def _is_address(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """End an exchange that has taken too long, whatever it waits for."""
    if isinstance(connection.sock, socket.socket):
        try:
            # The plain call: the one of a TLS socket would take its state from under the reader.
            socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
        except OSError:
            pass
