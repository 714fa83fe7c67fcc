"""``sams.output.Collectd``: values to collectd's unixsock plugin."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from typing import Annotated, ClassVar, Final

import msgspec

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.mapping import Mapper, MappingOptions, fill

#: A reply of collectd is one line.
_MAX_REPLY: Final = 64 * 1024


class CollectdOptions(MappingOptions, kw_only=True):
    socket: str = "/run/collectd.socket"
    #: The interval of the values in seconds, as reported to collectd.
    interval: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 30.0
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0

    def __post_init__(self) -> None:
        Mapper(self)


class CollectdRefused(ConnectionError):
    """collectd rejected a value."""


def clean_identifier(text: str) -> str:
    """A value as part of an identifier host/plugin/type, without slashes."""
    return re.sub(r"[/\x00-\x1f\x7f\ud800-\udfff]", "_", text)


def quoted(identifier: str) -> str:
    escaped = identifier.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class CollectdOutput:
    """Sends PUTVAL over one connection, which is reopened after a restart of collectd."""

    Options: ClassVar[type[msgspec.Struct]] = CollectdOptions

    def __init__(
        self,
        options: CollectdOptions,
        view: JobView,
        name: str = "sams.output.Collectd",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.mapper = Mapper(options)
        self.refused = 0
        self._options = options
        self._clock = clock
        self._connection: socket.socket | None = None

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        now = int(self._clock())
        refusal = ""
        for value in self.mapper.values(view, sampler, document):
            identifier = re.sub(
                r"[\x00-\x1f\x7f]", "_", fill(value.template, value.fields, clean_identifier)
            )
            reply = self._request(
                f"PUTVAL {quoted(identifier)} interval={self._options.interval:g} "
                f"{now}:{value.number!r}\n"
            )
            if not reply.startswith("0 "):
                self.refused += 1
                refusal = refusal or f"collectd refused {identifier}: {reply.strip()}"
        if refusal:
            raise CollectdRefused(refusal)

    def _request(self, line: str) -> str:
        reused = self._connection is not None
        try:
            return self._exchange(line)
        except OSError:
            self.close()
            if not reused:
                raise
        try:
            return self._exchange(line)
        except OSError:
            self.close()
            raise

    def _exchange(self, line: str) -> str:
        if self._connection is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            connection.settimeout(self._options.timeout)
            try:
                connection.connect(self._options.socket)
            except OSError:
                connection.close()
                raise
            self._connection = connection
        self._connection.sendall(line.encode("utf-8", "replace"))
        reply = b""
        while not reply.endswith(b"\n") and len(reply) < _MAX_REPLY:
            received = self._connection.recv(4096)
            if not received:
                raise ConnectionError("collectd closed the connection")
            reply += received
        return reply.decode("utf-8", "replace")

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """All values were sent by ``store``."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
