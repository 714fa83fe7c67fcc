"""API routes of jobs: the list, the report and the time series of a run, and the metrics.

The other modules of the package use its helpers. Replies are msgspec structs, which also give the
schemas of the OpenAPI description; :mod:`jobsight.util.outer` converts them to outer units.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from pydantic import BeforeValidator, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import visibility_of
from jobsight.findings.service import FindingsService
from jobsight.metrics import METRICS
from jobsight.model import RunReference
from jobsight.reports import series as time_series
from jobsight.reports.build import JobRow
from jobsight.reports.pending import CURSOR_PATTERN, MAX_OFFSET, Cursor, find_report, list_page
from jobsight.reports.report import STATES, JobReport, parse_state
from jobsight.server.auth import RETRY_AFTER
from jobsight.server.errors import ErrorReply
from jobsight.server.receiver import Receipt
from jobsight.store.read.queries import Filters, StoredRun
from jobsight.store.read.visibility import Visibility
from jobsight.store.store import Store
from jobsight.util.outer import encode_json, from_seconds, parse_rfc3339

#: The largest time in nanoseconds that fits into 64 bits, in seconds: the year 2262.
_MAX_SECONDS = 9_223_372_036


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


REPLIES = (JobList, JobReport, time_series.SeriesReply, MetricList, Receipt, ErrorReply)

Text = Annotated[str | None, Query(max_length=200)]


def parse_time(value: str | None) -> int | None:
    """Nanoseconds since 1970 from an RFC 3339 time or seconds since 1970.

    RFC 3339 has years 0 to 9999; a time beyond what the store can hold is moved to its limit.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return min(max(parse_rfc3339(value), 0), 2**63 - 1)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"{value!r} is not between 0 and {_MAX_SECONDS} seconds since 1970")
    return min(from_seconds(seconds), 2**63 - 1)


TimeParameter = Annotated[
    int | None,
    BeforeValidator(parse_time),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "number", "minimum": 0, "maximum": _MAX_SECONDS},
            ]
        }
    ),
    Query(description="RFC 3339, or seconds since 1970 (UTC)"),
]


def check_state(value: str | None) -> str | None:
    """Refuse a state that no job can have: its list would be empty for ever."""
    if value is not None and value != parse_state(value):
        raise ValueError(f"states are written in capitals: {parse_state(value)}")
    return value


StateParameter = Annotated[
    str | None,
    BeforeValidator(check_state),
    WithJsonSchema({"type": "string", "enum": [*STATES]}),
    Query(description="The state that the list shows"),
]
ViewerParameter = Annotated[
    str | None,
    Query(max_length=64, description="Who is shown the findings: recorded, see `effect`"),
]
RunText = Annotated[
    str,
    Path(
        max_length=300,
        description="A job id such as 12 (its latest run), 62_3, 88+1, or cluster:12:start",
        # Described but not checked here: RunReference.parse has the better error message.
        json_schema_extra={
            "pattern": r"^([^:\s]+:)?[0-9]{1,18}([_+][0-9]{1,9})?(:[0-9]{8}T[0-9]{6}Z)?$",
            "examples": ["12"],
        },
    ),
]


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
        unused_gpus: Annotated[
            bool, Query(description="Only runs that held a GPU which they never used")
        ] = False,
        finding: Annotated[
            str | None,
            Query(max_length=100, description="Only runs with a finding of this kind, or of `any`"),
        ] = None,
    ) -> Response:
        """List the runs, the latest first."""
        filters: Filters = {
            "user": user,
            "account": account,
            "state": state,
            "search": search,
            "since": since,
            "unused_gpus": unused_gpus,
            "finding": finding,
            "visibility": visibility_of(request),
        }
        position = None if cursor is None else Cursor.parse(cursor)
        page = list_page(store, now=clock(), limit=limit, offset=offset, cursor=position, **filters)
        following = None if page.next is None else str(page.next)
        return json_reply(
            JobList(page.total, page.total_exact, limit, offset, following, page.rows)
        )

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
        findings.record(report.run, report.findings, viewer, "api")
        return json_reply(report)

    @router.get(
        "/jobs/{run}/series",
        tags=["jobs"],
        responses=replies(time_series.SeriesReply, 304, 400, 404, 413, 422, 503),
    )
    def series_of_run(
        request: Request,
        run: RunText,
        metrics: Annotated[
            str | None, Query(max_length=4000, description="Comma-separated names; all by default")
        ] = None,
        points: Annotated[
            int,
            Query(
                ge=1,
                le=10_000,
                description="Maximum per time series; fewer for jobs with very many",
            ),
        ] = 600,
        since: TimeParameter = None,
        until: TimeParameter = None,
    ) -> Response:
        """The time series of a run by node, downsampled; counters as rates."""
        stored = find_run(store, run, visibility_of(request))
        names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
        series = store.series(stored.id, metrics=names or None, since=since, until=until)
        return json_reply(time_series.reply(str(stored.run), series, names, points))

    @router.get("/metrics", tags=["metrics"], responses=replies(MetricList, 422))
    def metrics() -> Response:
        """List the metrics with their units and meanings."""
        rows = [
            MetricRow(row.name, row.kind, row.unit, row.rate_unit, row.title, row.help)
            for row in METRICS.values()
        ]
        return json_reply(MetricList(rows))

    return router


async def check_parameters(request: Request) -> None:
    """Refuse parameters that the route does not have."""
    route: Any = request.scope["route"]
    refuse_unknown(request, [field.alias for field in route.dependant.query_params])


def refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Refuse unknown and repeated parameters: ?usr=bob must not list the jobs of all users."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected: {', '.join(known) or 'none'}"
            raise HTTPException(422, f"unknown parameter {name[:80]!r}; {hint}")
        if given.count(name) > 1:
            raise HTTPException(422, f"the parameter {name} is repeated")


def find_run(store: Store, text: str, visibility: Visibility) -> StoredRun:
    """The run of a reference; 400 if the text is not one, 404 if there is no such run."""
    return store.find(parse_reference(text), visibility)


def parse_reference(text: str) -> RunReference:
    """A reference; 400 if the text is not one."""
    try:
        return RunReference.parse(text)
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def json_reply(reply: msgspec.Struct) -> Response:
    """A reply in outer units."""
    return Response(encode_json(reply), media_type="application/json")


_MEANINGS = {
    304: "Not changed since the reply with the ETag that If-None-Match names",
    400: "Invalid run reference, batch or Host header",
    403: "The token or the certificate does not permit this",
    404: "No such run",
    408: "The batch was not complete in time",
    413: "The batch, or what a query would read, is too large",
    422: "Invalid parameter, or invalid content of a batch",
    429: "The agent exceeds its rate limit; see Retry-After",
    503: f"The store is not available; try again after {RETRY_AFTER} seconds",
}


def replies(success: type[msgspec.Struct], *errors: int) -> dict[int | str, dict[str, Any]]:
    """The replies of a route by status, for the OpenAPI description."""

    def described(meaning: str, reply: type) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{reply.__name__}"}
        return {"description": meaning, "content": {"application/json": {"schema": schema}}}

    replies: dict[int | str, dict[str, Any]] = {200: described("Success", success)}
    replies[401] = described("The token is missing or invalid", ErrorReply)
    for status in errors:
        if status == 304:
            replies[status] = {"description": _MEANINGS[status]}
        else:
            replies[status] = described(_MEANINGS[status], ErrorReply)
    return replies
