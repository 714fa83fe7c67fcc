"""``sams.output.Carbon``: values to Graphite's Carbon in the plaintext protocol."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import Mapper, MappingOptions, Value, fill
from jobsight.errors import ConfigError

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Address = tuple[str, int]


class CarbonOptions(MappingOptions, kw_only=True):
    server: str | None = None
    port: Port = 2003
    #: Each is "host:port" or "host". The default without ``server`` and ``servers`` is localhost.
    servers: list[str] | None = None
    protocol: Literal["udp", "tcp"] = "udp"
    #: Seconds to connect and to send.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0

    def __post_init__(self) -> None:
        Mapper(self)
        self.addresses()

    def addresses(self) -> list[Address]:
        """The servers. Unlike SAMS, values are not sent to localhost in addition."""
        given = list(self.servers or [])
        if self.server is not None:
            given.append(self.server if ":" in self.server else f"{self.server}:{self.port}")
        if not given:
            given = [f"localhost:{self.port}"]
        return list(dict.fromkeys(_address(text, self.port) for text in given))


def _address(text: str, default_port: int) -> Address:
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^\s:]+))(?::(\d{1,5}))?", text.strip())
    port = int(match[3]) if match and match[3] else default_port
    if match is None or not 1 <= port <= 65535:
        raise ConfigError(
            f"servers: {text!r} is not a server; expected host:2003 or [address]:2003"
        )
    return match[1] or match[2], port


def clean_name(text: str) -> str:
    """A value as part of a metric path, in which blanks and slashes have a meaning."""
    return re.sub(r"[^\w.:\-+=@~]", "_", text, flags=re.ASCII)


class CarbonOutput:
    """Sends each value to every server; an unreachable server does not affect the others."""

    Options: ClassVar[type[msgspec.Struct]] = CarbonOptions

    def __init__(
        self,
        options: CarbonOptions,
        view: JobView,
        name: str = "sams.output.Carbon",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.mapper = Mapper(options)
        self._clock = clock
        self._timeout = options.timeout
        self._tcp = options.protocol == "tcp"
        self._addresses = options.addresses()
        self._sockets: dict[Address, socket.socket] = {}

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        now = int(self._clock())
        lines = [
            f"{_metric_path(value)} {value.number!r} {now}\n"
            for value in self.mapper.values(view, sampler, document)
        ]
        failed = []
        for address in self._addresses if lines else []:
            try:
                self._send(address, lines)
            except OSError as error:
                self._disconnect(address)
                failed.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        if failed:
            raise ConnectionError("Carbon cannot be reached at " + "; ".join(failed))

    def _send(self, address: Address, lines: list[str]) -> None:
        reused = address in self._sockets
        try:
            self._transmit(self._sockets.get(address) or self._connect(address), lines)
        except OSError:
            if not reused:
                raise
            # The server may have closed the old connection; try a new one.
            self._disconnect(address)
            self._transmit(self._connect(address), lines)

    def _transmit(self, connection: socket.socket, lines: list[str]) -> None:
        if self._tcp:
            connection.sendall("".join(lines).encode())
            return
        for line in lines:
            # One value per datagram, as in SAMS, so that none exceeds the packet size.
            connection.send(line.encode())

    def _connect(self, address: Address) -> socket.socket:
        if self._tcp:
            connection = socket.create_connection(address, self._timeout)
        else:
            candidates = socket.getaddrinfo(*address, 0, socket.SOCK_DGRAM)
            family, kind, protocol, _, target = candidates[0]
            connection = socket.socket(family, kind, protocol)
            connection.settimeout(self._timeout)
            connection.connect(target)
        self._sockets[address] = connection
        return connection

    def _disconnect(self, address: Address) -> None:
        connection = self._sockets.pop(address, None)
        if connection is not None:
            connection.close()

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """All values were sent by ``store``."""

    def close(self) -> None:
        for address in list(self._sockets):
            self._disconnect(address)


def _metric_path(value: Value) -> str:
    # The template itself may contain a blank, which would end the metric path.
    return re.sub(r"\s", "_", fill(value.template, value.fields, clean_name))
