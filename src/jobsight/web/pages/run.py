"""The page of one run, and of a job that waits."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from fastapi import APIRouter, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, StreamingResponse

from jobsight.access.policy import Account, User, may_see, visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.findings.service import FindingsService
from jobsight.metrics import METRICS, Metric
from jobsight.model import RunReference
from jobsight.reports import series as time_series
from jobsight.reports.build import JobRow, job_row
from jobsight.reports.pending import find_report
from jobsight.store.findings.works import find_script
from jobsight.store.findings.write import NoSuchFinding, set_reply
from jobsight.store.history import find_work, work_of_run
from jobsight.store.read.external import SeriesError
from jobsight.store.read.queries import MetricSummary, TooLarge
from jobsight.store.read.visibility import Visibility
from jobsight.store.store import Store
from jobsight.text import readable_text
from jobsight.util.outer import format_rfc3339
from jobsight.web.render import page, path_of_run

logger = logging.getLogger(__name__)

#: Other runs of the same work, and points of each time series in a file.
MAX_SIMILAR: Final = 6
MAX_CSV_POINTS: Final = 10_000
#: What a viewer can say about a finding; "open" takes a reply back.
REPLIES: Final = ("acknowledged", "not helpful", "open")

#: All who have the server's token are one viewer.
_SERVER_TOKEN = "signed in"


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
        viewer, visibility = viewer_of(request.scope), visibility_of(request)
        report = find_report(
            store, reference, visibility=visibility, clock=clock, prices=findings.prices
        )
        # A page that refreshes itself is not shown again.
        if "if-none-match" not in request.headers:
            shown_to = viewer.name or _SERVER_TOKEN
            findings.record(report.run, report.findings, shown_to, "page")
        summaries: list[SeriesSummary] = []
        series_reason, similar = "", None
        if not report.pending:
            run_id = store.find(reference, visibility).id
            summaries, series_reason = series_summaries(store, run_id)
            similar = find_similar(store, run_id, visibility, clock())
        return page(
            request,
            "run.html",
            report=report,
            summaries=summaries,
            series_reason=series_reason,
            similar=similar,
            sees_user=report.user is not None and may_see(viewer, User(report.user)),
            sees_account=report.account is not None and may_see(viewer, Account(report.account)),
        )

    @router.post("/jobs/{run}/findings/{kind}")
    async def reply_to_finding(request: Request, run: str, kind: str) -> RedirectResponse:
        # The access control has read the form, which is small, and checked its CSRF token.
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        state = form.get("state", "")
        if state not in REPLIES:
            raise HTTPException(422, f"state: expected one of {', '.join(REPLIES)}")
        return await run_in_threadpool(_reply, request, run, kind, state)

    def _reply(request: Request, run: str, kind: str, state: Any) -> RedirectResponse:
        try:
            reference = RunReference.parse(run)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        stored = store.find(reference, visibility_of(request))
        user = viewer_of(request.scope).name or "the server's token"
        try:
            set_reply(store.database, stored.id, kind, state, user, clock())
        except NoSuchFinding as error:
            raise HTTPException(404, str(error)) from None
        root = request.scope.get("root_path", "")
        address = f"{root}/jobs/{path_of_run(str(stored.run))}#findings"
        return RedirectResponse(address, status_code=303)

    @router.get("/jobs/{run}/series.csv")
    def series_as_csv(request: Request, run: str) -> StreamingResponse:
        try:
            reference = RunReference.parse(run)
        except ValueError as error:
            raise HTTPException(404, str(error)) from None
        stored = store.find(reference, visibility_of(request))
        series = store.series(stored.id)
        reply = time_series.reply(str(stored.run), series, (), MAX_CSV_POINTS)
        headers = {"Content-Disposition": f'attachment; filename="{stored.info.job_id}.csv"'}
        return StreamingResponse(
            series_lines(reply), media_type="text/csv; charset=utf-8", headers=headers
        )


class SimilarRuns(NamedTuple):
    """Other runs of the same work."""

    #: "script", "name" or "signature".
    kind: str
    key: str
    #: The latest ones before and after the run.
    rows: list[JobRow]
    #: The batch script, where the site stores it.
    text: str | None


def find_similar(store: Store, run_id: int, visibility: Visibility, now: int) -> SimilarRuns | None:
    """The latest runs of the same work; None if the run was not assigned to one yet."""
    work_id = work_of_run(store.database, run_id)
    work = None if work_id is None else find_work(store.database, work_id)
    if work is None:
        return None
    runs = store.runs(limit=MAX_SIMILAR + 1, work_ids=[work.id], visibility=visibility)
    return SimilarRuns(
        kind=work.kind,
        key=work.key.hex(),
        rows=[job_row(run, now) for run in runs if run.id != run_id][:MAX_SIMILAR],
        text=find_script(store.database, work.key) if work.kind == "script" else None,
    )


def series_lines(reply: time_series.SeriesReply) -> Iterator[str]:
    """The time series as CSV: a line for each node and time, rates of counters."""
    names = sorted({name for node in reply.nodes for name in node.metrics})
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["node", "time", *names])
    for node in reply.nodes:
        columns = [node.metrics[name].mean if name in node.metrics else None for name in names]
        for index, moment in enumerate(node.times_seconds):
            time = format_rfc3339(round(moment * 1e9))
            values = [None if column is None else column[index] for column in columns]
            # A gap is NaN, which CSV has no text for.
            known = [value if value == value else None for value in values]
            writer.writerow([readable_text(node.node), time, *known])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def series_summaries(store: Store, run_id: int) -> tuple[list[SeriesSummary], str]:
    """The time series as numbers over all nodes, in the order of the table of metrics; and why they
    cannot be read, if so: the page shows everything else."""
    rows: dict[str, list[MetricSummary]] = {}
    try:
        summaries = store.summaries(run_id)
    except (TooLarge, SeriesError) as error:
        logger.warning("the page of a run has no time series: %s", error)
        return [], str(error)
    for row in summaries:
        rows.setdefault(row.metric, []).append(row)
    return [_summary(metric, rows[name]) for name, metric in METRICS.items() if name in rows], ""


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
