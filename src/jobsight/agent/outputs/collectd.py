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

#: An answer is one line; whoever sends more is not collectd.
_LONGEST_ANSWER: Final = 64 * 1024


class CollectdOptions(MappingOptions, kw_only=True):
    socket: str = "/run/collectd.socket"
    #: Seconds between two values, as collectd is told.
    interval: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 30.0
    timeout: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0

    def __post_init__(self) -> None:
        Mapper(self)


class CollectdRefused(ConnectionError):
    """collectd understood the line and did not want it."""


def clean_identifier(text: str) -> str:
    """A value inside an identifier host/plugin/type: a slash would shift the parts."""
    return re.sub(r"[/\x00-\x1f\x7f\ud800-\udfff]", "_", text)


def quoted(identifier: str) -> str:
    escaped = identifier.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class CollectdOutput:
    """Speaks PUTVAL over one connection, which is made anew when collectd was restarted."""

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
            answer = self._ask(
                f"PUTVAL {quoted(identifier)} interval={self._options.interval:g} "
                f"{now}:{value.number!r}\n"
            )
            if not answer.startswith("0 "):
                self.refused += 1
                refusal = refusal or f"collectd refused {identifier}: {answer.strip()}"
        if refusal:
            raise CollectdRefused(refusal)

    def _ask(self, line: str) -> str:
        kept = self._connection is not None
        try:
            return self._exchange(line)
        except OSError:
            self.close()
            if not kept:
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
        answer = b""
        while not answer.endswith(b"\n") and len(answer) < _LONGEST_ANSWER:
            received = self._connection.recv(4096)
            if not received:
                raise ConnectionError("collectd closed the connection")
            answer += received
        return answer.decode("utf-8", "replace")

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """Everything has been sent as it came."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
