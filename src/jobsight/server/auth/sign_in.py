"""Opens and ends the sessions of browsers: by the server's token, a one-time code, a password of
this server or of a directory, or OpenID Connect.

:class:`SignIn` answers everything below ``/sign-in``. It does not say whether an account exists:
the reply and its duration are the same for a wrong name and a wrong password.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from jobsight.access.accounts import role_by_groups
from jobsight.access.ldap import Directory, LdapError
from jobsight.access.passwords import verify_password
from jobsight.config.settings import AccessSettings
from jobsight.model import SECOND
from jobsight.server.auth.attempts import SERVER_TOKEN, Attempts
from jobsight.server.auth.codes import SignInCodes
from jobsight.server.auth.peers import client_address, peer_of
from jobsight.server.auth.replies import port_of, read_form, refusal
from jobsight.store.accounts.accounts import AccountError, UserAccount, UserAccounts
from jobsight.store.accounts.sessions import Session, Sessions
from jobsight.store.store import Store
from jobsight.store.tokens import digest_of
from jobsight.transport.running_server import same
from jobsight.web.language import language_of

if TYPE_CHECKING:
    from jobsight.access.oidc import OidcClient, OidcUser

logger = logging.getLogger(__name__)

_SAFE: Final = frozenset({"GET", "HEAD"})
_FORM_LIMIT: Final = 4096
_HOUR: Final = 3600 * SECOND
#: Bytes of the address to which a sign-in returns.
_MAX_TARGET: Final = 2000
_NO_DIRECTORY: Final = "The directory of users does not answer. Try again in a minute."
_NOT_PERMITTED: Final = "You are in none of the groups that may sign in here."
_WRONG: Final = "The user name or the password is invalid."
_DISABLED: Final = "The account is disabled. Ask the staff of your site."


class Ways(NamedTuple):
    """What the sign-in page offers."""

    #: User name and password.
    password: bool
    #: The text of the link to an OpenID Connect provider; empty without one.
    oidc: str
    #: The form for the server's token is shown at once and not behind a link.
    token_first: bool


class SignInPage(Protocol):
    """Renders the sign-in page."""

    def __call__(self, **context: Any) -> str: ...


class SignIn:
    """Signs browsers in and out."""

    def __init__(
        self,
        store: Store,
        token: str,
        *,
        settings: AccessSettings,
        codes: SignInCodes,
        page: SignInPage,
        delay: float,
    ) -> None:
        self._token = token
        self._settings = settings
        self._codes = codes
        self._page = page
        self._delay = delay
        self._accounts = UserAccounts(store.database)
        self._attempts = Attempts(store.database, settings.max_failures, key=token.encode())
        self._directory = Directory(settings.ldap) if settings.ldap.url is not None else None
        self._oidc: OidcClient | None = None
        if settings.oidc.issuer is not None:
            # The cryptography is not imported without need.
            from jobsight.access.oidc import OidcClient

            self._oidc = OidcClient(settings.oidc, token.encode())
        self.sessions = Sessions(
            store.database,
            idle=int(settings.session_idle * _HOUR),
            lifetime=int(settings.session_lifetime * _HOUR),
        )

    async def answer(self, request: Request) -> Response:
        """Answer a request below /sign-in."""
        if request.url.path != "/sign-in":
            return await self._by_oidc(request)
        if request.method in _SAFE:
            target = local_target(request.query_params.get("next", "/"))
            return HTMLResponse(await self.page(request, "", target))
        if request.method != "POST":
            return refusal(
                405, "the sign-in page accepts GET and POST", {"Allow": "GET, HEAD, POST"}
            )
        body, answer = await read_form(request, _FORM_LIMIT)
        if answer is not None:
            return answer
        form = dict(parse_qsl(body.decode("utf-8", "replace")))
        target = local_target(form.get("next", "/"))
        if "password" in form:
            return await self._by_password(request, form, target)
        return await self._by_token(request, form.get("token", "").strip(), target)

    async def redeem(
        self, request: Request, given: str, target: str, *, signed_in: bool
    ) -> Response:
        """Sign in with a one-time code of the address."""
        if self._codes.redeem(given):
            return await self.open(request, None, target)
        if signed_in:
            return RedirectResponse(target, 303)
        return await self._refuse(
            request,
            "The code in the address was used before or has expired. Enter the token.",
            target,
        )

    async def sign_out(self, request: Request, session: Session | None) -> Response:
        """End a session."""
        if request.method != "POST":
            return refusal(405, "signing out needs the button of a page", {"Allow": "POST"})
        if session is not None:
            await run_in_threadpool(self.sessions.close, session.digest)
        answer = RedirectResponse(f"{request.scope.get('root_path', '')}/sign-in", 303)
        name = cookie_name(request.scope, _port(request))
        answer.delete_cookie(name, secure=request.url.scheme == "https", httponly=True)
        return answer

    async def open(self, request: Request, user: str | None, target: str) -> Response:
        """Open a session, of the server's token if there is no user, and go to the target."""
        peer = peer_of(request.scope)
        value = await run_in_threadpool(
            self.sessions.open,
            user=user,
            server_token=digest_of(self._token) if user is None else None,
            peer_uid=peer.uid,
            address=client_address(request.scope),
            user_agent=request.headers.get("user-agent", ""),
        )
        if user is not None:
            await run_in_threadpool(self._accounts.record_sign_in, user)
        # Redirect, so that a copied link does not contain a code.
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            cookie_name(request.scope, _port(request)),
            value,
            # The browser drops it when the session ends in any case.
            max_age=int(self.sessions.lifetime // SECOND) if user is not None else None,
            secure=request.url.scheme == "https",
            httponly=True,
            # A link in a mail must open the page; changes need the CSRF token besides.
            samesite="strict" if user is None else "lax",
        )
        return answer

    async def page(self, request: Request, message: str, target: str = "/") -> str:
        """The sign-in page."""
        return self._page(
            message=message,
            ways=await run_in_threadpool(self._ways),
            target=target,
            root=request.scope.get("root_path", ""),
            language=language_of(request.scope),
        )

    def _ways(self) -> Ways:
        others = self._settings.ldap.url is not None or self._settings.oidc.issuer is not None
        local = self._settings.local and self._accounts.have_passwords()
        return Ways(
            password=local or self._settings.ldap.url is not None,
            oidc=self._settings.oidc.title if self._settings.oidc.issuer is not None else "",
            token_first=not (local or others),
        )

    async def _by_token(self, request: Request, given: str, target: str) -> Response:
        address = client_address(request.scope)
        wait = await run_in_threadpool(self._attempts.begin, SERVER_TOKEN, address)
        if wait:
            return await self._too_many(request, wait, target)
        if not same(given, self._token):
            return await self._refuse(request, "The token is invalid.", target)
        await run_in_threadpool(self._attempts.succeed, SERVER_TOKEN, address)
        return await self.open(request, None, target)

    async def _too_many(self, request: Request, wait: int, target: str) -> Response:
        message = f"There were too many failed attempts. Try again in {wait // 60 + 1} minutes."
        page = await self.page(request, message, target)
        return HTMLResponse(page, 429, {"Retry-After": str(wait)})

    async def _by_password(self, request: Request, form: dict[str, str], target: str) -> Response:
        name, password = form.get("username", "").strip()[:64], form["password"]
        name = name.replace("\0", "")
        address = client_address(request.scope)
        wait = await run_in_threadpool(self._attempts.begin, name, address)
        if wait:
            return await self._too_many(request, wait, target)
        try:
            account = await run_in_threadpool(self._authenticated, name, password)
        except LdapError as error:
            await run_in_threadpool(self._attempts.withdraw, name, address)
            logger.warning("%s", error)
            page = await self.page(request, _NO_DIRECTORY, target)
            return HTMLResponse(page, 503, {"Retry-After": "60"})
        if account is None:
            return await self._refuse(request, _WRONG, target)
        await run_in_threadpool(self._attempts.succeed, name, address)
        if account.disabled is not None:
            return await self._refuse(request, _DISABLED, target)
        return await self.open(request, account.name, target)

    def _authenticated(self, name: str, password: str) -> UserAccount | None:
        """The account with this name and password."""
        account = self._accounts.find(name) if self._settings.local else None
        password_hash = account.password_hash if account is not None else None
        if password_hash is None and self._directory is not None:
            return self._of_directory(name, password)
        return account if verify_password(password_hash, password) else None

    def _of_directory(self, name: str, password: str) -> UserAccount | None:
        assert self._directory is not None
        user = self._directory.authenticate(name, password)
        if user is None:
            return None
        wanted = self._settings.ldap
        permitted, role = role_by_groups(user.groups, wanted.roles, only_groups=wanted.only_groups)
        return self._accounts.sign_in(name, "ldap", role) if permitted else None

    async def _by_oidc(self, request: Request) -> Response:
        """Send a browser to the issuer, or open the session of one that comes back."""
        if self._oidc is None:
            return refusal(404, "this way of signing in is not configured")
        if request.method not in _SAFE:
            return refusal(405, "this way of signing in begins with a link", {"Allow": "GET"})
        cookie = f"{cookie_name(request.scope, _port(request))}-oidc"
        from jobsight.access.oidc import LIFETIME, OidcError

        try:
            if request.url.path == "/sign-in/oidc":
                target = local_target(request.query_params.get("next", "/"))
                address, value = await run_in_threadpool(self._oidc.begin, target)
                answer: Response = RedirectResponse(address, 303)
                secure = request.url.scheme == "https"
                # Lax: the browser comes back by a link of another site.
                answer.set_cookie(
                    cookie, value, max_age=LIFETIME, secure=secure, httponly=True, samesite="lax"
                )
                return answer
            user, target = await run_in_threadpool(
                self._oidc.finish, dict(request.query_params), request.cookies.get(cookie, "")
            )
            account = await run_in_threadpool(self._of_issuer, user)
        except (OidcError, AccountError) as error:
            logger.warning("sign-in by OpenID Connect: %s", error)
            sentence = f"{str(error)[:1].upper()}{str(error)[1:]}."
            return await self._refuse(request, sentence, "/")
        if account is None:
            return await self._refuse(request, _NOT_PERMITTED, "/")
        if account.disabled is not None:
            return await self._refuse(request, _DISABLED, "/")
        answer = await self.open(request, account.name, target)
        answer.delete_cookie(cookie, secure=request.url.scheme == "https", httponly=True)
        return answer

    def _of_issuer(self, user: OidcUser) -> UserAccount | None:
        wanted = self._settings.oidc
        permitted, role = role_by_groups(user.groups, wanted.roles, only_groups=wanted.only_groups)
        return self._accounts.sign_in(user.name, "oidc", role) if permitted else None

    async def _refuse(self, request: Request, message: str, target: str) -> Response:
        await asyncio.sleep(self._delay)
        page = await self.page(request, message, target)
        return HTMLResponse(page, 401, {"WWW-Authenticate": "Bearer"})


def cookie_name(scope: Scope, port: str) -> str:
    """The name of the cookie of a session.

    It contains the port: cookies of all ports of a host share one name space. With TLS, the prefix
    makes browsers refuse a cookie of that name that another host or an unencrypted page set.
    """
    prefix = "__Host-" if scope["scheme"] == "https" else ""
    return f"{prefix}jobsight-{port}"


def local_target(text: str) -> str:
    """A path of this server. A second leading slash would make it a URL of another host."""
    if len(text) > _MAX_TARGET or not text.isprintable():
        return "/"
    return "/" + text.lstrip("/\\")


def _port(request: Request) -> str:
    return port_of(request.headers.get("host", ""), request.url.scheme)
