"""The pages of accounts: one's own settings, sessions, tokens and views; all accounts for staff."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl
from zoneinfo import available_timezones

from fastapi import APIRouter, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from jobsight.access.accounts import check_role
from jobsight.access.passwords import hash_password, verify_password
from jobsight.access.viewer import Role, Viewer, viewer_of
from jobsight.config.settings import AccessSettings
from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.accounts.accounts import AccountError, UserAccounts
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.accounts.preferences import ROW_CHOICES, Preferences, write_preferences
from jobsight.store.accounts.sessions import Session, Sessions
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from jobsight.web.render import page

#: Languages of the pages.
LANGUAGES: Final = {"en": "English", "fr": "Français"}
#: Days for which a token may be created on the page.
LIFETIMES: Final = (30, 90, 180, 365)
#: Views of the own pages, and of all, that are shown.
_SHOWN_VIEWS: Final = 200
_DAY: Final = 86400 * SECOND
_HOUR: Final = 3600 * SECOND
#: Digits of the number of a token.
_MAX_DIGITS: Final = 18
#: Key of the scope that the access control sets.
_SESSION_IN_SCOPE: Final = "jobsight.session"


def create_router(
    store: Store,
    access: AccessSettings,
    log: AuditLog,
    *,
    clock: Callable[[], int] = time.time_ns,
) -> APIRouter:
    """The routes of settings and accounts."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    own, everybody = OwnSettings(store, access, log, clock), AllAccounts(store, log)

    @router.get("/settings")
    def settings(request: Request) -> HTMLResponse:
        return own.show(request)

    @router.post("/settings")
    async def change(request: Request) -> Response:
        return await run_in_threadpool(own.change, request, await read_form(request))

    @router.get("/operations/accounts")
    def all_accounts(request: Request) -> HTMLResponse:
        return everybody.show(request)

    @router.post("/operations/accounts")
    async def change_account(request: Request) -> Response:
        return await run_in_threadpool(everybody.change, request, await read_form(request))

    return router


