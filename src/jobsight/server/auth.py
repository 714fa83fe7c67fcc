"""Authentication: the middleware in front of every page, file and API route.

:class:`AccessControl` is the middleware. A browser signs in with the token in a form or with a
one-time code in the URL (:class:`SignInCodes`), then authenticates with a cookie, a program with
``Authorization: Bearer``. The cookie permits reading only, because a page of another server on the
same host is same-site with this one, and a form there must not be able to write here. A cluster's
token permits sending that cluster's batches and nothing else; :class:`TokenCache` looks it up.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobsight.access.viewer import SERVER_TOKEN, VIEWER_IN_SCOPE
from jobsight.errors import StoreError
from jobsight.model import SECOND
from jobsight.server.connections import connection_of
from jobsight.server.problems import problem_reply
from jobsight.store.store import Store
from jobsight.store.tokens import ClusterToken, Tokens, digest_of
from jobsight.transport.running_server import cookie_value, same

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
#: Paths that need no token: the health check, and the sign-in page with its files.
PUBLIC = frozenset({"/healthz", "/sign-in", "/static/style.css", "/static/icon.svg"})

#: The ingest route, the only one that a cluster's token permits.
BATCHES = "/api/v1/batches"
#: Key of the scope: the cluster token of a request; absent with the server's own token.
TOKEN_IN_SCOPE = "jobsight.token"
#: Retry-After in seconds when the store is busy or full.
RETRY_AFTER = 5

#: uri-host [":" port] (RFC 9112, section 3.2), without user names and escapes.
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{0,5}))?")
_SAFE = frozenset({"GET", "HEAD"})
_FORM_LIMIT = 4096
#: Seconds within which the form must arrive.
_FORM_TIMEOUT = 5.0
#: Limits on reading a refused body. If a connection is closed with unread bytes, it is reset, and
#: the client may never receive the reply.
_DRAIN_BYTES = 32 * 2**20
_DRAIN_TIMEOUT = 10.0
#: Headers of every reply.
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

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_NO_CACHE, _NO_STORE = (b"cache-control", b"no-cache"), (b"cache-control", b"no-store")

#: Renders the sign-in page with a message.
SignInPage = Callable[[str], str]


#: Seconds for which a sign-in code is valid.
CODE_LIFETIME = 600.0
#: Codes at a time; the oldest is invalid when another one is created.
_MAX_CODES = 8


class SignInCodes:
    """One-time codes that sign a browser in, in the memory of this process.

    A URL ends up in the history of the browser and in the log of a proxy, so it contains a code
    that is invalid afterwards and not the token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Digest -> end of validity, so that the lookup reveals nothing of a code by its duration.
        self._codes: dict[bytes, float] = {}
        self._mutex = threading.Lock()

    def create(self) -> str:
        code = secrets.token_urlsafe(24)
        with self._mutex:
            while len(self._codes) >= _MAX_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[digest_of(code)] = self._clock() + CODE_LIFETIME
        return code

    def redeem(self, given: str) -> bool:
        """Whether the code is valid; it is not valid again."""
        with self._mutex:
            end = self._codes.pop(digest_of(given), None)
        return end is not None and self._clock() < end


