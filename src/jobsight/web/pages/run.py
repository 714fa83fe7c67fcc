"""The page of one run, and of a job that waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from statistics import fmean

import msgspec
from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import visibility_of
from jobsight.findings.service import FindingsService
from jobsight.metrics import METRICS, Metric
from jobsight.model import RunReference
from jobsight.reports.pending import find_report
from jobsight.store.read.queries import MetricSummary, TooLarge
from jobsight.store.store import Store
from jobsight.web.render import page

logger = logging.getLogger(__name__)

#: All who have the server's token are one viewer.
_VIEWER = "signed in"


class SeriesSummary(msgspec.Struct):
    """A metric as numbers, for a browser without JavaScript.

    A counter has only a total; its minimum and mean have no meaning.
    """

    title: str
    help: str
    unit: str
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None
    last: float | None = None
    total: float | None = None


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the route of the page."""

    # Not async: FastAPI runs it in a thread, so that the store does not block the event loop.
    @router.get("/jobs/{run}")
    def run(request: Request, run: str) -> HTMLResponse:
        try:
            reference = RunReference.parse(run)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        visibility = visibility_of(request)
        report = find_report(
            store, reference, visibility=visibility, clock=clock, prices=findings.prices
        )
        # A page that refreshes itself is not shown again.
        if "if-none-match" not in request.headers:
            findings.record(report.run, report.findings, _VIEWER, "page")
        summaries = []
        if not report.pending:
            summaries = series_summaries(store, store.find(reference, visibility).id)
        return page(request, "run.html", report=report, summaries=summaries)


def series_summaries(store: Store, run_id: int) -> list[SeriesSummary]:
    """The time series as numbers over all nodes, in the order of the table of metrics."""
    rows: dict[str, list[MetricSummary]] = {}
    try:
        summaries = store.summaries(run_id)
    except TooLarge as error:
        # The page shows everything else; its charts give the reason.
        logger.warning("the page of a run has no summaries: %s", error)
        return []
    for row in summaries:
        rows.setdefault(row.metric, []).append(row)
    return [_summary(metric, rows[name]) for name, metric in METRICS.items() if name in rows]


def _summary(metric: Metric, rows: list[MetricSummary]) -> SeriesSummary:
    summary = SeriesSummary(metric.title, metric.help, metric.unit)
    if metric.kind == "counter":
        summary.total = sum(row.last for row in rows)
    else:
        summary.minimum = min(row.minimum for row in rows)
        summary.mean = fmean(row.mean for row in rows)
        summary.maximum = max(row.maximum for row in rows)
        summary.last = fmean(row.last for row in rows)
    return summary
