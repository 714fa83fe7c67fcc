"""Headers of every reply, refusals, and the Host header."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from jobsight.server.problems import problem_reply

#: Retry-After in seconds when the store is busy or full.
RETRY_AFTER: Final = 5
#: Headers of every reply.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

#: uri-host [":" port] (RFC 9112, section 3.2), without user names and escapes.
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{0,5}))?")
#: Limits on reading a refused body. If a connection is closed with unread bytes, it is reset, and
#: the client may never receive the reply.
_DRAIN_BYTES = 32 * 2**20
_DRAIN_TIMEOUT = 10.0
#: Seconds within which a form must arrive.
_FORM_TIMEOUT = 5.0


def refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """A reply with one sentence, as the API writes errors."""
    return problem_reply(status, sentence, headers)


async def drain(receive: Receive) -> int:
    """Read and discard the rest of a body, within limits, so that the client gets the reply.

    Returns the bytes read.
    """
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_TIMEOUT):
            while size < _DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    break
    except TimeoutError:
        pass
    return size


async def read_form(request: Request, limit: int) -> tuple[bytes, Response | None]:
    """The body of a form within limits of size and time, or a refusal."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_TIMEOUT):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    return b"", refusal(413, f"the form is larger than {limit} bytes")
    except TimeoutError:
        sentence = f"the form was not complete after {_FORM_TIMEOUT:g} seconds"
        return b"", refusal(408, sentence, {"Connection": "close"})
    except ClientDisconnect:
        return b"", refusal(400, "the connection was closed within the form")
    return body, None


def host_name(host: str) -> str:
    """The name in a Host header without the port, an IPv6 address with its brackets; empty if the
    header is invalid."""
    match = _HOST.fullmatch(host)
    return match["name"] if match else ""


def port_of(host: str, scheme: str = "http") -> str:
    match = _HOST.fullmatch(host)
    return (match["port"] if match else None) or ("443" if scheme == "https" else "80")
