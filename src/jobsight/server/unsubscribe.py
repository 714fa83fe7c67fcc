"""The page on which a recipient unsubscribes from mails, by the signed link of a mail.

It needs no sign-in: the signature shows that the link was sent to this recipient. Opening the page
changes nothing, because programs that check mails open links; its button does, and so does the
one-click request of a mail program (RFC 8058).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from jobsight.mail.subscriptions import ALL, KIND_NAMES, PATH, Subscriptions
from jobsight.server.limits import RateLimiter
from jobsight.store.mail import REFUSED, Pause, pause_mail, paused_causes, resume_mail
from jobsight.store.store import Store
from jobsight.text import readable_text
from jobsight.web.render import page

#: Requests per second of one address, after a burst, and of all.
_RATE: Final = 0.5
_TOTAL_RATE: Final = 20.0
_MAX_FORM: Final = 4096
UNSUBSCRIBED: Final = "unsubscribed by link"
_NOT_FOUND: Final = "this link to unsubscribe is not valid; expected one that jobsight has mailed"


def create_router(
    store: Store, subscriptions: Subscriptions, *, clock: Callable[[], int] = time.time_ns
) -> APIRouter:
    """The routes of the page."""
    router = APIRouter(include_in_schema=False)
    limits = RateLimiter(_RATE, 0), RateLimiter(_TOTAL_RATE, 0)

    def check(request: Request) -> tuple[str, str]:
        host = request.client.host if request.client else ""
        if limits[1].admit("all") or limits[0].admit(host):
            raise HTTPException(429, "too many requests; try again in a minute")
        query = request.query_params
        recipient, kind = query.get("a", ""), query.get("k", "")
        if not subscriptions.is_signed(recipient, kind, query.get("s", "")):
            raise HTTPException(404, _NOT_FOUND)
        return recipient, kind

    def show(request: Request, recipient: str, kind: str, message: str = "") -> HTMLResponse:
        causes = paused_causes(store.database, recipient.lower(), clock())
        return page(
            request,
            "unsubscribe.html",
            recipient=readable_text(recipient),
            what=KIND_NAMES[kind],
            paused=kind in causes or ALL in causes,
            query=request.url.query,
            path=PATH,
            message=message,
        )

    @router.get(PATH)
    async def unsubscribe_page(request: Request) -> HTMLResponse:
        """What is about to be unsubscribed, with a button."""
        recipient, kind = check(request)
        return await run_in_threadpool(show, request, recipient, kind)

    @router.post(PATH)
    async def unsubscribe(request: Request) -> HTMLResponse:
        """Unsubscribe, or subscribe again with ``action=resume`` in the form."""
        recipient, kind = check(request)
        form = await _form(request)

        def change() -> HTMLResponse:
            key = recipient.lower()
            if "action=resume" in form.split("&"):
                resume_mail(store.database, key, kind)
                if kind != ALL:
                    resume_mail(store.database, key, ALL)
                # Who has the link has got a mail.
                resume_mail(store.database, key, REFUSED)
                return show(request, recipient, kind, "You are subscribed again.")
            pause_mail(store.database, Pause(key, kind, None, UNSUBSCRIBED, clock()))
            return show(request, recipient, kind, "You are unsubscribed.")

        return await run_in_threadpool(change)

    return router


async def _form(request: Request) -> str:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM:
            raise HTTPException(413, f"the form is larger than {_MAX_FORM:,} bytes")
    return body.decode("latin-1")
