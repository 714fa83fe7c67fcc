"""The web pages: the list of runs and the page of one run, rendered on the server.

:func:`create_router` has the routes. :func:`render` renders a template; everything is escaped, and
figures are formatted by ``util.units``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from statistics import fmean
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter, HTTPException, Query
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

import jobsight
from jobsight.access.policy import visibility_of
from jobsight.findings.service import FindingsService
from jobsight.metrics import METRICS, Metric
from jobsight.model import SECOND, RunReference
from jobsight.reports.build import JobRow
from jobsight.reports.gpu import LOW, MANY, conspicuous_first, gpu_remark, gpu_tone
from jobsight.reports.pending import CURSOR_PATTERN, MAX_OFFSET, Cursor, find_report, list_page
from jobsight.reports.report import (
    describe_state,
    group_title,
    parse_state,
    quality_text,
    tone_of,
)
from jobsight.store.read.queries import ANY_FINDING, Filters, MetricSummary, TooLarge
from jobsight.store.store import Store
from jobsight.text import readable_text
from jobsight.util import units

logger = logging.getLogger(__name__)

ROWS_PER_PAGE = 50
#: All who have the server's token are one viewer.
_VIEWER = "signed in"

#: The states in the filter, by frequency of use.
STATES = ("RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "PENDING")

Text = Annotated[str, Query(max_length=200)]


class RunsPage(msgspec.Struct, kw_only=True):
    """One page of the list, and its filter."""

    rows: list[JobRow]
    total: int
    total_exact: bool
    offset: int
    #: Where the next page begins; None on the last one.
    next: Cursor | None
    search: str
    user: str
    state: str
    unused_gpus: bool = False
    #: The kind of finding in the filter, and the kinds that runs have with how many of them.
    finding: str = ""
    kinds: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def known_kinds(self) -> list[str]:
        chosen = {self.finding} - {"", ANY_FINDING}
        return sorted({*self.kinds, *chosen})

    @property
    def has_findings(self) -> bool:
        return any(row.findings for row in self.rows)

    @property
    def states(self) -> tuple[str, ...]:
        common = not self.state or self.state in STATES
        return STATES if common else (*STATES, self.state)

    @property
    def filtered(self) -> bool:
        return bool(self.search or self.user or self.state or self.unused_gpus or self.finding)

    @property
    def running(self) -> bool:
        return any(row.running for row in self.rows)

    @property
    def has_gpus(self) -> bool:
        return self.unused_gpus or any(row.gpu_count or row.requested_gpus for row in self.rows)

    @property
    def first(self) -> int:
        return self.offset + 1

    @property
    def last(self) -> int:
        return self.offset + len(self.rows)

    @property
    def newer(self) -> str | None:
        before = max(self.offset - ROWS_PER_PAGE, 0)
        return self._address(before) if self.offset and before <= MAX_OFFSET else None

    @property
    def older(self) -> str | None:
        return None if self.next is None else self._address(self.last, self.next)

    @property
    def newest(self) -> str:
        return self._address(0)

    def _address(self, offset: int, cursor: Cursor | None = None) -> str:
        filters = {
            "search": self.search,
            "user": self.user,
            "state": self.state,
            "finding": self.finding,
        }
        pairs = {name: value for name, value in filters.items() if value}
        if self.unused_gpus:
            pairs["unused_gpus"] = "true"
        if offset:
            pairs["offset"] = str(offset)
        # Far down the list, the offset is only shown.
        if cursor is not None and offset > MAX_OFFSET:
            pairs["cursor"] = str(cursor)
        return "?" + urlencode(pairs)


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


def create_router(
    store: Store, findings: FindingsService, *, clock: Callable[[], int] = time.time_ns
) -> APIRouter:
    """The routes of the pages."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

    # Not async: FastAPI runs them in threads, so that the store does not block the event loop.
    @router.get("/")
    def runs(
        request: Request,
        search: Text = "",
        user: Text = "",
        state: Text = "",
        unused_gpus: bool = False,
        finding: Text = "",
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        cursor: Annotated[str, Query(pattern=CURSOR_PATTERN)] | None = None,
    ) -> HTMLResponse:
        if cursor is None and offset > MAX_OFFSET:
            raise HTTPException(422, f"offset: expected at most {MAX_OFFSET} without a cursor")
        try:
            state = parse_state(state) if state.strip() else ""
        except ValueError as error:
            raise HTTPException(422, f"state: {error}") from None
        filters: Filters = {
            "search": search.strip() or None,
            "user": user.strip() or None,
            "state": state or None,
            "unused_gpus": unused_gpus,
            "finding": finding.strip() or None,
            "visibility": visibility_of(request),
        }
        found = list_page(
            store,
            now=clock(),
            limit=ROWS_PER_PAGE,
            offset=offset,
            cursor=None if cursor is None else Cursor.parse(cursor),
            **filters,
        )
        page = RunsPage(
            rows=found.rows,
            total=found.total,
            total_exact=found.total_exact,
            next=found.next,
            offset=offset,
            search=search,
            user=user,
            state=state,
            unused_gpus=unused_gpus,
            finding=finding,
            kinds=findings.kinds(clock()),
        )
        return _page(request, "runs.html", page=page)

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
        return _page(request, "run.html", report=report, summaries=summaries)

    @router.get("/findings/{kind}")
    def finding(request: Request, kind: str) -> HTMLResponse:
        text = findings.help(kind)
        if text is None:
            raise HTTPException(404, f"no rule is called {kind[:100]!r}")
        return _page(request, "finding.html", kind=kind, text=markdown(text))

    return router


