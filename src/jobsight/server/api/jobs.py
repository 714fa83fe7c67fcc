"""The API for programs: jobs, their reports and curves.

Replies are msgspec structs, encoded once; their schemas stand in the OpenAPI description.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from jobsight.metrics import METRICS
from jobsight.model import SECOND, RunReference
from jobsight.reports.build import JobRow, build_report, job_row
from jobsight.reports.report import JobReport
from jobsight.server.api import series as curves
from jobsight.server.auth import RETRY_AFTER
from jobsight.server.errors import ErrorReply
from jobsight.server.receiver import Receipt
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store

#: The year 2262: the last moment that nanoseconds in 64 bits can name.
_LAST_SECOND = 9_223_372_036


class JobList(msgspec.Struct):
    """A page of the list of runs, the latest first."""

    #: How many runs fit the question, on all pages.
    total: int
    limit: int
    offset: int
    jobs: list[JobRow]


class MetricRow(msgspec.Struct):
    """What the name of a metric means."""

    name: str
    kind: str
    unit: str
    #: The unit of the curves: the rate of a counter, the value of a gauge.
    rate_unit: str
    title: str
    help: str


class MetricList(msgspec.Struct):
    metrics: list[MetricRow]


REPLIES = (JobList, JobReport, curves.SeriesReply, MetricList, Receipt, ErrorReply)

Text = Annotated[str | None, Query(max_length=200)]
Moment = Annotated[
    float | None, Query(ge=0, le=_LAST_SECOND, description="Seconds since 1970, UTC")
]
RunText = Annotated[
    str,
    Path(
        max_length=300,
        description="A job id such as 12 (its latest run), 62_3, 88+1, or cluster:12:start",
        # Described but not checked here: what is wrong is said better where it is read.
        json_schema_extra={
            "pattern": r"^([^:\s]+:)?[0-9]{1,18}([_+][0-9]{1,9})?(:[0-9]{8}T[0-9]{6}Z)?$",
            "examples": ["12"],
        },
    ),
]


def create_router(store: Store, *, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)])

    # Plain functions: FastAPI runs them in threads, so the store never blocks the event loop.
    @router.get("/jobs", tags=["jobs"], responses=replies(JobList, 422, 503))
    def jobs(
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        user: Text = None,
        account: Text = None,
        state: Text = None,
        search: Text = None,
        since: Moment = None,
    ) -> Response:
        """List the runs, the latest first."""
        wanted: dict[str, Any] = {
            "user": user,
            "account": account,
            "state": state,
            "search": search,
            "since": _nanoseconds(since),
        }
        rows = store.runs(limit=limit, offset=offset, **wanted)
        total = store.count_runs(**wanted)
        now = clock()
        return json_reply(JobList(total, limit, offset, [job_row(row, now) for row in rows]))

    @router.get("/jobs/{run}", tags=["jobs"], responses=replies(JobReport, 400, 404, 422, 503))
    def job(run: RunText) -> Response:
        """Report what one run asked for and used, and how sure each figure is."""
        return json_reply(build_report(store, find_run(store, run), clock=clock))

    @router.get(
        "/jobs/{run}/series",
        tags=["jobs"],
        responses=replies(curves.SeriesReply, 400, 404, 422, 503),
    )
    def series(
        run: RunText,
        metrics: Annotated[
            str | None, Query(max_length=4000, description="Names with commas; all by default")
        ] = None,
        points: Annotated[
            int,
            Query(ge=1, le=10_000, description="Points a curve; fewer on jobs of very many curves"),
        ] = 600,
        since: Moment = None,
        until: Moment = None,
    ) -> Response:
        """Give the curves of a run, node by node; counters as rates, at most so many points."""
        stored = find_run(store, run)
        names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
        found = store.series(
            stored.id,
            metrics=names or None,
            since=_nanoseconds(since),
            until=_nanoseconds(until),
        )
        return json_reply(curves.reply(str(stored.run), found, names, points))

    @router.get("/metrics", tags=["metrics"], responses=replies(MetricList, 422))
    def metrics() -> Response:
        """Say what each metric means."""
        rows = [
            MetricRow(row.name, row.kind, row.unit, row.rate_unit, row.title, row.help)
            for row in METRICS.values()
        ]
        return json_reply(MetricList(rows))

    return router


async def check_parameters(request: Request) -> None:
    """Refuse what the route of a request does not know."""
    route: Any = request.scope["route"]
    refuse_unknown(request, [field.alias for field in route.dependant.query_params])


def refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Refuse parameters that are unknown or given twice: ?usr=bob must not list everybody."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
            )
            raise HTTPException(422, f"unknown parameter {name[:80]!r}; {hint}")
        if given.count(name) > 1:
            raise HTTPException(422, f"the parameter {name} is given twice")


def find_run(store: Store, text: str) -> StoredRun:
    """The run that a text names; a text that names none is the asker's mistake."""
    try:
        reference = RunReference.parse(text)
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    return store.find(reference)


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else min(round(seconds * SECOND), 2**63 - 1)


def json_reply(reply: msgspec.Struct) -> Response:
    """A struct as the answer of a route."""
    return Response(msgspec.json.encode(reply), media_type="application/json")


_MEANINGS = {
    400: "The text does not name what it should",
    404: "There is no such run",
    403: "The token or the certificate does not open this",
    408: "The batch did not come in time",
    413: "The batch is too large",
    422: "A parameter or the content of a batch is refused",
    429: "The agent sends too much; try again after the seconds of Retry-After",
    503: f"The store cannot be used now; try again after {RETRY_AFTER} seconds",
}


def replies(good: type[msgspec.Struct], *bad: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route for its description: the good one, and the refusals by status."""

    def described(meaning: str, reply: type) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{reply.__name__}"}
        return {"description": meaning, "content": {"application/json": {"schema": schema}}}

    replies: dict[int | str, dict[str, Any]] = {200: described("The answer", good)}
    replies[401] = described("The token is missing or wrong", ErrorReply)
    for status in bad:
        replies[status] = described(_MEANINGS[status], ErrorReply)
    return replies
