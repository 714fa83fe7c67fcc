"""The ASGI application: ingest route, API, pages and static files behind one access check."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

import jobsight
from jobsight import web
from jobsight.config.settings import AccessSettings, ServerSettings
from jobsight.findings.service import FindingsService
from jobsight.mail.queue import MailCounts
from jobsight.mail.subscriptions import Subscriptions
from jobsight.prometheus.remote_write import RemoteWriter
from jobsight.server import clockwork, errors, ingest, petricore, unsubscribe
from jobsight.server.api import (
    clusters,
    files,
    gpus,
    health,
    jobs,
    parts,
    people,
    properties,
    usage,
)
from jobsight.server.api import findings as found
from jobsight.server.api.common import without_required_fields
from jobsight.server.auth import BATCHES, AccessControl, SignInCodes, TokenCache
from jobsight.server.auth.sign_in import SignIn
from jobsight.server.auth.views import ViewLog
from jobsight.server.conditional import ConditionalReplies
from jobsight.server.own_metrics import OwnMetrics
from jobsight.server.user_jobs import UserJobs
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.store import Store
from jobsight.util.outer import outer_schemas
from jobsight.web import pages
from jobsight.web.pages import accounts
from jobsight.web.render import render

logger = logging.getLogger(__name__)

#: Seconds after which a request is logged as slow.
SLOW = 1.0

_DESCRIPTION = """What the jobs of a cluster really did.

Every route needs the server's token as `Authorization: Bearer TOKEN`; batches may come with the
token of their cluster instead. Times are RFC 3339 strings in UTC; all other units are part of the
field's name: `_seconds`, `_bytes`, `_hours`; shares are between 0 and 1. Times in parameters are
RFC 3339 strings or seconds since 1970. `null` means unknown. Lists have pages: `next` is the cursor
of the next one, whose address is also in the header `Link`. Errors are problem details (RFC 9457)
with one sentence in `detail`."""


def create_app(  # noqa: PLR0913 -- here all parts of the server are put together
    store: Store,
    token: str,
    *,
    allowed_hosts: Iterable[str] = (),
    settings: ServerSettings | None = None,
    access: AccessSettings | None = None,
    tokens: TokenCache | None = None,
    codes: SignInCodes | None = None,
    remote: RemoteWriter | None = None,
    findings: FindingsService | None = None,
    subscriptions: Subscriptions | None = None,
    mails: MailCounts | None = None,
    delay: float = 0.25,
    clock: Callable[[], int] = time.time_ns,
) -> FastAPI:
    """Build the application. Every route but the public ones needs a token.

    ``remote`` receives a copy of every newly stored batch; ``mails`` are counted by the worker that
    sends them; ``delay`` is the pause in seconds before an invalid token is refused.
    """
    tokens = tokens or TokenCache(store)
    app = FastAPI(
        title="jobsight",
        version=jobsight.__version__,
        description=_DESCRIPTION,
        # FastAPI's documentation pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    errors.install(app)
    copy = remote.put if remote is not None else None
    received = ingest.Ingest(store, tokens, settings or ServerSettings(), copy)
    batches = ingest.BatchRoute(received)
    app.router.routes.insert(0, Route(BATCHES, batches, methods=["POST"]))
    service = findings or FindingsService(store)
    app.include_router(jobs.create_router(store, service, clock=clock))
    drawing = files.DrawingQueue()
    app.include_router(files.create_router(store, service, drawing, clock=clock))
    app.include_router(found.create_router(store, service, clock=clock))
    if settings is not None and settings.petricore_routes:
        usage_file = petricore.UsageFile(settings.petricore_usage)
        database = settings.petricore_database
        user_jobs = UserJobs(database) if database.address else None
        app.include_router(
            petricore.create_router(store, service, drawing, usage_file, user_jobs, clock=clock)
        )
    certificate = settings.tls_certificate if settings else None
    own = OwnMetrics(
        store,
        received.counts,
        certificate=Path(certificate).expanduser() if certificate else None,
        mails=mails,
    )
    app.include_router(
        health.create_health_router(
            store,
            more=[own.text, *([remote.text] if remote else [])],
            ingest=received.counts,
        )
    )
    listed = health.listed_nodes(settings.discovery_nodes if settings else ())
    app.include_router(health.create_discovery_router(store, listed=listed))
    app.include_router(usage.create_router(store))
    app.include_router(parts.create_router(store, service, clock=clock))
    app.include_router(properties.create_router(store, clock=clock))
    if settings is not None and settings.clockwork_routes:
        app.include_router(clockwork.create_router(store, clock=clock))
    app.include_router(clusters.create_router(store, clock=clock))
    app.include_router(gpus.create_router(store))
    app.include_router(people.create_router(store, clock=clock))
    if subscriptions is not None:
        app.include_router(unsubscribe.create_router(store, subscriptions, clock=clock))
    app.include_router(
        pages.create_router(
            store,
            service,
            clock=clock,
            health=lambda: health.read_health(store, received.counts),
        )
    )
    access = access or AccessSettings()
    views = AuditLog(store.database)
    app.include_router(accounts.create_router(store, access, views, clock=clock))
    app.mount("/static", StaticFiles(directory=Path(web.__file__).parent / "static"))

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    app.add_middleware(ConditionalReplies, store=store, token=token, clock=clock)
    app.add_middleware(SlowRequests)
    app.add_middleware(ViewLog, store=store, log=views)
    app.add_middleware(
        AccessControl,
        store=store,
        token=token,
        tokens=tokens,
        sign_in=SignIn(
            store,
            token,
            settings=access,
            codes=codes or SignInCodes(),
            page=partial(render, "sign-in.html"),
            delay=delay,
        ),
        hosts=allowed_hosts,
        settings=access,
        not_found=errors.not_found,
        delay=delay,
    )
    if settings is not None and settings.clockwork_routes:
        app.add_middleware(clockwork.ClockworkCredentials)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


class SlowRequests:
    """Logs requests that take longer than :data:`SLOW` seconds, at DEBUG."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        try:
            await self._app(scope, receive, send)
        finally:
            elapsed = time.monotonic() - start
            if elapsed > SLOW:
                logger.debug("%s %s took %.1f s", scope["method"], scope["path"], elapsed)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = outer_schemas(
            (
                *(*jobs.REPLIES, *usage.REPLIES, *found.REPLIES, *parts.REPLIES),
                *(*clusters.REPLIES, *gpus.REPLIES, *people.REPLIES, *properties.REPLIES),
                *(health.Health, health.TargetGroup),
            ),
            ref_template="#/components/schemas/{name}",
        )
        without_required_fields(schemas)
        schema["paths"][BATCHES] = {"post": ingest.BatchRoute.description()}
        components = schema.setdefault("components", {})
        # Without FastAPI's own schema of a validation error, which is not what is sent.
        bodies = components.get("schemas", {}).items()
        schemas |= {name: body for name, body in bodies if name.startswith("Body_")}
        components["schemas"] = schemas
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema
