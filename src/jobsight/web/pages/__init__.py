"""The routes of the pages, one module for each kind of page. Start reading with ``jobs``."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from jobsight.findings.service import FindingsService
from jobsight.store.store import Store
from jobsight.web.pages import (
    clusters,
    compare,
    findings,
    groups,
    help,
    home,
    jobs,
    operations,
    people,
    run,
    software,
)


def create_router(
    store: Store,
    service: FindingsService,
    *,
    clock: Callable[[], int] = time.time_ns,
    health: operations.ReadHealth | None = None,
) -> APIRouter:
    """The routes of all pages; that of operations only with a ``health`` to show."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    home.add_routes(router, store, clock)
    jobs.add_routes(router, store, service, clock)
    run.add_routes(router, store, service, clock)
    groups.add_routes(router, store, service, clock)
    compare.add_routes(router, store, service, clock)
    findings.add_routes(router, store, service, clock)
    clusters.add_routes(router, store, clock)
    people.add_routes(router, store, service, clock)
    software.add_routes(router, store, clock)
    if health is not None:
        operations.add_routes(router, store, clock, health)
    help.add_routes(router)
    return router
