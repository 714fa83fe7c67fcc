"""A small HTTP/1.0 client.

http.client imports ssl and the email parser: 6 MB of the agent's memory on every node, of which
4 MB are those of ssl and needed for HTTPS. :func:`request` is one exchange, :class:`Web` a server
of the settings with its credentials.
"""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from jobsight import __version__
from jobsight.errors import ConfigError
from jobsight.util.urls import without_credentials

if TYPE_CHECKING:
    from jobsight.config.settings import WebSettings
    from jobsight.transport.tls import ClientTls


LARGEST_REPLY: Final = 65536


class BadReply(OSError):
    """The reply is not HTTP, or was truncated."""


class Reply(NamedTuple):
    """The reply of a server."""

    status: int
    #: By name in lower case.
    headers: dict[str, str]
    body: bytes

    @property
    def retry_after(self) -> float:
        """Seconds of the Retry-After header; 0 if it is missing or a date."""
        text = self.headers.get("retry-after", "")
        return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0


class Peer(NamedTuple):
    """The server of an exchange, and how it is reached."""

    host: str
    port: int
    #: Begins TLS on a connection.
    wrap: Callable[[socket.socket], socket.socket] | None = None
    #: Seconds to connect in, if fewer than for the whole exchange.
    connect_timeout: float | None = None
    #: The own address to send from, if it matters.
    source: str | None = None


def request(
    peer: Peer,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    timeout: float,
    largest: int = LARGEST_REPLY,
) -> Reply:
    """One exchange. HTTP 1.0: the reply ends with the connection."""
    deadline = time.monotonic() + timeout
    host, port, wrap, connect_timeout, source = peer
    name = f"[{host}]" if ":" in host else host
    lines = [f"{method} {path} HTTP/1.0", f"Host: {name}:{port}", f"Content-Length: {len(body)}"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise BadReply("a header holds a line break")
    connection = socket.create_connection(
        (host, port), min(timeout, connect_timeout or timeout), (source, 0) if source else None
    )
    connection.settimeout(timeout)
    try:
        if wrap is not None:
            connection = wrap(connection)
        try:
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse before it has read all; then its answer is there already.
            pass
        reply = _received(connection, deadline, largest)
    finally:
        connection.close()
    if not reply:
        hint = "" if wrap is None else ", as servers do that refuse the certificate of a client"
        raise BadReply(f"it closed the connection without a reply{hint}")
    return _parsed(reply, largest)


def _received(connection: socket.socket, deadline: float, largest: int) -> bytes:
    reply = bytearray()
    while len(reply) < largest:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        data = connection.recv(16384)
        if not data:
            break
        reply += data
    return bytes(reply)


def _parsed(reply: bytes, largest: int) -> Reply:
    head, separator, body = reply.partition(b"\r\n\r\n")
    first, *rest = head.split(b"\r\n")
    words = first.split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise BadReply(f"the reply is not HTTP: {reply[:60]!r}")
    if not words[1].isdigit() or len(words[1]) != 3:
        raise BadReply(f"the reply has no status: {first[:60]!r}")
    headers = {}
    for line in rest:
        key, _, value = line.decode("latin-1").partition(":")
        headers[key.strip().lower()] = value.strip()
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit():
        length = int(announced)
        if len(body) < min(length, largest - len(head) - 4):
            raise BadReply("the reply was cut")
        body = body[:length]
    return Reply(int(words[1]), headers, body)


class Web:
    """Sends requests below an address, each on a connection of its own and in bounded time."""

    def __init__(self, where: str, settings: WebSettings) -> None:
        url = settings.url or ""
        try:
            parts = urlsplit(url)
            right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            right = False
        if not right:
            raise ConfigError(
                f"{where}.url: {without_credentials(url)!r} is not a URL; "
                "expected http://HOST:PORT/PATH"
            )
        self.host = parts.hostname or ""
        self.path = parts.path.rstrip("/")
        #: Without user and password, for messages and files.
        self.name = without_credentials(url).rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        self.timeout = settings.timeout
        self._tls: ClientTls | None = None
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme == "https":
            # Imported only for HTTPS: ssl takes 4 MB of the agent's memory.
            from jobsight.transport.tls import ClientTls

            self._tls = ClientTls(settings.ca)
        self._user, self._password = parts.username, unquote(parts.password or "")
        if settings.user is not None:
            self._user = settings.user
        self._password_file, self._token_file = settings.password_file, settings.token_file
        self._headers = dict(settings.headers)
        self._authorization(where)

    def _authorization(self, where: str = "") -> dict[str, str]:
        """Read the files again for each request: new credentials need no restart."""
        try:
            if self._token_file is not None:
                token = Path(self._token_file).expanduser().read_text().strip()
                return {"Authorization": f"Bearer {token}"}
            if self._user is None:
                return {}
            password = self._password
            if self._password_file is not None:
                password = Path(self._password_file).expanduser().read_text().strip()
        except OSError as error:
            if where:
                raise ConfigError(
                    f"{where}: {error.filename} cannot be read: {error.strerror}"
                ) from None
            raise
        pair = base64.b64encode(f"{unquote(self._user)}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def send(
        self,
        method: str,
        path: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        largest: int = LARGEST_REPLY,
    ) -> Reply:
        """One request; raises OSError where no answer came."""
        sent = {
            "User-Agent": f"jobsight/{__version__}",
            **(headers or {}),
            **self._headers,
            **self._authorization(),
        }
        wrap = self._tls.wrapping(self.host) if self._tls is not None else None
        peer = Peer(self.host, self._port, wrap)
        target = f"{self.path}{path}{self._query}" or "/"
        return request(peer, method, target, sent, body, timeout=self.timeout, largest=largest)