class OwnSettings:
    """The page on which users see and change what is theirs."""

    def __init__(
        self, store: Store, access: AccessSettings, log: AuditLog, clock: Callable[[], int]
    ) -> None:
        self._database = store.database
        self._access = access
        self._log = log
        self._clock = clock
        self._accounts, self._tokens = UserAccounts(store.database), UserTokens(store.database)
        self._sessions = Sessions(
            store.database,
            idle=int(access.session_idle * _HOUR),
            lifetime=int(access.session_lifetime * _HOUR),
        )
        #: Each returns a new token, or an empty text.
        self._actions: dict[str, Callable[[Viewer, dict[str, str]], str]] = {
            "preferences": self._set_preferences,
            "close-session": self._close_session,
            "add-token": self._add_token,
            "revoke-token": self._revoke_token,
            "password": self._set_password,
        }

    def show(
        self, request: Request, message: str = "", *, token: str = "", status: int = 200
    ) -> HTMLResponse:
        """The page; ``token`` has just been created."""
        viewer = viewer_of(request.scope)
        name = viewer.name or ""
        current: Session | None = request.scope.get(_SESSION_IN_SCOPE)
        tokens = reversed(self._tokens.list(name))
        answer = page(
            request,
            "settings.html",
            account=self._accounts.get(name),
            seen_accounts=sorted({seen.name for seen in viewer.visibility.accounts}),
            sessions=self._sessions.list(name),
            current=current.id if current else "",
            tokens=[(each, each.refusal(self._clock()) is None) for each in tokens],
            new_token=token,
            views=self._log.views_of(name, _SHOWN_VIEWS),
            preferences=viewer.preferences,
            languages=LANGUAGES,
            zones=sorted(available_timezones()),
            row_choices=ROW_CHOICES,
            lifetimes=LIFETIMES,
            idle_hours=self._access.session_idle,
            message=message,
        )
        answer.status_code = status
        return answer

    def change(self, request: Request, form: dict[str, str]) -> Response:
        """Carry out the action of a form of the page."""
        viewer = viewer_of(request.scope)
        if not viewer.csrf:
            raise HTTPException(403, "settings are changed in a browser")
        action = self._actions.get(form.get("action", ""))
        if action is None:
            raise HTTPException(422, "action: expected an action of the page")
        try:
            token = action(viewer, form)
        except JobsightError as error:
            return self.show(request, _sentence(str(error)), status=422)
        if token:
            # It is shown once; after a redirect it would be lost.
            return self.show(request, token=token)
        return RedirectResponse(f"{request.scope.get('root_path', '')}/settings", 303)

    def _set_preferences(self, viewer: Viewer, form: dict[str, str]) -> str:
        language, zone, rows = (form.get(name, "") for name in ("language", "time_zone", "rows"))
        if language and language not in LANGUAGES:
            raise AccountError(f"language: expected one of {', '.join(LANGUAGES)}")
        if zone and zone not in available_timezones():
            raise AccountError(f"time zone: there is no {zone[:64]!r}; expected Europe/Paris")
        if rows and rows not in map(str, ROW_CHOICES):
            raise AccountError(f"rows: expected one of {', '.join(map(str, ROW_CHOICES))}")
        chosen = Preferences(
            language=language or None,
            time_zone=zone or None,
            rows=int(rows) if rows else None,
            columns=viewer.preferences.columns,
        )
        write_preferences(self._database, viewer.name or "", chosen)
        return ""

    def _close_session(self, viewer: Viewer, form: dict[str, str]) -> str:
        for session in self._sessions.list(viewer.name or ""):
            if form.get("session") in (session.id, "all"):
                self._sessions.close(session.digest)
        return ""

    def _add_token(self, viewer: Viewer, form: dict[str, str]) -> str:
        days = form.get("days", "")
        if days not in map(str, LIFETIMES):
            raise AccountError(f"days: expected one of {', '.join(map(str, LIFETIMES))}")
        wants_write = form.get("scope") == "write"
        if wants_write and not viewer.may_write:
            raise AccountError(f"the role {viewer.role} permits reading only")
        label = form.get("label", "").strip()
        lifetime = int(days) * _DAY
        name = viewer.name or ""
        return self._tokens.add(name, "write" if wants_write else "read", lifetime, label)[1]

    def _revoke_token(self, viewer: Viewer, form: dict[str, str]) -> str:
        number = form.get("token", "")
        if not number.isascii() or not number.isdigit() or len(number) > _MAX_DIGITS:
            raise AccountError("token: expected the number of one of your tokens")
        self._tokens.revoke(int(number), viewer.name)
        return ""

    def _set_password(self, viewer: Viewer, form: dict[str, str]) -> str:
        account = self._accounts.get(viewer.name or "")
        if account.password_hash is None:
            raise AccountError("the password of this account is not kept by this server")
        if not verify_password(account.password_hash, form.get("old", "")):
            raise AccountError("the current password is wrong")
        if form.get("new", "") != form.get("again", ""):
            raise AccountError("the new password was not entered twice the same")
        self._accounts.set_password(account.name, hash_password(form.get("new", "")))
        return ""


class AllAccounts:
    """The page on which staff see and change all user accounts."""

    def __init__(self, store: Store, log: AuditLog) -> None:
        self._accounts = UserAccounts(store.database)
        self._log = log

    def show(self, request: Request, message: str = "", status: int = 200) -> HTMLResponse:
        answer = page(
            request,
            "accounts.html",
            accounts=self._accounts.list(),
            roles=[role.value for role in Role],
            views=self._log.latest(_SHOWN_VIEWS),
            message=message,
        )
        answer.status_code = status
        return answer

    def change(self, request: Request, form: dict[str, str]) -> Response:
        """Carry out the action of a form of the page."""
        viewer = viewer_of(request.scope)
        if not viewer.csrf:
            raise HTTPException(403, "accounts are changed in a browser")
        try:
            if form.get("user") == viewer.name:
                raise AccountError("your own account can only be changed by another person")
            self._apply(form)
        except JobsightError as error:
            return self.show(request, _sentence(str(error)), 422)
        return RedirectResponse(f"{request.scope.get('root_path', '')}/operations/accounts", 303)

    def _apply(self, form: dict[str, str]) -> None:
        name = form.get("user", "")
        match form.get("action"):
            case "disable":
                self._accounts.disable(name)
            case "enable":
                self._accounts.enable(name)
            case "role":
                role = form.get("role", "")
                if role not in list(Role):
                    raise AccountError(f"role: expected one of {', '.join(Role)}")
                named = form.get("accounts", "").replace(",", " ").split()
                check_role(role, named)
                self._accounts.set_role(name, role, named)
            case _:
                raise AccountError("action: expected disable, enable or role")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; the access control has bounded and checked it."""
    body = await request.body()
    return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=100))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
