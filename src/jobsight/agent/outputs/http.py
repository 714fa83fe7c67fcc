"""``sams.output.Http``: the record of a job to a receiver, kept on disk until it has it.

Records that could not be delivered, on the node's own disk until somebody takes them.
"""

from __future__ import annotations

import base64
import fcntl
import http.client
import json
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec

from jobsight import __version__
from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import check_template, placeholders
from jobsight.agent.outputs.record import (
    Record,
    encode_record,
    is_requeued,
    run_start,
    whole_text,
    with_start,
)
from jobsight.config import paths
from jobsight.errors import ConfigError, JobsightError
from jobsight.util.durable import write_atomically

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
        self.kept = HttpSpool(Path(options.spool), options.spool_limit)
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


_SUFFIX: Final = ".kept"
DEFAULT_LIMIT: Final = 64 * 2**20


class Address(msgspec.Struct, frozen=True):
    """What a record is called; where it goes is decided anew whenever it is sent."""

    job_id: int
    node: str
    start: str
    requeued: bool = False


def address_of(view: JobView) -> Address:
    sighting = view.sighting
    return Address(
        job_id=sighting.job_id,
        node=whole_text(sighting.node),
        start=run_start(view),
        requeued=is_requeued(view),
    )


class Refused(JobsightError):
    """The other side will never take this record."""


class Sent(NamedTuple):
    sent: int = 0
    #: Names of the records that were put aside.
    refused: tuple[str, ...] = ()
    #: What stands in the way of the rest.
    reason: str = ""


class HttpSpool:
    """A folder of records, each with its address in the first line. Several processes share it."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.dropped = 0

    def put(self, address: Address, body: bytes) -> str:
        """Keep a record and give its name; the oldest go when the folder is full."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = msgspec.json.encode(address) + b"\n" + body
        self._make_room(len(data))
        # The first number orders by age; the last part keeps two runs of one job apart.
        name = f"{time.time_ns():020d}-{address.job_id}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        write_atomically(self.folder / name, data, mode=0o600)
        return name

    def _make_room(self, size: int) -> None:
        sizes = {path: _size(path) for path in (*self._files(), *self._refused())}
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: path.name):
            if total + size <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= sizes[path]
            self.dropped += 1

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*" + _SUFFIX))

    def _refused(self) -> list[Path]:
        return sorted((self.folder / "refused").glob("*" + _SUFFIX))

    def __len__(self) -> int:
        return len(self._files())

    def holds(self, name: str) -> bool:
        return (self.folder / name).exists()

    def done(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def refuse(self, name: str, reason: str) -> None:
        """Put a record aside, with the reason beside it. Moved back, it is sent again."""
        aside = self.folder / "refused"
        aside.mkdir(mode=0o700, exist_ok=True)
        try:
            os.replace(self.folder / name, aside / name)
            (aside / name).with_suffix(".reason").write_text(reason + "\n")
        except OSError:
            # Another process put it aside, or the disk is full; the record itself is still there.
            pass

    def deliver(self, send: Callable[[Address, bytes], object]) -> Sent:
        """Send what is kept, the oldest first, until the other side cannot take more.

        Only one process at a time does so; the others leave it to that one.
        """
        sent = 0
        refused: tuple[str, ...] = ()
        if not self._files():
            return Sent()
        with self._alone() as alone:
            for path in self._files() if alone else []:
                try:
                    address, body = _read(path)
                    send(address, body)
                except FileNotFoundError:
                    continue
                except Refused as error:
                    self.refuse(path.name, str(error))
                    refused += (path.name,)
                except (OSError, JobsightError) as error:
                    return Sent(sent, refused, str(error))
                else:
                    self.done(path.name)
                    sent += 1
        return Sent(sent, refused)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                alone = False
            yield alone
        finally:
            os.close(descriptor)


def _read(path: Path) -> tuple[Address, bytes]:
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        address = msgspec.json.decode(head, type=Address)
        json.loads(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Refused(f"the kept record {path.name} cannot be read: {error}") from None
    return address, body


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
