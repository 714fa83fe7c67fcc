"""The endpoint ``/metrics``: a small HTTP server in threads of its own, beside the loop.

Not the standard library's server: that one brings the parser of mail along, a tenth of the
agent's memory on every node.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import socket
import threading
import time
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.agent.exporter.exporter import Exporter
from jobsight.config.settings import MetricsSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.prometheus.exposition import OPENMETRICS, PLAIN

if TYPE_CHECKING:
    import ssl

    from jobsight.agent.exporter.passwords import Password

logger = logging.getLogger("jobsight.agent")

#: Seconds in which a request must have come, and in which its answer must have been taken.
_REQUEST_TIME: Final = 5.0
_ANSWER_TIME: Final = 30.0
_LARGEST_REQUEST: Final = 16384
_MOST_CLIENTS: Final = 16
#: An address that cannot be had now (another agent holds it) is tried again after so long.
_TRY_AGAIN: Final = 15.0
_SMALL: Final = 1400


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


class Endpoint:
    """Answers scrapes until it is closed. A slow or silent client costs nobody but itself."""

    def __init__(self, exporter: Exporter, settings: MetricsSettings) -> None:
        self._exporter = exporter
        self._address = parse_address(settings.listen)
        self._tls = _tls_context(settings)
        self._password = _password(settings)
        self._listener: socket.socket | None = None
        self._ended = threading.Event()
        self._slots = threading.BoundedSemaphore(_MOST_CLIENTS)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def open(self) -> None:
        """Take the address; raises where it cannot be had."""
        try:
            self._listener = _listener(*self._address)
        except OSError as error:
            host, port = self._address
            raise JobsightError(
                f"cannot answer /metrics on {host} port {port}: {error.strerror}; choose another "
                "with --listen or agent.metrics.listen"
            ) from None

    @property
    def port(self) -> int:
        """The port that is listened on, 0 while there is none."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Answer from now on; where the address is not free yet, as soon as it is."""
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._thread.is_alive():
            self._thread.join(_TRY_AGAIN)

    def _run(self) -> None:
        said = False
        while not self._ended.is_set():
            if self._listener is None:
                try:
                    self.open()
                except JobsightError as error:
                    # Measuring does not depend on this.
                    if not said:
                        logger.error("%s; it is tried again", error)
                    said = True
                    self._ended.wait(_TRY_AGAIN)
                    continue
            self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:
            # Out of descriptors, say; a pause keeps this from spinning.
            self._ended.wait(1.0)
            return
        if not self._slots.acquire(blocking=False):
            client.close()
            return
        threading.Thread(target=self._serve, args=[client], name="scrape", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                self._exchange(client)
        except (OSError, ValueError):
            # The client's loss: it went away, spoke no HTTP, or did not read.
            pass
        except Exception:
            logger.exception("an answer to a scrape")
        finally:
            self._slots.release()

    def _exchange(self, client: socket.socket) -> None:
        client.settimeout(_REQUEST_TIME)
        stream = client
        if self._tls is not None:
            stream = self._tls.wrap_socket(client, server_side=True)
        try:
            request = parse_request(_read_head(stream))
            answer = self._answer(request)
            stream.settimeout(_ANSWER_TIME)
            stream.sendall(answer)
        finally:
            if stream is not client:
                stream.close()

    def _answer(self, request: Request) -> bytes:
        if request.method not in ("GET", "HEAD"):
            return _reply("405 Method Not Allowed", b"", {"Allow": "GET, HEAD"})
        if not self._may_read(request):
            challenge = {"WWW-Authenticate": 'Basic realm="jobsight", charset="UTF-8"'}
            return _reply("401 Unauthorized", b"a user and a password are needed\n", challenge)
        if request.path == "/":
            return _reply("200 OK", b"the metrics are at /metrics\n", {})
        if request.path != "/metrics":
            return _reply("404 Not Found", b"the metrics are at /metrics\n", {})
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        body = self._exporter.text(openmetrics=openmetrics)
        self._exporter.scrapes += 1
        headers = {"Content-Type": OPENMETRICS if openmetrics else PLAIN}
        if "gzip" in request.headers.get("accept-encoding", "") and len(body) > _SMALL:
            packer = zlib.compressobj(1, wbits=31)
            body = packer.compress(body) + packer.flush()
            headers["Content-Encoding"] = "gzip"
        return _reply("200 OK", body, headers, head=request.method == "HEAD")

    def _may_read(self, request: Request) -> bool:
        if self._password is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        return self._password.is_right(user, password)


def parse_address(text: str) -> tuple[str, int]:
    """Read ``ADDRESS:PORT``; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{text!r} is not an address to listen on; right would be 127.0.0.1:9306 or [::]:9306"
        )
    return host, int(port)


def parse_request(head: bytes) -> Request:
    """The first line and the headers of a request; raises ValueError where it is none."""
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    headers = {}
    for row in rest:
        name, _, value = row.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request(method, target.partition("?")[0], headers)


def _read_head(stream: socket.socket) -> bytes:
    """All up to the empty line, in the time for all of it and not for each piece."""
    deadline = time.monotonic() + _REQUEST_TIME
    data = b""
    while b"\r\n\r\n" not in data:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _LARGEST_REQUEST:
            raise ValueError("no request came")
        stream.settimeout(left)
        piece = stream.recv(4096)
        if not piece:
            raise ValueError("the client went away")
        data += piece
    return data.partition(b"\r\n\r\n")[0]


def _reply(status: str, body: bytes, headers: dict[str, str], *, head: bool = False) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head else body)


def _listener(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def _tls_context(settings: MetricsSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        if settings.tls_key is not None:
            raise ConfigError("agent.metrics.tls_key: needs agent.metrics.tls_certificate as well")
        return None
    # Imported only where it is needed: TLS is a fifth of the agent's memory.
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"agent.metrics.tls_certificate: {settings.tls_certificate} and its key cannot be "
            f"used: {error.strerror or error}"
        ) from None
    return context


def _password(settings: MetricsSettings) -> Password | None:
    if settings.password_hash is None:
        if settings.user is not None:
            raise ConfigError("agent.metrics.user: needs agent.metrics.password_hash as well")
        return None
    if settings.user is None:
        raise ConfigError("agent.metrics.password_hash: needs agent.metrics.user as well")
    from jobsight.agent.exporter.passwords import Password

    return Password(settings.user, settings.password_hash)