def markdown(text: str) -> Markup:
    """Markdown as HTML. HTML in the text is escaped: a site writes rules, not pages."""
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    # Pages of other rules are files in the documents and addresses here.
    return Markup(re.sub(r'href="([a-z0-9-]+)\.md"', r'href="\1"', rendered))


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


def _page(request: Request, template: str, **context: Any) -> HTMLResponse:
    # A proxy may serve the pages under a path prefix, which every link must include.
    root = request.scope.get("root_path", "")
    return HTMLResponse(render(template, root=root, **context))


class State(NamedTuple):
    """The text of a state, and its colour class."""

    word: str
    tone: str


def state_of(state: str, text: str = "") -> State:
    """The text of a state with a capital letter."""
    text = readable_text(text or describe_state(state, None, None))
    return State(text[:1].upper() + text[1:], tone_of(state))


def machine_time(moment: int) -> str:
    """A time for the ``datetime`` attribute of a ``<time>`` element."""
    try:
        return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


def percent(share: float | None) -> str:
    """A share as the width of a bar: 0 to 100."""
    # NaN compares false with everything.
    if share is None or not share > 0:
        return "0"
    return f"{min(share, 1.0) * 100:.2f}"


def path_pieces(path: str) -> tuple[str, str]:
    """Split a path into directory and file; only the directory is truncated on the page."""
    directory, slash, file = path.rpartition("/")
    return directory + slash, file


def metric_value(value: float | None, unit: str) -> str:
    """Format a value of a time series in a unit of the table of metrics."""
    if not units.is_known(value):
        return units.UNKNOWN
    match unit:
        case "bytes":
            return units.format_bytes(value)
        case "bytes per second":
            return units.format_byte_rate(value)
        case "cores":
            return units.format_cores(value)
        case "count per second":
            return f"{units.format_count(round(value, 2))}/s"
        case "nanoseconds":
            return units.format_duration(round(value))
        case _:
            return units.format_count(round(value, 2))


def readable_lines(text: str) -> str:
    """A command with its line breaks; backslashes are not doubled, so that it can be copied."""
    return "\n".join(readable_text(line).replace("\\\\", "\\") for line in text.split("\n"))


def readable_name(text: str | None) -> str | None:
    return None if text is None else readable_text(text)


def path_of_run(run: str) -> str:
    return quote(run, safe=":+")


@cache
def environment() -> Environment:
    """The Jinja environment."""
    jinja = Environment(
        loader=PackageLoader("jobsight.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.globals.update(version=jobsight.__version__, root="", many_gpus=MANY, low_gpu_share=LOW)
    jinja.filters.update(
        bytes=units.format_bytes,
        duration=units.format_duration,
        share=units.format_share,
        count=units.format_count,
        cores=units.format_cores,
        moment=units.format_time,
        machine_time=machine_time,
        percent=percent,
        state_of=state_of,
        path_pieces=path_pieces,
        metric_value=metric_value,
        energy=units.format_energy,
        gpu_tone=gpu_tone,
        gpu_remark=gpu_remark,
        conspicuous_first=conspicuous_first,
        path_of_run=path_of_run,
        readable=readable_name,
        readable_lines=readable_lines,
        group_title=group_title,
        quality_text=quality_text,
    )
    return jinja


def render(template: str, **context: Any) -> str:
    """Render a template of this package."""
    return environment().get_template(template).render(**context)
