"""Connections of an HTTP server: how many are open, from which addresses, and for how long.

:class:`Listener` is the listening socket: it admits each connection to a :class:`ConnectionTable`,
also while its TLS handshake is pending. Beyond a limit, the oldest connection without an
authenticated request is closed for the new one, so that silent clients cannot keep others out.
:class:`HttpProtocol` is uvicorn's protocol with deadlines for the header, the body and the reading
of the response.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobsight.server.problems import problem_reply
from jobsight.util.log_limit import LogLimit

logger = logging.getLogger(__name__)

#: Key of the request state: the names in the client's certificate, verified by TLS; None without.
CERTIFICATE_IN_STATE: Final = "certificate"
#: Key of the request state: when this certificate ends, in seconds since 1970; None without one. A
#: resumed session may have been verified before.
CERTIFICATE_END_IN_STATE: Final = "certificate_end"
#: Key of the request state: the :class:`Connection` of the request.
CONNECTION_IN_STATE: Final = "connection"
#: Connections that wait to be accepted; fewer if the kernel allows fewer.
_QUEUE: Final = 1024
#: Most connections accepted in one iteration of the event loop.
_MAX_ACCEPTS: Final = 64
#: Seconds that an idle connection stays open when the server stops.
_IDLE_TIMEOUT_STOPPING: Final = 0.5
_CLOSE: Final = (b"connection", b"close")

#: Descriptors for everything else: the store, its journal, outgoing connections, files, and
#: connections that are being closed.
_RESERVED_DESCRIPTORS: Final = 256
#: Bits of an IPv6 address that identify a network; a host chooses the others freely.
_IPV6_PREFIX: Final = 64
#: Loggers whose messages a client can cause by the request, and messages a minute per call site.
_LOG_LIMITS: Final = {
    "asyncio": 1,
    "jobsight.server.connections": 1,
    "jobsight.sams.receiver": 60,
    "jobsight.server.ingest": 60,
    "uvicorn.error": 10,
}


class ConnectionLimits(NamedTuple):
    """Limits on the connections of one server; times in seconds."""

    connections: int
    connections_per_address: int
    #: For the TLS handshake and the header, and between two requests.
    header_timeout: float
    body_timeout: float
    #: Without progress while the client reads a response.
    response_timeout: float


class Connection:
    """One open connection and its deadline."""

    __slots__ = (
        "_deadline",
        "_loop",
        "_table",
        "_timer",
        "abort",
        "address",
        "counted",
        "established",
        "on_deadline",
        "peer",
        "socket",
    )

    def __init__(
        self,
        table: ConnectionTable,
        sock: socket.socket,
        address: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.socket = sock
        #: Address and user of the other end; see jobsight.server.auth.peers.
        self.peer: tuple[str, int | None] | None = None
        #: The key of the limit per address.
        self.address = address
        #: False as soon as the connection is being closed for another one.
        self.counted = True
        #: The TLS handshake is complete, or there is none.
        self.established = False
        self._table = table
        self._loop = loop
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Closes the connection. Until the TLS handshake is complete there is no transport.
        self.abort: Callable[[], None] = self._shut_down
        self.on_deadline: Callable[[], None] = self._shut_down
        self.set_deadline(table.limits.header_timeout)

    def set_deadline(self, seconds: float | None) -> None:
        """Close the connection in so many seconds; None for never."""
        if seconds is None:
            self._deadline = None
            return
        self._deadline = self._loop.time() + seconds
        # A pending timer that expires earlier is extended then, which is cheaper than a new one.
        if self._timer is None or self._timer.when() > self._deadline:
            self._arm()

    def protect(self) -> None:
        """An authenticated request is in progress: do not close the connection for another."""
        self._table.protect(self)

    def unprotect(self) -> None:
        self._table.unprotect(self)

    def closed(self) -> None:
        """The descriptor is about to be closed."""
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._table.remove(self)

    def _arm(self) -> None:
        assert self._deadline is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._arm()
            return
        self._deadline = None
        self.on_deadline()

    def _shut_down(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The client was faster.
            pass


class ConnectionTable:
    """The open connections of a server by address. Used by the thread of the event loop only."""

    def __init__(self, limits: ConnectionLimits, proxies: Iterable[str] = ()) -> None:
        """``proxies`` are addresses or CIDR ranges without a limit per address."""
        self.limits = limits
        self._proxies = [
            ipaddress.ip_network(each, strict=False) for each in proxies if _is_network(each)
        ]
        self._any_proxy = "*" in proxies
        #: By descriptor, until it is closed.
        self._open: dict[int, Connection] = {}
        self._count = 0
        self._counts: dict[str, int] = {}
        #: By address, the oldest first: connections without an authenticated request.
        self._closable: dict[str, dict[Connection, None]] = {}
        #: Connections closed or refused because of the limits.
        self.refused = 0
        #: The server is stopping: each connection ends with its next response.
        self.draining = False

    def __len__(self) -> int:
        return self._count

    @property
    def accepts(self) -> int:
        """Connections to accept at once: of these, none may be closed before it is read."""
        return max(1, min(_MAX_ACCEPTS, self.limits.connections_per_address // 2))

    def admit(self, sock: socket.socket, host: str) -> Connection | None:
        """Add a connection, and close another one if necessary; None if there is no capacity."""
        address = address_key(host)
        if self._counts.get(address, 0) >= self.limits.connections_per_address and not (
            self._is_proxy(host)
        ):
            self._report(f"{self.limits.connections_per_address} connections from {address}")
            if not self._close_oldest(address):
                return None
        elif self._count >= self.limits.connections:
            self._report(f"{self.limits.connections} connections")
            largest = max(self._closable, key=lambda each: self._counts[each], default=None)
            if largest is None or not self._close_oldest(largest):
                return None
        connection = Connection(self, sock, address, asyncio.get_running_loop())
        self._open[sock.fileno()] = connection
        self._count += 1
        self._counts[address] = self._counts.get(address, 0) + 1
        self._closable.setdefault(address, {})[connection] = None
        return connection

    def find(self, descriptor: int) -> Connection:
        return self._open[descriptor]

    @property
    def handshakes(self) -> int:
        """Accepted connections whose TLS handshake is pending."""
        return sum(not connection.established for connection in self._open.values())

    def protect(self, connection: Connection) -> None:
        closable = self._closable.get(connection.address)
        if closable is not None:
            closable.pop(connection, None)
            if not closable:
                del self._closable[connection.address]

    def unprotect(self, connection: Connection) -> None:
        if connection.counted:
            self._closable.setdefault(connection.address, {})[connection] = None

    def remove(self, connection: Connection) -> None:
        self._release(connection)
        del self._open[connection.socket.fileno()]

    def _close_oldest(self, address: str) -> bool:
        closable = self._closable.get(address)
        if not closable:
            return False
        oldest = next(iter(closable))
        # Released now: the descriptor is closed in the next iteration of the event loop.
        self._release(oldest)
        oldest.abort()
        return True

    def _release(self, connection: Connection) -> None:
        if not connection.counted:
            return
        self.protect(connection)
        connection.counted = False
        self._count -= 1
        self._counts[connection.address] -= 1
        if not self._counts[connection.address]:
            del self._counts[connection.address]

    def _is_proxy(self, host: str) -> bool:
        if self._any_proxy:
            return True
        if not self._proxies:
            return False
        address = _parsed(host)
        return any(address in network for network in self._proxies)

    def _report(self, limit: str) -> None:
        self.refused += 1
        logger.warning(
            "the limit of %s is reached: the oldest without an authenticated request is closed",
            limit,
        )


class Listener(socket.socket):
    """A listening socket whose connections are admitted by a table."""

    table: ConnectionTable
    _spare: int | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._refuse_one():
                raise ConnectionAbortedError from None
            raise
        sock = _Accepted(self.family, self.type, self.proto, fileno=accepted.detach())
        sock.connection = self.table.admit(sock, address[0])
        if sock.connection is None:
            sock.close()
            # asyncio returns to its event loop, and then continues to accept.
            raise ConnectionAbortedError
        return sock, address

    def listen(self, backlog: int = 0, /) -> None:
        # asyncio's backlog is also the number of connections that it accepts at once.
        super().listen(max(_QUEUE, backlog))
        if self._spare is None:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()

    def _refuse_one(self) -> bool:
        """Out of descriptors: use the spare one to refuse a client, who would otherwise wait in
        the queue and keep the event loop busy. False if there is none."""
        if self._spare is None:
            return False
        os.close(self._spare)
        self._spare = None
        try:
            super().accept()[0].close()
        except OSError:
            pass
        try:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Another thread has taken it; asyncio waits a second before it accepts again.
            pass
        logger.error("out of file descriptors: new connections are refused")
        return True


class _Accepted(socket.socket):
    """A socket that is removed from the table when it is closed."""

    connection: Connection | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.closed()
            self.connection = None
        super().close()


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Whom a certificate, as ssl decodes it, is for: its common name, and its names of hosts. None
    without one."""
    if not certificate:
        return None
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    names = (value for name, value in subject if name == "commonName")
    others = (value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    return frozenset((*names, *others))


def _end_of(certificate: Mapping[str, Any] | None) -> float | None:
    """When a verified certificate ends; None without one."""
    return ssl.cert_time_to_seconds(certificate["notAfter"]) if certificate else None


class HttpProtocol(H11Protocol):
    """uvicorn's h11 protocol plus deadlines and the client certificate."""

    def __init__(self, *arguments: Any, table: ConnectionTable, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._table = table
        self._limits = table.limits
        self._phase: tuple[object, str] = (None, "header")
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = self._table.find(transport.get_extra_info("socket").fileno())
        self._connection.abort = transport.abort
        self._connection.established = True
        self._connection.on_deadline = self._close_late
        self.app_state = {
            **self.app_state,
            CERTIFICATE_IN_STATE: names_of(transport.get_extra_info("peercert")),
            CERTIFICATE_END_IN_STATE: _end_of(transport.get_extra_info("peercert")),
            CONNECTION_IN_STATE: self._connection,
        }
        if not self._connection.counted:
            transport.abort()
        elif self._table.draining:
            self.shutdown()

    def handle_events(self) -> None:
        super().handle_events()
        if self._table.draining:
            self._end_with_response()
        self._enter_phase()

    def shutdown(self) -> None:
        """The server stops: answer what is in progress, and a request that is already on its way
        on an idle connection, and tell the client that the connection ends with the response."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self._connection.set_deadline(self._header_timeout)
        else:
            self._end_with_response()

    def _end_with_response(self) -> None:
        # Only where the client can be told: it would send its next request on a closed connection.
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_started:
            others = [pair for pair in cycle.default_headers if pair != _CLOSE]
            cycle.default_headers = [*others, _CLOSE]

    @property
    def _header_timeout(self) -> float:
        limit = self._limits.header_timeout
        return min(_IDLE_TIMEOUT_STOPPING, limit) if self._table.draining else limit

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, unless its response has begun; drop the application's."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        self._connection.unprotect()
        super().on_response_complete()
        self._enter_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connection.set_deadline(self._limits.response_timeout)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._phase = (None, "")
        self._enter_phase()

    def _enter_phase(self) -> None:
        """Set the deadline if the state of the request has changed; data alone extends nothing."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            name, seconds = "header", self._header_timeout
        elif cycle.more_body:
            name, seconds = "body", self._limits.body_timeout
        else:
            name, seconds = "response", None
        if self._phase == (cycle, name):
            return
        self._phase = (cycle, name)
        if not self.flow.write_paused:
            self._connection.set_deadline(seconds)

    def _close_late(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent != self._unsent:
            # The client is still reading the response.
            self._unsent = unsent
            self._connection.set_deadline(self._limits.response_timeout)
            return
        # Not close(), which waits until the client has read everything.
        self.transport.abort()


class RequestFraming:
    """Refuses requests whose length two programs may read differently (RFC 9112, section 6.3)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            names = [name for name, _ in scope["headers"]]
            if b"transfer-encoding" in names and b"content-length" in names:
                sentence = "a request with Transfer-Encoding and Content-Length is refused"
                # What follows on this connection may be a part of the body.
                refusal = problem_reply(400, sentence, {"Connection": "close"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def uvicorn_config(app: ASGIApp, table: ConnectionTable, **options: Any) -> uvicorn.Config:
    """The settings of a uvicorn server for a :class:`Listener` with this table."""
    return uvicorn.Config(
        RequestFraming(app),
        http=functools.partial(HttpProtocol, table=table),  # type: ignore[arg-type]
        # Only asyncio calls Listener.accept.
        loop="asyncio",
        ws="none",
        backlog=table.accepts,
        # Its loggers use the handler of the command.
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        **options,
    )


def connection_of(scope: Scope) -> Connection | None:
    """The connection of a request; None if the application runs without :class:`HttpProtocol`."""
    connection: Connection | None = scope.get("state", {}).get(CONNECTION_IN_STATE)
    return connection


@contextmanager
def limited_log() -> Iterator[None]:
    """Limit the messages that a client can cause, while the server runs."""
    with ExitStack() as stack:
        for name, messages in _LOG_LIMITS.items():
            limited, limit = logging.getLogger(name), LogLimit(messages)
            limited.addFilter(limit)
            stack.callback(limited.removeFilter, limit)
        yield


def fit_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    """Raise the soft limit of file descriptors; fewer connections where the hard one is too low."""
    wanted = limits.connections + _RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    connections = max(_MAX_ACCEPTS, soft - _RESERVED_DESCRIPTORS)
    logger.warning(
        "%d file descriptors suffice for %d connections only; expected LimitNOFILE=%d",
        soft, connections, wanted,
    )  # fmt: skip
    return limits._replace(connections=connections)


def address_key(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in host:
        return host
    address = _parsed(host)
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        # uvicorn also accepts names, which no TCP connection has for an address.
        return False
    return True
