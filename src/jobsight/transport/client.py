"""HTTP client of the server side, on httpx2: slurmrestd, OpenSearch, accounting services, PromQL.

:class:`HttpClient` sends requests below one address, over TCP, TLS or a Unix socket. Every reply
is bounded: each read by a timeout, a complete reply also by its size and by its total time.
Redirects are not followed, and compressed replies are not requested, so a small reply cannot
expand. Every failure is an :class:`HttpError` whose text is the reason alone; the caller adds
which service it is.

The agent does not import this module. Its client is :mod:`jobsight.transport.http`, which needs
neither httpx2 nor the memory for it.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2 as httpx

from jobsight import __version__
from jobsight.errors import ConfigError, JobsightError
from jobsight.util.urls import without_credentials

#: Bytes of a complete reply, unless the caller sets another limit.
MAX_REPLY_SIZE: Final = 64 * 2**20
#: A complete reply may take this many read timeouts.
_TOTAL_TIMEOUT_FACTOR: Final = 10


class HttpError(JobsightError):
    """No complete reply was received. The text is the reason, without the address."""


class Address(NamedTuple):
    """Where a service listens."""

    #: Base URL of all requests.
    url: str
    #: Path of the Unix socket, or None for TCP.
    socket: str | None
    #: For messages: without credentials.
    shown: str

    @classmethod
    def parse(
        cls, setting: str, text: str, *, expected: str = "https://HOST:PORT", unix: bool = False
    ) -> Address:
        """Parse the value of a setting; ``unix`` also permits ``unix:/PATH`` and ``/PATH``."""
        if unix and text.startswith(("unix:", "/")):
            path = text.removeprefix("unix://").removeprefix("unix:")
            if path.startswith("/"):
                return cls("http://localhost", path, path)
        try:
            parts = urlsplit(text)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                # The library is stricter than urlsplit and would raise its own error later.
                httpx.URL(text)
                return cls(text.rstrip("/"), None, parts.netloc.rpartition("@")[2])
        except (ValueError, httpx.InvalidURL):
            pass
        shown = without_credentials(text)
        raise ConfigError(f"{setting}: {shown!r} is not an address; expected {expected}")


class Reply(NamedTuple):
    """A complete reply."""

    status: int
    #: The reason phrase of the status line.
    phrase: str
    #: By name in lower case.
    headers: Mapping[str, str]
    body: bytes


class StreamedReply:
    """A reply whose body is read piece by piece; iterate over it once, or close it."""

    def __init__(self, response: httpx.Response, timeout: float) -> None:
        self.status = response.status_code
        self.phrase = response.reason_phrase
        #: By name in lower case.
        self.headers = dict(response.headers)
        self._response = response
        self._timeout = timeout

    def __iter__(self) -> Iterator[bytes]:
        chunks = self._response.iter_raw()
        try:
            while True:
                with _explained(self._timeout):
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                yield chunk
        finally:
            self.close()

    def read(self, max_size: int = MAX_REPLY_SIZE) -> bytes:
        """The complete body."""
        deadline = time.monotonic() + _TOTAL_TIMEOUT_FACTOR * self._timeout
        body = bytearray()
        with closing(self):
            for chunk in self:
                body += chunk
                if len(body) > max_size:
                    raise HttpError(f"the reply is larger than {max_size} bytes")
                if time.monotonic() > deadline:
                    raise HttpError("the reply is too slow")
        return bytes(body)

    def close(self) -> None:
        self._response.close()


class HttpClient:
    """Sends requests to one service; safe to share between threads."""

    def __init__(
        self,
        address: Address,
        *,
        timeout: float,
        connect_timeout: float | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        keep_alive: bool = True,
        use_environment: bool = False,
    ) -> None:
        """``timeout`` limits each read and write in seconds. ``use_environment`` honours the proxy
        variables and ``.netrc``."""
        self.address = address
        self._timeout = timeout
        verify: Any = tls if tls is not None else ssl.create_default_context()
        limits = httpx.Limits(max_keepalive_connections=None if keep_alive else 0)
        transport = None
        if address.socket is not None:
            transport = httpx.HTTPTransport(uds=address.socket, limits=limits, trust_env=False)
        self._client = httpx.Client(
            base_url=address.url,
            auth=credentials,
            headers={"User-Agent": f"jobsight/{__version__}", "Accept-Encoding": "identity"},
            verify=verify,
            timeout=httpx.Timeout(timeout, connect=connect_timeout or timeout),
            limits=limits,
            transport=transport,
            trust_env=use_environment,
        )

    def request(
        self,
        method: str,
        target: str = "",
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        max_size: int = MAX_REPLY_SIZE,
    ) -> Reply:
        """Send a request and read the complete reply. ``target`` is a path below the address, or a
        complete URL."""
        reply = self.stream(method, target, content=content, headers=headers)
        return Reply(reply.status, reply.phrase, reply.headers, reply.read(max_size))

    def stream(
        self,
        method: str,
        target: str = "",
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> StreamedReply:
        """Send a request and return as soon as the headers of the reply are there."""
        with _explained(self._timeout):
            if self.address.socket is not None:
                # httpcore2 leaves its socket open when it cannot connect.
                os.stat(self.address.socket)
            request = self._client.build_request(method, target, content=content, headers=headers)
            response = self._client.send(request, stream=True)
        return StreamedReply(response, self._timeout)

    def close(self) -> None:
        self._client.close()


def tls_context(
    ca: str | None = None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Trust the authorities of a file or a hashed directory, or those of the system, and present
    a certificate if one is given."""
    directory = ca is not None and os.path.isdir(ca)
    try:
        context = ssl.create_default_context(
            cafile=None if directory else ca, capath=ca if directory else None
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ca}: expected CA certificates (PEM): {_reason(error)}") from None
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key, _no_passphrase)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{certificate} and {key or 'the key in it'} cannot be used as certificate and "
                f"key: {_reason(error)}"
            ) from None
    return context


def _no_passphrase() -> bytes:
    raise ValueError("the key is protected by a passphrase")


@contextmanager
def _explained(timeout: float) -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException:
        raise HttpError(f"no answer within {timeout:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
        raise HttpError(_reason(error)) from None


def _reason(error: BaseException) -> str:
    """The words of the system or of TLS, which httpx2 and httpcore2 wrap."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())[:200] or type(error).__name__
