"""The access control: who makes a request, and whether its route is for them.

A browser signs in (:mod:`jobsight.server.auth.sign_in`) and then has a session, whose random value
is in a cookie. A program sends ``Authorization: Bearer`` with the server's token, the token of a
user, or, for batches, the token of its cluster. A trusted proxy names its user in a header.

What a cookie or a proxy authenticates permits changes only with the CSRF token of the session,
in the field ``csrf`` of a form or in the header ``X-CSRF-Token``, and only from a page of this
server. A page of another server on the same host is same-site with this one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobsight.access.accounts import role_by_groups, viewer_of_account
from jobsight.access.rules import Rule, rule_of
from jobsight.access.viewer import SERVER_TOKEN, VIEWER_IN_SCOPE, Viewer, viewer_of
from jobsight.config.settings import AccessSettings
from jobsight.errors import StoreError
from jobsight.server.auth.cluster_tokens import TokenCache
from jobsight.server.auth.peers import peer_of
from jobsight.server.auth.replies import (
    HEADERS,
    RETRY_AFTER,
    drain,
    host_name,
    port_of,
    read_form,
    refusal,
)
from jobsight.server.auth.sign_in import SignIn, cookie_name, local_target
from jobsight.server.connections import connection_of
from jobsight.store.accounts.accounts import AccountError, UserAccount, UserAccounts
from jobsight.store.accounts.sessions import Session
from jobsight.store.accounts.tokens import PREFIX as USER_TOKEN_PREFIX
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.read.pseudonyms import shown_as_pseudonyms
from jobsight.store.store import Store
from jobsight.store.tokens import digest_of
from jobsight.transport.running_server import same

LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
#: The ingest route, the only one that a cluster's token permits.
BATCHES: Final = "/api/v1/batches"
#: Key of the scope: the cluster token of a request; absent with the server's own token.
TOKEN_IN_SCOPE: Final = "jobsight.token"
#: Key of the scope: the session of a browser.
SESSION_IN_SCOPE: Final = "jobsight.session"

_SAFE: Final = frozenset({"GET", "HEAD"})
_FORM: Final = "application/x-www-form-urlencoded"
#: Bytes of a form.
_FORM_LIMIT: Final = 64 * 2**10
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_NO_CACHE, _NO_STORE = (b"cache-control", b"no-cache"), (b"cache-control", b"no-store")


class AccessControl:
    """Passes on requests that have an accepted Host header and may see their route."""

    def __init__(  # noqa: PLR0913 -- here all parts of authentication are put together
        self,
        app: ASGIApp,
        *,
        store: Store,
        token: str,
        tokens: TokenCache,
        sign_in: SignIn,
        hosts: Iterable[str],
        settings: AccessSettings,
        not_found: Callable[[Request], Response],
        delay: float = 0.25,
    ) -> None:
        self._app = app
        self._store = store
        self._token = token
        self._tokens = tokens
        self._user_tokens = UserTokens(store.database)
        self._accounts = UserAccounts(store.database)
        self._sign_in = sign_in
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK_NAMES, *hosts))
        self._settings = settings
        self._proxies = [
            ipaddress.ip_network(each, strict=False) for each in settings.proxy.addresses
        ]
        self._not_found = not_found
        self._delay = delay
        self._pseudonym_key = hmac.digest(token.encode(), b"jobsight pseudonyms", "sha256")
        self._csrf_key = hmac.digest(token.encode(), b"jobsight forms", "sha256")

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

        try:
            answer, receive = await self._check(scope, receive)
        except StoreError as error:
            answer = refusal(503, str(error), {"Retry-After": str(RETRY_AFTER)})
        if answer is None:
            connection = connection_of(scope)
            if connection is not None and rule_of(scope["path"]) is not Rule.PUBLIC:
                connection.protect()
        elif scope["path"] == BATCHES:
            await drain(receive)
        if viewer_of(scope).pseudonyms:
            with shown_as_pseudonyms(self._pseudonym_key):
                await (answer or self._app)(scope, receive, send_guarded)
        else:
            await (answer or self._app)(scope, receive, send_guarded)

    async def _check(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """The answer to a request that is not passed on, and the body for one that is."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        # Against DNS rebinding: a foreign name may resolve to 127.0.0.1.
        if host_name(host).lower() not in self._hosts:
            return refusal(421, f"{host[:80]!r} is not a host name of this server"), receive
        path, method = scope["path"], scope["method"]
        if path == "/sign-in" or path.startswith("/sign-in/"):
            return await self._answer_sign_in(Request(scope, receive)), receive
        rule = rule_of(path)
        if rule is Rule.PUBLIC:
            return None, receive
        if method in _SAFE and not path.startswith("/api/"):
            given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("code")
            if given is not None:
                return await self._redeem(scope, headers, given), receive
        answer = await self._authenticate(scope, headers)
        if answer is not None or TOKEN_IN_SCOPE in scope:
            return answer, receive
        viewer: Viewer = scope[VIEWER_IN_SCOPE]
        if method not in _SAFE and viewer.csrf:
            answer, receive = await self._check_form(scope, receive, headers, viewer.csrf)
            if answer is not None:
                return answer, receive
        if not rule.permits(viewer):
            return self._not_found(Request(scope)), receive
        if path == "/sign-out":
            return await self._sign_in.sign_out(
                Request(scope), scope.get(SESSION_IN_SCOPE)
            ), receive
        return None, receive

    async def _answer_sign_in(self, request: Request) -> Response:
        foreign = _foreign_origin(request.headers)
        if request.method not in _SAFE and foreign:
            return refusal(403, foreign)
        return await self._sign_in.answer(request)

    async def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        """Set the viewer of a request, or answer it."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and given:
            return await self._check_token(scope, given.strip())
        if self._proxies:
            answer = await self._check_proxy(scope, headers)
            if answer is not None or VIEWER_IN_SCOPE in scope:
                return answer
        found = await self._session_of(scope, headers)
        if found is None:
            return await self._unauthorized(scope, "")
        if scope["path"] == BATCHES:
            return await self._unauthorized(
                scope, "writing needs Authorization: Bearer TOKEN; a cookie is not sufficient"
            )
        session, scope[VIEWER_IN_SCOPE] = found
        scope[SESSION_IN_SCOPE] = session
        return None

    async def _check_token(self, scope: Scope, given: str) -> Response | None:
        if same(given, self._token):
            scope[VIEWER_IN_SCOPE] = SERVER_TOKEN
            return None
        if given.startswith(USER_TOKEN_PREFIX):
            return await self._check_user_token(scope, given)
        token = await self._tokens.find(given)
        reason = "the token is invalid" if token is None else token.refusal(time.time_ns())
        if token is None or reason is not None:
            await asyncio.sleep(self._delay)
            return await self._unauthorized(scope, reason or "")
        if (scope["path"], scope["method"]) != (BATCHES, "POST"):
            return refusal(403, f"the token {token.name} permits sending batches only")
        scope[TOKEN_IN_SCOPE] = token
        return None

    async def _check_user_token(self, scope: Scope, given: str) -> Response | None:
        found = await run_in_threadpool(self._user_tokens.find, given)
        if found is None:
            await asyncio.sleep(self._delay)
            return await self._unauthorized(scope, "the token is invalid")
        token, account = found
        reason = token.refusal(time.time_ns())
        if reason is None and account.disabled is not None:
            reason = f"the account {account.name} is disabled"
        if reason is not None:
            await asyncio.sleep(self._delay)
            return await self._unauthorized(scope, reason)
        if token.scope == "read" and scope["method"] not in _SAFE:
            return refusal(403, f"the token {token.name} permits reading only")
        await run_in_threadpool(self._user_tokens.record_use, token)
        scope[VIEWER_IN_SCOPE] = await self._viewer(account, may_write=token.scope == "write")
        return None

    async def _check_proxy(self, scope: Scope, headers: Headers) -> Response | None:
        """The user whom a trusted proxy names; the header is refused from everybody else."""
        wanted = self._settings.proxy
        values = headers.getlist(wanted.header)
        if not values:
            return None
        if not self._is_proxy(peer_of(scope).address):
            return refusal(400, f"the header {wanted.header} is accepted from a proxy only")
        name = values[0].strip()
        if len(values) > 1 or not name:
            return refusal(400, f"the header {wanted.header} must have one user name")
        groups = headers.get(wanted.groups_header, "") if wanted.groups_header else ""
        named = [group.strip() for group in groups.replace(";", ",").split(",")]
        permitted, role = role_by_groups(named, wanted.roles, only_groups=wanted.only_groups)
        if not permitted:
            return refusal(403, f"the user {name[:64]!r} is in none of the groups that may sign in")
        try:
            account = await run_in_threadpool(self._proxy_account, name, role)
        except AccountError as error:
            return refusal(400, str(error))
        if account.disabled is not None:
            return refusal(403, f"the account {account.name} is disabled")
        csrf = self._csrf(b"proxy " + name.encode())
        scope[VIEWER_IN_SCOPE] = await self._viewer(account, may_write=True, csrf=csrf)
        return None

    def _proxy_account(self, name: str, role: str | None) -> UserAccount:
        account = self._accounts.find(name)
        if account is None or (role is not None and role != account.role):
            account = self._accounts.sign_in(name, "proxy", role)
            self._accounts.record_sign_in(name)
        return account

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(parsed, "ipv4_mapped", None)
        return any((mapped or parsed) in network for network in self._proxies)

    async def _session_of(self, scope: Scope, headers: Headers) -> tuple[Session, Viewer] | None:
        """The session of a browser, and its viewer; None if there is none that is valid here."""
        name = cookie_name(scope, port_of(headers.get("host", ""), scope["scheme"]))
        cookie = _cookie(headers.get("cookie", ""), name)
        if cookie is None:
            return None
        found = await run_in_threadpool(self._sign_in.sessions.find, cookie)
        if found is None:
            return None
        session, account = found
        if session.peer_uid != peer_of(scope).uid:
            # The cookie was copied: only the user of the machine who signed in may use it.
            return None
        csrf = self._csrf(session.digest)
        if session.user is None:
            if session.server_token != digest_of(self._token):
                return None
            viewer = Viewer(
                has_server_token=True,
                visibility=SERVER_TOKEN.visibility,
                may_write=True,
                csrf=csrf,
            )
        elif account is None or account.disabled is not None:
            return None
        else:
            viewer = await self._viewer(account, may_write=True, csrf=csrf)
        await run_in_threadpool(self._sign_in.sessions.record_use, session)
        return session, viewer

    async def _viewer(self, account: UserAccount, *, may_write: bool, csrf: str = "") -> Viewer:
        return await run_in_threadpool(
            viewer_of_account,
            self._store.database,
            account,
            slurm_coordinators=self._settings.slurm_coordinators,
            may_write=may_write,
            csrf=csrf,
        )

    def _csrf(self, subject: bytes) -> str:
        return hmac.new(self._csrf_key, subject, hashlib.sha256).hexdigest()

    async def _check_form(
        self, scope: Scope, receive: Receive, headers: Headers, csrf: str
    ) -> tuple[Response | None, Receive]:
        """Refuse a change that no page of this server sent; the body is passed on as it came."""
        foreign = _foreign_origin(headers)
        if foreign:
            return refusal(403, foreign), receive
        given = headers.get("x-csrf-token")
        if given is None and headers.get("content-type", "").partition(";")[0].strip() == _FORM:
            body, answer = await read_form(Request(scope, receive), _FORM_LIMIT)
            if answer is not None:
                return answer, receive
            given = dict(parse_qsl(body.decode("utf-8", "replace"))).get("csrf")
            receive = _replay(body, receive)
        if given is None or not same(given, csrf):
            sentence = (
                "a change from a browser needs the csrf field of its form or X-CSRF-Token; "
                "load the page again, or send Authorization: Bearer TOKEN"
            )
            return refusal(403, sentence), receive
        return None, receive

    async def _redeem(self, scope: Scope, headers: Headers, given: str) -> Response:
        # A browser may request the URL twice, for a preview or after a second click.
        signed_in = await self._session_of(scope, headers) is not None
        return await self._sign_in.redeem(
            Request(scope), given, _without_code(scope), signed_in=signed_in
        )

    async def _unauthorized(self, scope: Scope, message: str) -> Response:
        path = scope["path"]
        if path.startswith(("/api/", "/static/")):
            sentence = message or "a token is required: Authorization: Bearer TOKEN"
            return refusal(401, sentence, {"WWW-Authenticate": "Bearer"})
        target = _without_code(scope) if scope["method"] in _SAFE else "/"
        page = await self._sign_in.page(Request(scope), message, target)
        return HTMLResponse(page, 401, {"WWW-Authenticate": "Bearer"})


def _replay(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed


def _foreign_origin(headers: Headers) -> str:
    """Why a request is not from a page of this server; empty if it may be."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        allowed = site in ("same-origin", "none")
        return "" if allowed else "the form was sent by a page of another server"
    # Over plain HTTP between machines, browsers send this one only.
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return "the form was sent by a page of another server"
    return ""


def _cookie(header: str, name: str) -> str | None:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return cookie.value if cookie else None


def _without_code(scope: Scope) -> str:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = urlencode([pair for pair in pairs if pair[0] != "code"])
    path = local_target(scope.get("raw_path", b"/").decode("latin-1"))
    return f"{path}?{query}" if query else path
