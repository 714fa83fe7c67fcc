"""A little HTTP over TCP or a unix socket, with the standard library."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from jobsight.errors import ConfigError
from jobsight.scheduler.errors import SourceError

#: A reply may be long; one that never ends must not fill the memory.
LARGEST = 2**31


class Reply(NamedTuple):
    status: int
    body: bytes


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
    """One GET; :class:`SourceError` where no reply comes."""
    connection = _connection(address, timeout)
    prefix = "" if address.scheme == "unix" else address.path
    try:
        connection.request("GET", prefix + target, headers=dict(headers))
        with connection.getresponse() as response:
            body = response.read(LARGEST)
            return Reply(response.status, body)
    except TimeoutError:
        raise SourceError(f"slurmrestd gave no answer within {timeout:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SourceError(f"slurmrestd at {_shown(address)} does not answer: {reason}") from None
    finally:
        connection.close()


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
