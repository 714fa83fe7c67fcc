"""The server that takes the batches of this node: its address, its token, its papers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec

from jobsight.agent.delivery import Answer
from jobsight.agent.plain_http import Reply, post
from jobsight.config import paths
from jobsight.errors import JobsightError
from jobsight.server.record import read_record
from jobsight.server.tokens import TokenError, read_token

if TYPE_CHECKING:
    from jobsight.agent.client_tls import ClientTls
    from jobsight.config.settings import Settings

logger = logging.getLogger("jobsight.agent")

#: Answers after which the same batch may be taken later.
_TRY_LATER: Final = frozenset({401, 403, 404, 408, 425, 429})
#: Answers to which a token that was replaced in its file may be the remedy.
_REFUSED: Final = (401, 403)


class _Receipt(msgspec.Struct):
    status: Literal["stored", "duplicate"]


class _Refusal(msgspec.Struct):
    error: str


class HttpTarget:
    """A receiver behind HTTP or HTTPS."""

    def __init__(
        self, url: str, token_file: Path, *, tls: ClientTls | None = None, timeout: float = 10.0
    ) -> None:
        try:
            self._parts = urlsplit(url)
            named = bool(self._parts.hostname) and self._parts.port != 0
            right = named and self._parts.scheme in ("http", "https")
        except ValueError:
            right = False
        if not right:
            raise JobsightError(f"{url!r} is not the address of a server; right: http://HOST:PORT")
        self._token_file = token_file
        self._token = read_token(token_file)
        self._tls = tls
        self._timeout = timeout
        if self._parts.scheme == "https" and tls is None:
            # Imported only where it is needed: TLS is a fifth of the agent's memory.
            from jobsight.agent.client_tls import ClientTls

            self._tls = ClientTls()

    def send(self, data: bytes) -> Answer:
        try:
            reply = self._post(data)
            if reply.status in _REFUSED and self._token_is_new():
                reply = self._post(data)
        except OSError as error:
            return Answer(stored=False, reason=f"the server does not answer: {error}")
        if reply.status == 200:
            if _decoded(reply.body, _Receipt) is not None:
                return Answer(stored=True)
            # A reply that was cut, or the page of some proxy: only a receipt says it is stored.
            return Answer(stored=False, reason="the server answered 200 without a receipt")
        text = reply.body.decode(errors="replace")[:300]
        # Pages of a proxy say nothing of the batch, unless that it is too large for it.
        spoken = reply.status == 413 or _decoded(reply.body, _Refusal) is not None
        final = 400 <= reply.status < 500 and reply.status not in _TRY_LATER and spoken
        return Answer(
            stored=False,
            refused=final,
            reason=f"the server answered {reply.status}: {text}",
            wait=reply.retry_after,
        )

    def _token_is_new(self) -> bool:
        """Read the token again: a rotated one is taken up without a restart."""
        before = self._token
        try:
            self._token = read_token(self._token_file)
        except TokenError as error:
            logger.warning("%s", error)
        return self._token != before

    def _post(self, data: bytes) -> Reply:
        path = self._parts.path.rstrip("/") + "/api/v1/batches"
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/vnd.jobsight.batch",
        }
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return post(host, port or 80, path, headers, data, self._timeout)
        assert self._tls is not None
        wrap = self._tls.wrapping(host)
        return post(host, port or 443, path, headers, data, self._timeout, wrap)


def server_target(settings: Settings, location: str) -> HttpTarget | None:
    """The server of the settings, else the one that runs for the store; None without either."""
    own = settings.agent
    if settings.server.url:
        file = settings.server.token_file or str(paths.token_file(location))
        tls = None
        if settings.server.url.startswith("https:"):
            from jobsight.agent.client_tls import ClientTls

            tls = ClientTls(own.tls_ca, own.tls_certificate, own.tls_key)
        return HttpTarget(settings.server.url, Path(file).expanduser(), tls=tls)
    record = read_record(paths.server_file(location))
    if record is None:
        return None
    tls = None
    if record.certificate is not None:
        from jobsight.agent.client_tls import ClientTls

        # Its certificate is not made out to a name of loopback, but we know which one it is.
        tls = ClientTls(record.certificate, own.tls_certificate, own.tls_key, pinned=True)
    return HttpTarget(record.url, Path(record.token_file), tls=tls)


def _decoded(body: bytes, kind: type[_Receipt] | type[_Refusal]) -> object | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        return None
