"""API routes of the files of a job: its report as PDF and HTML, and its plots as SVG.

Drawing takes longer than any other request, so :class:`DrawingQueue` limits how many draw at the
same time; the libraries that draw are imported with the first of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from fastapi import APIRouter, Depends, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import visibility_of
from jobsight.findings.reported import add_address
from jobsight.findings.service import FindingsService
from jobsight.reports.pending import find_report
from jobsight.reports.report import JobReport
from jobsight.server.api.common import RunText, check_parameters, parse_reference, replies
from jobsight.server.auth import RETRY_AFTER
from jobsight.server.problems import Problem
from jobsight.store.store import Store

#: Requests that draw at the same time, and those that wait for it; further ones are refused.
MAX_DRAWN: Final = 2
WAITING: Final = 32

#: The plots of :mod:`jobsight.reports.plots`, which is not imported before it is needed.
PlotName = Literal[
    "cpu",
    "memory",
    "gpu",
    "gpu-memory",
    "storage",
    "waiting",
    "cpu-map",
    "memory-map",
    "gpu-map",
    "gpu-memory-map",
    "storage-map",
]

#: HTML and SVG have styles of their own. Nothing is executed or loaded.
CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)

_Result = TypeVar("_Result")


class DrawingQueue:
    """Runs functions that draw in the thread pool, a few at a time."""

    def __init__(self, max_drawn: int = MAX_DRAWN, waiting: int = WAITING) -> None:
        self._slots = asyncio.Semaphore(max_drawn)
        self._most_waiting = waiting
        self._waiting = 0

    async def run(self, function: Callable[[], _Result]) -> _Result:
        """The result of the function; 503 if too many wait already."""
        if self._slots.locked() and self._waiting >= self._most_waiting:
            raise HTTPException(
                503,
                f"{self._waiting} requests wait to be drawn; try again later",
                {"Retry-After": str(RETRY_AFTER)},
            )
        # Who waits holds no thread: other routes need them.
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await run_in_threadpool(function)
        finally:
            self._slots.release()


def create_router(
    store: Store,
    findings: FindingsService,
    queue: DrawingQueue,
    *,
    clock: Callable[[], int] = time.time_ns,
) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(
        prefix="/api/v1/jobs/{run}",
        dependencies=[Depends(check_parameters)],
        tags=["jobs"],
        default_response_class=Response,
    )

    def report_of(request: Request, run: str) -> JobReport:
        report = find_report(
            store,
            parse_reference(run),
            visibility=visibility_of(request),
            clock=clock,
            prices=findings.prices,
        )
        # A file is opened elsewhere: a path would lead nowhere.
        add_address(report.findings, str(request.base_url))
        return report

    @router.get("/report.pdf", responses=file_replies("application/pdf", binary=True))
    async def report_pdf(request: Request, run: RunText) -> Response:
        """The report of one run as PDF, with charts and heat maps."""

        def draw() -> Response:
            from jobsight.reports.with_plots import pdf_of, read_series

            report = report_of(request, run)
            data = pdf_of(report, read_series(store, report), clock())
            return file_reply(data, "application/pdf", f"job-{report.display_id}.pdf")

        return await queue.run(draw)

    @router.get("/report.html", responses=file_replies("text/html"))
    def report_html(request: Request, run: RunText) -> Response:
        """The report of one run as an HTML page without scripts and external resources."""
        from jobsight.reports.document import build_document
        from jobsight.reports.html import render_html

        report = report_of(request, run)
        return file_reply(
            render_html(build_document(report, now=clock())).encode(), "text/html; charset=utf-8"
        )

    @router.get("/plots/{name}.svg", responses=file_replies("image/svg+xml"))
    async def plot(request: Request, run: RunText, name: PlotName) -> Response:
        """One plot of a run as SVG; the `-map` are heat maps of nodes or GPUs by time."""

        def draw() -> Response:
            from jobsight.reports.with_plots import draw_report, read_series

            report = report_of(request, run)
            series = read_series(store, report)
            plots = [] if series is None else draw_report(report, series, "svg", {name})
            if not plots:
                raise HTTPException(404, f"job {report.display_id} has no data for the plot {name}")
            return file_reply(plots[0].data, "image/svg+xml")

        return await queue.run(draw)

    return router


def file_reply(data: bytes, media_type: str, name: str | None = None) -> Response:
    """A file that a browser shows or, with a name, saves."""
    headers = {"Content-Security-Policy": CONTENT_POLICY}
    if name is not None:
        # The viewers of browsers are parts that the policy does not permit.
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return Response(data, media_type=media_type, headers=headers)


def file_replies(media_type: str, *, binary: bool = False) -> dict[int | str, dict[str, Any]]:
    """The replies of a route that sends a file, for the OpenAPI description."""
    schema = {"type": "string", "format": "binary"} if binary else {"type": "string"}
    described = replies(Problem, 400, 403, 404, 413, 422, 503)
    described[200] = {"description": "Success", "content": {media_type: {"schema": schema}}}
    return described
