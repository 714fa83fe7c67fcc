"""Who may see anything at all: the middleware before every page, file and API route.

A browser proves itself with a cookie, a program with ``Authorization: Bearer``. The cookie opens
what is read only: a page of another server on the same machine shares our site, and a form there
must not be able to write here. An agent's token belongs to its cluster and opens the door for its
batches, nothing else.

The clusters' tokens as a running server knows them: read every few seconds, not per request.

One connection of the server: knows the client's certificate, and waits for nobody for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import cast
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.store.store import Store
from jobsight.store.tokens import ClusterToken, Tokens, digest_of
from jobsight.transport.running_server import cookie_value, same

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
#: Told to everybody: that there is a server, and what the sign-in page needs to look like one.
PUBLIC = frozenset({"/healthz", "/sign-in", "/static/style.css", "/static/icon.svg"})

#: Where batches go, the one place that the token of a cluster opens.
BATCHES = "/api/v1/batches"
#: The token of a cluster that a request was let in with; absent for the server's own.
TOKEN_IN_SCOPE = "jobsight.token"
#: Seconds after which a program may try again when the store was busy or full.
RETRY_AFTER = 5

_SAFE = frozenset({"GET", "HEAD"})
_FORM_LIMIT = 4096
#: How much of a refused body is read, in bytes and seconds. A connection that is closed with bytes
#: unread is reset, and the sender may never see why.
_DRAINED = 32 * 2**20
_DRAIN_TIME = 10.0
#: On every answer, whoever gives it.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

#: The same as they go over the wire.
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_KEPT, _NOT_KEPT = (b"cache-control", b"no-cache"), (b"cache-control", b"no-store")

#: Renders the sign-in page with a message.
SignInPage = Callable[[str], str]


class AccessControl:
    """Lets a request pass when it comes to a name of ours and carries the token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        keyring: TokenCache,
        hosts: Iterable[str],
        sign_in_page: SignInPage,
        delay: float = 0.25,
    ) -> None:
        self._app = app
        self._token = token
        self._keyring = keyring
        self._session = cookie_value(token)
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK_NAMES, *hosts))
        self._sign_in_page = sign_in_page
        self._delay = delay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # Nothing here speaks another protocol; one that came later would need its own check.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Files may be kept but must be asked for again; what a job did is not kept at all.
                static = message["status"] in (200, 304) and scope["path"].startswith("/static/")
                given = {name for name, _ in message["headers"]}
                message["headers"] += [
                    header
                    for header in (*_HEADERS, _KEPT if static else _NOT_KEPT)
                    if header[0] not in given
                ]
            await send(message)

        answer = await self._check(scope, receive)
        if answer is not None and scope["path"] == BATCHES:
            await drain(receive)
        await (answer or self._app)(scope, receive, send_guarded)

    async def _check(self, scope: Scope, receive: Receive) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # A page of the internet can make its name point at 127.0.0.1; it cannot change this line.
        if host_name(host).lower() not in self._hosts:
            return _refusal(400, f"this server does not answer to the name {host[:80]!r}")
        path, method = scope["path"], scope["method"]
        if path == "/sign-in":
            return await self._sign_in(Request(scope, receive), port_of(host))
        if path in PUBLIC:
            return None
        if method in _SAFE and not path.startswith("/api/"):
            given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
            if given is not None:
                return await self._enter(scope, given, _without_token(scope), port_of(host))
        return await self._judge(scope, headers, port_of(host))

    async def _judge(self, scope: Scope, headers: Headers, port: str) -> Response | None:
        path, method = scope["path"], scope["method"]
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and given:
            if same(given.strip(), self._token):
                return None
            return await self._judge_agent(scope, given.strip())
        cookie = _cookie(headers.get("cookie", ""), cookie_name(port))
        if cookie is not None and same(cookie, self._session):
            if method in _SAFE:
                return None
            return self._unauthorised(
                path, "writing needs the token as Authorization: Bearer, not a browser's cookie"
            )
        return self._unauthorised(path, "")

    async def _judge_agent(self, scope: Scope, given: str) -> Response | None:
        try:
            token = await self._keyring.find(given)
        except StoreError as error:
            return _refusal(503, str(error), {"Retry-After": str(RETRY_AFTER)})
        refusal = "the token is wrong" if token is None else token.refusal(time.time_ns())
        if token is None or refusal is not None:
            await asyncio.sleep(self._delay)
            return self._unauthorised(scope["path"], refusal or "")
        if (scope["path"], scope["method"]) != (BATCHES, "POST"):
            return _refusal(403, f"the token {token.name} may send batches and nothing else")
        scope[TOKEN_IN_SCOPE] = token
        return None

    def _unauthorised(self, path: str, message: str) -> Response:
        if path.startswith(("/api/", "/static/")):
            sentence = message or "the token of the server is needed: Authorization: Bearer TOKEN"
            return _refusal(401, sentence, {"WWW-Authenticate": "Bearer"})
        return HTMLResponse(self._sign_in_page(message), 401, {"WWW-Authenticate": "Bearer"})

    async def _sign_in(self, request: Request, port: str) -> Response:
        if request.method in _SAFE:
            return HTMLResponse(self._sign_in_page(""))
        if request.method != "POST":
            return _refusal(405, "the sign-in takes GET and POST", {"Allow": "GET, HEAD, POST"})
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _FORM_LIMIT:
                return _refusal(413, "the form of the sign-in is a few lines long, not more")
        form = dict(parse_qsl(body.decode("utf-8", "replace")))
        return await self._enter(request.scope, form.get("token", "").strip(), "/", port)

    async def _enter(self, scope: Scope, given: str, target: str, port: str) -> Response:
        if not same(given, self._token):
            await asyncio.sleep(self._delay)
            page = self._sign_in_page("This is not the token of this server.")
            return HTMLResponse(page, 401, {"WWW-Authenticate": "Bearer"})
        # The clean address: the token stays neither in the history nor in a copied link.
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            cookie_name(port),
            self._session,
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return answer


