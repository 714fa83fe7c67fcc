"""The first page: the jobs of the viewer, or of the site for staff."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.reports.home import home_report
from jobsight.store.store import Store
from jobsight.web.pages.jobs import COLUMNS
from jobsight.web.render import page

#: Columns of the runs that have ended.
_RECENT = ("run", "state", "name", "user", "start", "elapsed", "cpu", "memory", "gpus")


def add_routes(router: APIRouter, store: Store, clock: Callable[[], int]) -> None:
    """Add the route of the page."""

    # Not async: FastAPI runs it in a thread, so that the store does not block the event loop.
    @router.get("/")
    def home(request: Request) -> HTMLResponse:
        viewer = viewer_of(request.scope)
        # Staff and the server's token see the whole site; everybody else their own jobs.
        user = None if viewer.is_staff or viewer.visibility.everything else viewer.name or ""
        report = home_report(store, user, visibility_of(request), clock())
        own = user is not None
        columns = {name: COLUMNS[name] for name in _RECENT if not (own and name == "user")}
        if not any(row.gpu_count or row.requested_gpus for row in report.recent):
            del columns["gpus"]
        return page(request, "home.html", report=report, user=user, columns=columns)