class AccessControl:
    """Passes on requests that have an accepted Host header and a valid token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        tokens: TokenCache,
        codes: SignInCodes,
        hosts: Iterable[str],
        sign_in_page: SignInPage,
        delay: float = 0.25,
    ) -> None:
        self._app = app
        self._token = token
        self._tokens = tokens
        self._codes = codes
        self._session = cookie_value(token)
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK_NAMES, *hosts))
        self._sign_in_page = sign_in_page
        self._delay = delay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There is no WebSocket route; one would need a check of its own.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Files may be cached but must be revalidated; data of jobs is never cached.
                static = message["status"] in (200, 304) and scope["path"].startswith("/static/")
                given = {name for name, _ in message["headers"]}
                message["headers"] += [
                    header
                    for header in (*_RAW_HEADERS, _NO_CACHE if static else _NO_STORE)
                    if header[0] not in given
                ]
            await send(message)

        answer = await self._check(scope, receive)
        if answer is None:
            connection = connection_of(scope)
            if connection is not None and scope["path"] not in PUBLIC:
                connection.protect()
        elif scope["path"] == BATCHES:
            await drain(receive)
        await (answer or self._app)(scope, receive, send_guarded)

    async def _check(self, scope: Scope, receive: Receive) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # Against DNS rebinding: a foreign name may resolve to 127.0.0.1.
        if host_name(host).lower() not in self._hosts:
            return _refusal(400, f"{host[:80]!r} is not a host name of this server")
        path, method = scope["path"], scope["method"]
        if path == "/sign-in":
            return await self._sign_in(Request(scope, receive), port_of(host))
        if path in PUBLIC:
            return None
        if method in _SAFE and not path.startswith("/api/"):
            given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("code")
            if given is not None:
                return await self._redeem(scope, headers, given, port_of(host))
        return await self._check_token(scope, headers, port_of(host))

    async def _check_token(self, scope: Scope, headers: Headers, port: str) -> Response | None:
        path, method = scope["path"], scope["method"]
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and given:
            if same(given.strip(), self._token):
                scope[VIEWER_IN_SCOPE] = SERVER_TOKEN
                return None
            return await self._check_cluster_token(scope, given.strip())
        if self._is_signed_in(headers, port):
            if method in _SAFE:
                scope[VIEWER_IN_SCOPE] = SERVER_TOKEN
                return None
            return self._unauthorized(
                path, "writing needs Authorization: Bearer TOKEN; a cookie is not sufficient"
            )
        return self._unauthorized(path, "")

    def _is_signed_in(self, headers: Headers, port: str) -> bool:
        cookie = _cookie(headers.get("cookie", ""), cookie_name(port))
        return cookie is not None and same(cookie, self._session)

    async def _check_cluster_token(self, scope: Scope, given: str) -> Response | None:
        try:
            token = await self._tokens.find(given)
        except StoreError as error:
            return _refusal(503, str(error), {"Retry-After": str(RETRY_AFTER)})
        refusal = "the token is invalid" if token is None else token.refusal(time.time_ns())
        if token is None or refusal is not None:
            await asyncio.sleep(self._delay)
            return self._unauthorized(scope["path"], refusal or "")
        if (scope["path"], scope["method"]) != (BATCHES, "POST"):
            return _refusal(403, f"the token {token.name} permits sending batches only")
        scope[TOKEN_IN_SCOPE] = token
        return None

    def _unauthorized(self, path: str, message: str) -> Response:
        if path.startswith(("/api/", "/static/")):
            sentence = message or "a token is required: Authorization: Bearer TOKEN"
            return _refusal(401, sentence, {"WWW-Authenticate": "Bearer"})
        return HTMLResponse(self._sign_in_page(message), 401, {"WWW-Authenticate": "Bearer"})

    async def _sign_in(self, request: Request, port: str) -> Response:
        if request.method in _SAFE:
            return HTMLResponse(self._sign_in_page(""))
        if request.method != "POST":
            return _refusal(
                405, "the sign-in page accepts GET and POST", {"Allow": "GET, HEAD, POST"}
            )
        body = b""
        try:
            async with asyncio.timeout(_FORM_TIMEOUT):
                async for part in request.stream():
                    body += part
                    if len(body) > _FORM_LIMIT:
                        return _refusal(413, f"the form is larger than {_FORM_LIMIT} bytes")
        except TimeoutError:
            sentence = f"the form was not complete after {_FORM_TIMEOUT:g} seconds"
            return _refusal(408, sentence, {"Connection": "close"})
        except ClientDisconnect:
            return _refusal(400, "the connection was closed within the form")
        form = dict(parse_qsl(body.decode("utf-8", "replace")))
        if not same(form.get("token", "").strip(), self._token):
            return await self._refuse_sign_in("The token is invalid.")
        return self._enter(request.scope, "/", port)

    async def _redeem(self, scope: Scope, headers: Headers, given: str, port: str) -> Response:
        # A browser may request the URL twice, for a preview or after a second click.
        if self._codes.redeem(given) or self._is_signed_in(headers, port):
            return self._enter(scope, _without_code(scope), port)
        return await self._refuse_sign_in(
            "The code in the address was used before or has expired. Enter the token."
        )

    async def _refuse_sign_in(self, message: str) -> Response:
        await asyncio.sleep(self._delay)
        return HTMLResponse(self._sign_in_page(message), 401, {"WWW-Authenticate": "Bearer"})

    def _enter(self, scope: Scope, target: str, port: str) -> Response:
        # Redirect, so that a copied link does not contain the code.
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            cookie_name(port),
            self._session,
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return answer


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


def host_name(host: str) -> str:
    """The name in a Host header without the port, an IPv6 address with its brackets; empty if the
    header is invalid."""
    match = _HOST.fullmatch(host)
    return match["name"] if match else ""


def port_of(host: str) -> str:
    match = _HOST.fullmatch(host)
    return (match["port"] if match else None) or "80"


def cookie_name(port: str) -> str:
    """The name contains the port: cookies of all ports of a host share one name space."""
    return f"jobsight-{port}"


def _cookie(header: str, name: str) -> str | None:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return cookie.value if cookie else None


def _without_code(scope: Scope) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != "code"])
    # The raw path keeps its escapes. A second leading slash would make it a URL of another host.
    path = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/\\")
    return f"{path}?{query}" if query else path


def _refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    return problem_reply(status, sentence, headers)


#: Seconds until a token that another process revoked is refused here.
REVOKED_WITHIN = 5.0
#: Seconds between two writes of the times at which tokens were used.
_USES_INTERVAL = 60.0


class TokenCache:
    """The cluster tokens of the store, read every few seconds and not for each request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, ClusterToken] = {}
        self._read_at = -REVOKED_WITHIN
        # One query at a time: invalid tokens then delay each other and not the store.
        self._querying = asyncio.Lock()
        self._uses: dict[int, int] = {}
        self._uses_written = time.monotonic()
        self._mutex = threading.Lock()

    async def find(self, given: str) -> ClusterToken | None:
        """The stored token; one that was just created is found at once."""
        digest = digest_of(given)
        if time.monotonic() - self._read_at >= REVOKED_WITHIN:
            async with self._querying:
                if time.monotonic() - self._read_at >= REVOKED_WITHIN:
                    self._known = await run_in_threadpool(Tokens(self._store.database).by_digest)
                    self._read_at = time.monotonic()
        if digest not in self._known:
            async with self._querying:
                token = await run_in_threadpool(Tokens(self._store.database).find, digest)
            if token is not None:
                self._known[digest] = token
        return self._known.get(digest)

    def record_use(self, token: ClusterToken) -> None:
        """Record that a batch was stored with this token; written to the store periodically."""
        with self._mutex:
            self._uses[token.id] = time.time_ns() // SECOND * SECOND
            if time.monotonic() - self._uses_written < _USES_INTERVAL:
                return
            self._uses_written = time.monotonic()
        self.write_uses()

    def write_uses(self) -> None:
        """Write the times of use; if the store is not available, the next call writes them."""
        with self._mutex:
            uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            Tokens(self._store.database).record_use(uses)
        except StoreError:
            with self._mutex:
                self._uses = uses | self._uses
