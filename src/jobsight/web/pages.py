"""The two pages: the list of runs and the page of one run, rendered on the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.metrics import METRICS, Metric
from jobsight.model import RunReference
from jobsight.reports.build import JobRow, job_row
from jobsight.reports.report import JobReport
from jobsight.store.read.queries import MetricSummary, StoredRun
from jobsight.store.store import Store
from jobsight.web.templating import render

ROWS = 50

#: Offered by the filter, in the order in which people look for them.
STATES = ("RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "PENDING")

Text = Annotated[str, Query(max_length=200)]


class RunsPage(msgspec.Struct, kw_only=True):
    """What the list shows: its rows, and the question that led to them."""

    rows: list[JobRow]
    total: int
    offset: int
    search: str
    user: str
    state: str

    @property
    def states(self) -> tuple[str, ...]:
        known = not self.state or self.state in STATES
        return STATES if known else (*STATES, self.state)

    @property
    def filtered(self) -> bool:
        return bool(self.search or self.user or self.state)

    @property
    def running(self) -> bool:
        return any(row.running for row in self.rows)

    @property
    def first(self) -> int:
        return self.offset + 1

    @property
    def last(self) -> int:
        return self.offset + len(self.rows)

    @property
    def newer(self) -> str | None:
        return self._address(max(self.offset - ROWS, 0)) if self.offset else None

    @property
    def older(self) -> str | None:
        return self._address(self.offset + ROWS) if self.last < self.total else None

    def _address(self, offset: int) -> str:
        asked = {"search": self.search, "user": self.user, "state": self.state}
        pairs = {name: value for name, value in asked.items() if value}
        return "?" + urlencode(pairs | ({"offset": str(offset)} if offset else {}))


class CurveSummary(msgspec.Struct):
    """A metric in numbers, for a browser that cannot draw it.

    A counter's own least and mean say nothing: of it only the total is given.
    """

    title: str
    help: str
    unit: str
    minimum: float | None = None
    mean: float | None = None
    maximum: float | None = None
    last: float | None = None
    total: float | None = None


def create_router(
    store: Store,
    build_report: Callable[[Store, StoredRun], JobReport],
    *,
    clock: Callable[[], int] = time.time_ns,
) -> APIRouter:
    """The routes of the pages."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    # Plain functions: FastAPI runs them in threads, so the store never blocks the event loop.
    @router.get("/")
    def runs(
        request: Request,
        search: Text = "",
        user: Text = "",
        state: Text = "",
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    ) -> HTMLResponse:
        asked: dict[str, Any] = {
            "search": search.strip() or None,
            "user": user.strip() or None,
            "state": state or None,
        }
        now = clock()
        page = RunsPage(
            rows=[job_row(row, now) for row in store.runs(limit=ROWS, offset=offset, **asked)],
            total=store.count_runs(**asked),
            offset=offset,
            search=search,
            user=user,
            state=state,
        )
        return _answer(request, "runs.html", page=page)

    @router.get("/jobs/{run}")
    def run(request: Request, run: str) -> HTMLResponse:
        try:
            reference = RunReference.parse(run)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        stored = store.find(reference)
        return _answer(
            request,
            "run.html",
            report=build_report(store, stored),
            summaries=curve_summaries(store, stored.id),
        )

    return router


def curve_summaries(store: Store, run_id: int) -> list[CurveSummary]:
    """The curves in numbers over all nodes, in the order of the table of metrics."""
    found: dict[str, list[MetricSummary]] = {}
    for row in store.summaries(run_id):
        found.setdefault(row.metric, []).append(row)
    return [_summary(metric, found[name]) for name, metric in METRICS.items() if name in found]


def _summary(metric: Metric, rows: list[MetricSummary]) -> CurveSummary:
    made = CurveSummary(metric.title, metric.help, metric.unit)
    if metric.kind == "counter":
        made.total = sum(row.last for row in rows)
    else:
        made.minimum = min(row.minimum for row in rows)
        made.mean = fmean(row.mean for row in rows)
        made.maximum = max(row.maximum for row in rows)
        made.last = fmean(row.last for row in rows)
    return made


def _answer(request: Request, template: str, **context: Any) -> HTMLResponse:
    # Behind a proxy the pages may live under a prefix, which every address then carries.
    root = request.scope.get("root_path", "")
    return HTMLResponse(render(template, root=root, **context))
