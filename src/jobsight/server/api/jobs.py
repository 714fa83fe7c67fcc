"""API routes of jobs: the list, the report and the time series of a run, and the metrics.

A job is the resource, a run its item: a requeued job has several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query
from pydantic import BeforeValidator, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import visibility_of
from jobsight.findings.service import FindingsService
from jobsight.metrics import METRICS, NODE_METRICS
from jobsight.reports import series as time_series
from jobsight.reports.build import JobRow
from jobsight.reports.pending import CURSOR_PATTERN, MAX_OFFSET, Cursor, find_report, list_page
from jobsight.reports.report import JobReport
from jobsight.server.api.common import (
    MetricNames,
    PointCount,
    RunText,
    Selection,
    StateParameter,
    Text,
    TimeParameter,
    ViewerParameter,
    check_parameters,
    find_run,
    json_reply,
    page_reply,
    parse_reference,
    replies,
    shown_to,
)
from jobsight.server.problems import Problem
from jobsight.server.receiver import Receipt
from jobsight.store.read.filters import SORTS, Filters, Sort
from jobsight.store.store import Store


class JobList(msgspec.Struct):
    """A page of the list of runs, the latest first."""

    #: Runs that match the filter, on all pages; at most 2,000 are counted.
    total: int
    #: False if there are more than ``total``.
    total_exact: bool
    limit: int
    offset: int
    #: The cursor of the next page; null on the last one.
    next: str | None
    jobs: list[JobRow]


Share = Annotated[
    float | None, Query(ge=0, le=1000, description="Used CPU time of what was requested")
]


def check_sort(value: str) -> str:
    """Refuse what lists are not sorted by."""
    return str(Sort.parse(value))


SortParameter = Annotated[
    str,
    BeforeValidator(check_sort),
    WithJsonSchema(
        {"type": "string", "enum": [f"{sign}{key}" for key in SORTS for sign in ("", "-")]}
    ),
    Query(description="The column to sort by; descending with a minus sign"),
]


class MetricRow(msgspec.Struct):
    """The meaning of a metric's name."""

    name: str
    kind: str
    unit: str
    #: The unit in time series: the rate of a counter, the value of a gauge.
    rate_unit: str
    title: str
    help: str


class MetricList(msgspec.Struct):
    metrics: list[MetricRow]


JOB_FIELDS = Selection(JobRow, "run")

REPLIES = (
    *(JobList, JobReport, time_series.SeriesReply, time_series.SamplesReply, MetricList),
    *(Receipt, Problem),
)


