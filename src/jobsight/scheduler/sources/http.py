"""A little HTTP over TCP or a unix socket, with the standard library."""

from __future__ import annotations

import functools
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from jobsight.errors import ConfigError
from jobsight.scheduler.errors import SourceError

_CHUNK = 1 << 18

Said = Callable[[], AbstractContextManager[None]]


class Body:
    """What a reply holds, while it comes; the connection is closed at its end."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, said: Said
    ) -> None:
        self._connection = connection
        self._response = response
        self._said = said

    def __iter__(self) -> Iterator[bytes]:
        try:
            while True:
                with self._said():
                    chunk = self._response.read(_CHUNK)
                if not chunk:
                    return
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Reply(NamedTuple):
    status: int
    body: Body


class Address(NamedTuple):
    """Where slurmrestd listens: ``unix:/run/slurmrestd.socket``, ``http://host:6820``."""

    scheme: str
    host: str
    port: int | None
    path: str

    @classmethod
    def parse(cls, text: str) -> Address:
        if text.startswith(("unix:", "/")):
            path = text.removeprefix("unix://").removeprefix("unix:")
            if path.startswith("/"):
                return cls("unix", "localhost", None, path)
        parts = urlsplit(text)
        try:
            if parts.scheme in ("http", "https") and parts.hostname:
                return cls(parts.scheme, parts.hostname, parts.port, parts.path.rstrip("/"))
        except ValueError:
            pass
        raise ConfigError(
            f"scheduler.rest.url: {text!r} is no address; right would be "
            "unix:/run/slurmrestd.socket or http://host:6820"
        )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise


def get(address: Address, target: str, headers: Mapping[str, str], timeout: float) -> Reply:
    """One GET; :class:`SourceError` where no reply comes, or where it breaks off."""
    connection = _connection(address, timeout)
    prefix = "" if address.scheme == "unix" else address.path
    said = functools.partial(_explained, address, timeout)
    try:
        with said():
            connection.request("GET", prefix + target, headers=dict(headers))
            response = connection.getresponse()
    except BaseException:
        connection.close()
        raise
    return Reply(response.status, Body(connection, response, said))


@contextmanager
def _explained(address: Address, timeout: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise SourceError(f"slurmrestd gave no answer within {timeout:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SourceError(f"slurmrestd at {_shown(address)} does not answer: {reason}") from None


def _connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    if address.scheme == "unix":
        return _UnixConnection(address.path, timeout)
    if address.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout, context=context
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


def _shown(address: Address) -> str:
    if address.scheme == "unix":
        return address.path
    return f"{address.host}:{address.port}" if address.port else address.host
