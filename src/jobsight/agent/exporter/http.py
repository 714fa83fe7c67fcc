"""The endpoint ``/metrics``: a small HTTP server with threads of its own.

The server of the standard library is not used: it imports the mail parser, a tenth of the agent's
memory on every node.
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
from jobsight.util.log_once import LogOnce

if TYPE_CHECKING:
    import ssl

    from jobsight.agent.exporter.passwords import Password

logger = logging.getLogger(__name__)

#: Seconds in which a request must arrive, and in which its response must be read.
_REQUEST_TIMEOUT: Final = 5.0
_RESPONSE_TIMEOUT: Final = 30.0
_MAX_REQUEST: Final = 16384
_MAX_CLIENTS: Final = 16
#: Seconds between two attempts to bind an address that is in use.
_BIND_INTERVAL: Final = 15.0
#: Smaller responses fit one packet and are not compressed.
_COMPRESS_ABOVE: Final = 1400


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


class Endpoint:
    """Serves scrapes until it is closed. A slow or silent client does not affect others."""

    def __init__(self, exporter: Exporter, settings: MetricsSettings) -> None:
        self._exporter = exporter
        self._address = parse_address(settings.listen)
        self._tls = _server_context(settings)
        self._password = _password(settings)
        self._listener: socket.socket | None = None
        self._stopped = threading.Event()
        self._slots = threading.BoundedSemaphore(_MAX_CLIENTS)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def open(self) -> None:
        """Bind the address."""
        try:
            self._listener = _listener(*self._address)
            logger.info("serving /metrics on %s port %d", self._address[0], self.port)
        except OSError as error:
            host, port = self._address
            raise JobsightError(
                f"cannot serve /metrics on {host} port {port}: {error.strerror}; choose another "
                "address with --listen or agent.metrics.listen"
            ) from None

    @property
    def port(self) -> int:
        """The port in use; 0 before the address is bound."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Serve in a thread; an address that is in use is tried again."""
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._thread.is_alive():
            self._thread.join(_BIND_INTERVAL)

    def _run(self) -> None:
        log = LogOnce(logger)
        while not self._stopped.is_set():
            if self._listener is None:
                try:
                    self.open()
                except JobsightError as error:
                    # The agent measures without the endpoint.
                    log.report("bind", f"{error}; retrying", level=logging.ERROR)
                    self._stopped.wait(_BIND_INTERVAL)
                    continue
            self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:
            # For example out of descriptors; wait instead of spinning.
            self._stopped.wait(1.0)
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
            # The client has disconnected, does not speak HTTP, or does not read.
            pass
        except Exception:
            logger.exception("a scrape failed")
        finally:
            self._slots.release()

    def _exchange(self, client: socket.socket) -> None:
        client.settimeout(_REQUEST_TIMEOUT)
        stream = client
        if self._tls is not None:
            stream = self._tls.wrap_socket(client, server_side=True)
        try:
            request = parse_request(_read_head(stream))
            response = self._respond(request)
            stream.settimeout(_RESPONSE_TIMEOUT)
            stream.sendall(response)
        finally:
            if stream is not client:
                stream.close()

    def _respond(self, request: Request) -> bytes:
        if request.method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"", {"Allow": "GET, HEAD"})
        if not self._may_read(request):
            challenge = {"WWW-Authenticate": 'Basic realm="jobsight", charset="UTF-8"'}
            return _response("401 Unauthorized", b"user and password are required\n", challenge)
        if request.path == "/":
            return _response("200 OK", b"the metrics are at /metrics\n", {})
        if request.path != "/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n", {})
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        body = self._exporter.text(openmetrics=openmetrics)
        self._exporter.scrapes += 1
        headers = {"Content-Type": OPENMETRICS if openmetrics else PLAIN}
        if "gzip" in request.headers.get("accept-encoding", "") and len(body) > _COMPRESS_ABOVE:
            packer = zlib.compressobj(1, wbits=31)
            body = packer.compress(body) + packer.flush()
            headers["Content-Encoding"] = "gzip"
        return _response("200 OK", body, headers, head=request.method == "HEAD")

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
        return self._password.matches(user, password)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``; an IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{text!r} is not an address to listen on; expected 127.0.0.1:9306 or [::]:9306"
        )
    return host, int(port)


def parse_request(head: bytes) -> Request:
    """Parse the request line and the headers. Raises ValueError."""
    first, *rest = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    headers = {}
    for header in rest:
        name, _, value = header.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request(method, target.partition("?")[0], headers)


def _read_head(stream: socket.socket) -> bytes:
    """Read up to the empty line, with one timeout for the entire request."""
    deadline = time.monotonic() + _REQUEST_TIMEOUT
    data = b""
    while b"\r\n\r\n" not in data:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or len(data) > _MAX_REQUEST:
            raise ValueError("no request arrived")
        stream.settimeout(remaining)
        received = stream.recv(4096)
        if not received:
            raise ValueError("the client disconnected")
        data += received
    return data.partition(b"\r\n\r\n")[0]


def _response(status: str, body: bytes, headers: dict[str, str], *, head: bool = False) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head else body)


def _listener(host: str, port: int) -> socket.socket:
    candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = candidates[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def _server_context(settings: MetricsSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        if settings.tls_key is not None:
            raise ConfigError("agent.metrics.tls_key requires agent.metrics.tls_certificate")
        return None
    # Imported only if needed: TLS is a fifth of the agent's memory.
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
            raise ConfigError("agent.metrics.user requires agent.metrics.password_hash")
        return None
    if settings.user is None:
        raise ConfigError("agent.metrics.password_hash requires agent.metrics.user")
    from jobsight.agent.exporter.passwords import Password

    return Password(settings.user, settings.password_hash)
