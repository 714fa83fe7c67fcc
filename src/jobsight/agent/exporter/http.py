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
#: Seconds after which a client that reads its response may be disconnected for a new one.
_READING: Final = 1.0
#: Texts rendered per second; further scrapes get the last one.
_MAX_RENDERINGS: Final = 4
#: Responses per second, so that a flood does not use a core of the node; some may come at once.
_MAX_RESPONSES: Final = 100
_BURST: Final = 20
#: Seconds between two attempts to bind an address that is in use.
_BIND_INTERVAL: Final = 15.0
#: Smaller responses fit one packet and are not compressed.
_COMPRESS_ABOVE: Final = 1400


class TooManyPasswords(Exception):
    """A wrong password came from this address less than a second ago."""


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


class _Client:
    """A connection that is being served."""

    def __init__(self, stream: socket.socket, address: str) -> None:
        self.stream = stream
        self.address = address
        #: When the response began to be sent; None until the request is complete.
        self.responding: float | None = None
        #: Rendering or waiting for its turn: not to be disconnected.
        self.busy = False

    def may_be_dropped(self, now: float) -> bool:
        if self.responding is None:
            return not self.busy
        return now - self.responding > _READING

    def disconnect(self) -> None:
        # Not SSLSocket.shutdown, which changes what the client's thread is using.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.stream, socket.SHUT_RDWR)


class Endpoint:
    """Serves scrapes until it is closed. A slow or silent client does not affect others."""

    def __init__(self, exporter: Exporter, settings: MetricsSettings) -> None:
        self._exporter = exporter
        self._address = parse_address(settings.listen)
        _check_network(self._address[0], settings)
        self._tls = _server_context(settings)
        self._password = _password(settings)
        self._listener: socket.socket | None = None
        self._stopped = threading.Event()
        #: The oldest first.
        self._clients: dict[_Client, None] = {}
        self._changed = threading.Condition()
        self._texts: dict[bool, bytes] = {}
        self._rendered: dict[bool, list[float]] = {False: [], True: []}
        self._rendering = threading.Lock()
        self._next_response = 0.0
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
            client, address = self._listener.accept()
        except OSError:
            # For example out of descriptors; wait instead of spinning.
            self._stopped.wait(1.0)
            return
        served = _Client(client, address[0])
        if not self._admit(served):
            client.close()
            return
        threading.Thread(target=self._serve, args=[served], name="scrape", daemon=True).start()

    def _admit(self, client: _Client) -> bool:
        """Wait for capacity. A silent client is disconnected for the new one, the oldest first."""
        with self._changed:
            while len(self._clients) >= _MAX_CLIENTS and not self._stopped.is_set():
                now = time.monotonic()
                oldest = next((one for one in self._clients if one.may_be_dropped(now)), None)
                if oldest is not None:
                    oldest.disconnect()
                    del self._clients[oldest]
                else:
                    # All of them will have their response within moments.
                    self._changed.wait(0.1)
            self._clients[client] = None
        return not self._stopped.is_set()

    def _serve(self, client: _Client) -> None:
        try:
            self._exchange(client)
        except (OSError, ValueError):
            # The client has disconnected, does not speak HTTP, or does not read.
            pass
        except Exception:
            logger.exception("a scrape failed")
        finally:
            client.stream.close()
            with self._changed:
                self._clients.pop(client, None)
                self._changed.notify()

    def _exchange(self, client: _Client) -> None:
        client.stream.settimeout(_REQUEST_TIMEOUT)
        if self._tls is not None:
            stream = self._tls.wrap_socket(
                client.stream, server_side=True, do_handshake_on_connect=False
            )
            client.stream = stream
            stream.do_handshake()
        request = parse_request(_read_head(client.stream))
        client.busy = True
        response = self._respond(request, client.address)
        client.responding = time.monotonic()
        client.stream.settimeout(_RESPONSE_TIMEOUT)
        client.stream.sendall(response)

    def _respond(self, request: Request, address: str) -> bytes:
        self._wait_for_turn()
        if request.method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"", {"Allow": "GET, HEAD"})
        try:
            allowed = self._may_read(request, address)
        except TooManyPasswords:
            sentence = b"one wrong password a second is checked; try later\n"
            return _response("429 Too Many Requests", sentence, {"Retry-After": "1"})
        if not allowed:
            challenge = {"WWW-Authenticate": 'Basic realm="jobsight", charset="UTF-8"'}
            return _response("401 Unauthorized", b"user and password are required\n", challenge)
        if request.path == "/":
            return _response("200 OK", b"the metrics are at /metrics\n", {})
        if request.path != "/metrics":
            return _response("404 Not Found", b"the metrics are at /metrics\n", {})
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        body = self._text(openmetrics)
        self._exporter.scrapes += 1
        headers = {"Content-Type": OPENMETRICS if openmetrics else PLAIN}
        if "gzip" in request.headers.get("accept-encoding", "") and len(body) > _COMPRESS_ABOVE:
            packer = zlib.compressobj(1, wbits=31)
            body = packer.compress(body) + packer.flush()
            headers["Content-Encoding"] = "gzip"
        return _response("200 OK", body, headers, head=request.method == "HEAD")

    def _wait_for_turn(self) -> None:
        with self._changed:
            now = time.monotonic()
            turn = max(self._next_response, now - _BURST / _MAX_RESPONSES)
            self._next_response = turn + 1 / _MAX_RESPONSES
        if turn > now:
            self._stopped.wait(turn - now)

    def _text(self, openmetrics: bool) -> bytes:
        with self._rendering:
            now = time.monotonic()
            recent = [moment for moment in self._rendered[openmetrics] if now - moment < 1]
            if len(recent) < _MAX_RENDERINGS:
                self._texts[openmetrics] = self._exporter.text(openmetrics=openmetrics)
                recent.append(now)
            self._rendered[openmetrics] = recent
            return self._texts[openmetrics]

    def _may_read(self, request: Request, address: str) -> bool:
        if self._password is None:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        return self._password.matches(user, password, address)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``ADDRESS:PORT``; an IPv6 address is in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{text!r} is not an address to listen on; expected 127.0.0.1:9306 or [::]:9306"
        )
    return host, int(port)


def _check_network(host: str, settings: MetricsSettings) -> None:
    """Refuse an endpoint that everybody on the network could read."""
    if settings.allow_network or settings.password_hash is not None:
        return
    if host not in ("localhost", "::1") and not host.startswith("127."):
        raise ConfigError(
            f"agent.metrics.listen: {host} is not a loopback address and no password is set: set "
            "agent.metrics.user and agent.metrics.password_hash, or set "
            "agent.metrics.allow_network to true"
        )


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
        listener.listen(512)
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
