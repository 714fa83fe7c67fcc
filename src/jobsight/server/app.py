"""The application: API, pages and files behind one access check."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

import jobsight
from jobsight import web
from jobsight.config.settings import ServerSettings
from jobsight.prometheus.remote_write import RemoteWriting
from jobsight.reports.build import build_report
from jobsight.server import errors, ingest
from jobsight.server.api import health, jobs, usage
from jobsight.server.auth import BATCHES, AccessControl, TokenCache
from jobsight.store.store import Store

_DESCRIPTION = """What the jobs of a cluster really did.

Every route needs the server's token as `Authorization: Bearer TOKEN`; batches may come with the
token of their cluster instead. Times and durations are
integer nanoseconds (times in UTC since 1970), CPU time is nanoseconds, sizes are bytes, shares
run from 0 to 1; only the times of curves, and the times in questions, are in seconds, and sums of
use are in hours."""


def create_app(
    store: Store,
    token: str,
    *,
    allowed_hosts: Iterable[str] = (),
    settings: ServerSettings | None = None,
    keyring: TokenCache | None = None,
    remote: RemoteWriting | None = None,
    delay: float = 0.25,
) -> FastAPI:
    """Put the application together; nothing of it answers without the token. ``remote``
    gets a copy of every batch that is new."""
    keyring = keyring or TokenCache(store)
    app = FastAPI(
        title="jobsight",
        version=jobsight.__version__,
        description=_DESCRIPTION,
        # The usual documentation page loads its scripts from elsewhere; the description is enough.
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    errors.install(app)
    copy = remote.take if remote is not None else None
    taking = ingest.Ingest(store, keyring, settings or ServerSettings(), copy)
    app.router.routes.insert(0, Route(BATCHES, ingest.BatchRoute(taking), methods=["POST"]))
    app.include_router(jobs.create_router(store))
    app.include_router(health.create_health_router(store, more=remote.text if remote else None))
    app.include_router(health.create_discovery_router(store))
    app.include_router(usage.create_router(store))
    _add_pages(app, store)
    app.mount("/static", StaticFiles(directory=Path(web.__file__).parent / "static"))

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    app.add_middleware(
        AccessControl,
        token=token,
        keyring=keyring,
        hosts=allowed_hosts,
        sign_in_page=_sign_in_page,
        delay=delay,
    )
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _add_pages(app: FastAPI, store: Store) -> None:
    if importlib.util.find_spec("jobsight.web.pages") is not None:
        from jobsight.web.pages import create_router

        app.include_router(create_router(store, build_report))


def _sign_in_page(message: str) -> str:
    from jobsight.web.pages import render

    return render("sign-in.html", message=message)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, schemas = msgspec.json.schema_components(
            (*jobs.REPLIES, *usage.REPLIES, health.Health, health.TargetGroup),
            ref_template="#/components/schemas/{name}",
        )
        made["paths"][BATCHES] = {"post": ingest.BatchRoute.description()}
        components = made.setdefault("components", {})
        # FastAPI's own shape of a wrong parameter is not the one that is answered here.
        components["schemas"] = schemas
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        app.openapi_schema = made
    return app.openapi_schema