def create_router(
    store: Store, findings: FindingsService, *, clock: Callable[[], int] = time.time_ns
) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)])

    # Not async: FastAPI runs them in threads, so that the store does not block the event loop.
    @router.get("/jobs", tags=["jobs"], responses=replies(JobList, 304, 422, 503))
    def jobs(  # noqa: PLR0913 -- FastAPI: one for each parameter of the query
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        offset: Annotated[
            int, Query(ge=0, le=MAX_OFFSET, description="Rows to skip; further on, use the cursor")
        ] = 0,
        cursor: Annotated[
            str | None,
            Query(
                pattern=CURSOR_PATTERN,
                description="`next` of the page before; takes precedence over the offset",
            ),
        ] = None,
        user: Text = None,
        account: Text = None,
        state: StateParameter = None,
        search: Text = None,
        since: TimeParameter = None,
        until: Annotated[TimeParameter, Query(description="Only runs that started before")] = None,
        cluster: Text = None,
        partition: Text = None,
        qos: Text = None,
        name: Text = None,
        node: Annotated[str | None, Query(max_length=200, description="A node of the run")] = None,
        software: Annotated[
            str | None, Query(max_length=200, description="A software name that the run used")
        ] = None,
        chain: Annotated[
            int | None,
            Query(
                ge=1,
                lt=2**63,
                description="Jobs that depend on each other, by the `chain_job_id` of one of them",
            ),
        ] = None,
        array: Annotated[
            int | None, Query(ge=1, lt=2**63, description="Tasks of the array with this id")
        ] = None,
        gpus: Annotated[bool, Query(description="Only runs that held or requested a GPU")] = False,
        unused_gpus: Annotated[
            bool, Query(description="Only runs that held a GPU which they never used")
        ] = False,
        cpu_share_below: Share = None,
        cpu_share_above: Share = None,
        finding: Annotated[
            str | None,
            Query(max_length=100, description="Only runs with a finding of this kind, or of `any`"),
        ] = None,
        with_property: Annotated[
            str | None,
            Query(
                alias="property",
                max_length=500,
                description="Only jobs with a property: its name, or `name:value`",
            ),
        ] = None,
        sort: SortParameter = "-start",
        fields: Annotated[str | None, JOB_FIELDS.query] = None,
    ) -> Response:
        """List the runs, the latest first; those that wait with the state PENDING."""
        filters: Filters = {
            "user": user,
            "account": account,
            "state": state,
            "search": search,
            "since": since,
            "until": until,
            "cluster": cluster,
            "partition": partition,
            "qos": qos,
            "name": name,
            "node": node,
            "software": software,
            "chain_job_id": chain,
            "array_job_id": array,
            "gpus": gpus,
            "unused_gpus": unused_gpus,
            "cpu_share_below": cpu_share_below,
            "cpu_share_above": cpu_share_above,
            "finding": finding,
            "property": _property(with_property),
            "visibility": visibility_of(request),
        }
        order = Sort.parse(sort)
        try:
            position = None if cursor is None else Cursor.parse(cursor, order)
        except ValueError as error:
            raise HTTPException(422, f"cursor: {error}") from None
        page = list_page(
            store, now=clock(), limit=limit, offset=offset, cursor=position, sort=order, **filters
        )
        following = None if page.next is None else str(page.next)
        reply = JobList(page.total, page.total_exact, limit, offset, following, page.rows)
        return page_reply(request, reply, "jobs", JOB_FIELDS.parse(fields))

    @router.get("/jobs/{run}", tags=["jobs"], responses=replies(JobReport, 304, 400, 404, 422, 503))
    def job(request: Request, run: RunText, viewer: ViewerParameter = None) -> Response:
        """Report what one run requested and used, with the coverage of each figure."""
        reference = parse_reference(run)
        report = find_report(
            store,
            reference,
            visibility=visibility_of(request),
            clock=clock,
            prices=findings.prices,
        )
        findings.record(report.run, report.findings, shown_to(request, viewer), "api")
        return json_reply(report)

    def find_series(
        request: Request,
        run: str,
        metrics: str | None,
        points: int,
        since: int | None,
        until: int | None,
    ) -> time_series.SeriesReply:
        stored = find_run(store, run, visibility_of(request))
        names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
        series = store.series(stored.id, metrics=names or None, since=since, until=until)
        return time_series.reply(str(stored.run), series, names, points)

    @router.get(
        "/jobs/{run}/series",
        tags=["jobs"],
        responses=replies(time_series.SeriesReply, 304, 400, 404, 413, 422, 503),
    )
    def series_of_run(
        request: Request,
        run: RunText,
        metrics: MetricNames = None,
        points: PointCount = 600,
        since: TimeParameter = None,
        until: TimeParameter = None,
    ) -> Response:
        """The time series of a run by node, downsampled; counters as rates."""
        return json_reply(find_series(request, run, metrics, points, since, until))

    @router.get(
        "/jobs/{run}/samples",
        tags=["jobs"],
        responses=replies(time_series.SamplesReply, 400, 404, 413, 422, 503),
    )
    def samples_of_run(
        request: Request,
        run: RunText,
        metrics: MetricNames = None,
        points: PointCount = 200,
        since: TimeParameter = None,
        until: TimeParameter = None,
    ) -> Response:
        """The same as rows, one for each node, metric and time, for tables and Grafana."""
        series = find_series(request, run, metrics, points, since, until)
        return json_reply(time_series.as_rows(series))

    @router.get("/metrics", tags=["metrics"], responses=replies(MetricList, 422))
    def metrics() -> Response:
        """List the metrics with their units and meanings."""
        rows = [
            MetricRow(row.name, row.kind, row.unit, row.rate_unit, row.title, row.help)
            for row in (*METRICS.values(), *NODE_METRICS.values())
        ]
        return json_reply(MetricList(rows))

    return router


def _property(text: str | None) -> tuple[str, str | None] | None:
    if text is None:
        return None
    name, colon, value = text.partition(":")
    return name, value if colon else None