async def drain(receive: Receive) -> None:
    """Read the rest of a body that nobody wants, within bounds, so that the answer is heard."""
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_TIME):
            while size < _DRAINED:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                size += len(message.get("body", b""))
    except TimeoutError:
        return


def host_name(host: str) -> str:
    """The name in a Host header, without the port; brackets belong to an IPv6 address."""
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.rpartition(":")[0] or host


def port_of(host: str) -> str:
    port = host.removeprefix(host_name(host)).removeprefix(":")
    return port if port.isdecimal() else "80"


def cookie_name(port: str) -> str:
    """Cookies do not know ports: two servers on one machine would sign each other out."""
    return f"jobsight-{port}"


def _cookie(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return found.value if found else None


def _without_token(scope: Scope) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != "token"])
    # The raw path keeps its escapes. A second slash would make the rest another server's name.
    path = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/\\")
    return f"{path}?{query}" if query else path


def _refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode({"error": sentence})
    return Response(body, status, headers, "application/json")


#: Seconds after which a token that was revoked by another process is refused here, too.
REVOKED_WITHIN = 5.0
#: Uses of all tokens are written together, once in so many seconds.
_USES_EVERY = 60.0


class TokenCache:
    """Finds the cluster of a token, and remembers when each was used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, ClusterToken] = {}
        self._read_at = -REVOKED_WITHIN
        # One question at a time: guesses then cost those who guess, and not the store.
        self._asking = asyncio.Lock()
        self._uses: dict[int, int] = {}
        self._uses_written = time.monotonic()
        self._mutex = threading.Lock()

    async def find(self, given: str) -> ClusterToken | None:
        """The token as it stands in the store; a new one is known at once."""
        digest = digest_of(given)
        if time.monotonic() - self._read_at >= REVOKED_WITHIN:
            async with self._asking:
                if time.monotonic() - self._read_at >= REVOKED_WITHIN:
                    self._known = await run_in_threadpool(Tokens(self._store.database).by_digest)
                    self._read_at = time.monotonic()
        if digest not in self._known:
            async with self._asking:
                found = await run_in_threadpool(Tokens(self._store.database).find, digest)
            if found is not None:
                self._known[digest] = found
        return self._known.get(digest)

    def note_use(self, token: ClusterToken) -> None:
        """A batch has been stored for whoever showed it; now and then that is written down."""
        with self._mutex:
            self._uses[token.id] = time.time_ns() // SECOND * SECOND
            if time.monotonic() - self._uses_written < _USES_EVERY:
                return
            self._uses_written = time.monotonic()
        self.write_uses()

    def write_uses(self) -> None:
        """Write down when tokens were used; a store that cannot take it gets it later."""
        with self._mutex:
            uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            Tokens(self._store.database).note_used(uses)
        except StoreError:
            with self._mutex:
                self._uses = uses | self._uses


#: In the state of a request: whether the client showed a certificate, which TLS has verified.
CERTIFICATE_IN_STATE = "certificate"
#: Seconds for the head of the first request.
_HEAD_TIME = 30.0


class HttpProtocol(H11Protocol):
    """uvicorn's connection; that one says nothing of certificates and gives a head all the time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown = bool(transport.get_extra_info("peercert"))
        self.app_state = {**self.app_state, CERTIFICATE_IN_STATE: shown}
        self._head_timer = self.loop.call_later(_HEAD_TIME, self._close_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer.cancel()
        super().connection_lost(exc)

    def _close_silent(self) -> None:
        if cast(object, self.cycle) is None:
            self.transport.close()
