"""API routes of findings: lists, sums, the explanation of a run, replies, and the effect."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Body, Depends, HTTPException, Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.errors import JobsightError
from jobsight.findings.effect import Effect, measure_effect
from jobsight.findings.explain import Explanation, explain_run
from jobsight.findings.finding import SEVERITIES
from jobsight.findings.listed import (
    FindingReport,
    FindingSummary,
    list_reports,
    summarize,
)
from jobsight.findings.recommendations import recommendations
from jobsight.findings.reported import Recommendation, ReportedFinding
from jobsight.findings.service import FindingsService
from jobsight.findings.stored import from_row
from jobsight.model import SECOND
from jobsight.server.api.common import (
    RunText,
    Text,
    TimeParameter,
    ViewerParameter,
    check_parameters,
    find_run,
    json_reply,
    own_owner,
    page_reply,
    replies,
    shown_to,
)
from jobsight.store.findings.read import DIMENSIONS, FindingFilter, FindingPosition
from jobsight.store.findings.write import NoSuchFinding, set_reply
from jobsight.store.store import Store
from jobsight.text import readable_text

_DAY = 86400 * SECOND
_KEY = f"({'|'.join(DIMENSIONS)})"
CURSOR_PATTERN = r"^[0-9]{1,19}-[0-9]{1,18}-[a-z0-9-]{1,100}$"


class FindingList(msgspec.Struct):
    """A page of findings, those of the highest cost first."""

    limit: int
    #: The cursor of the next page; null on the last one.
    next: str | None
    findings: list[FindingReport]


class SummaryReply(msgspec.Struct):
    """Sums of the findings that hold."""

    by: list[str]
    rows: list[FindingSummary]


class ReplyReply(msgspec.Struct):
    """A finding after a reply to it."""

    run: str
    finding: ReportedFinding


class FitReply(msgspec.Struct):
    """The requests that would have fitted a run and the earlier runs of the same work."""

    run: str
    job_name: str | None
    recommendations: list[Recommendation]


REPLIES = (FindingList, SummaryReply, ReplyReply, Explanation, Effect, FitReply)

Severities = Annotated[
    Literal["info", "warning", "critical"], Query(description="The lowest severity")
]
KindText = Annotated[
    str | None, Query(max_length=100, description="The name of a rule, such as memory-leak")
]
KindPath = Annotated[str, Path(max_length=100, description="The name of the rule")]


def _text(value: object) -> object:
    if isinstance(value, str) and value != readable_text(value):
        raise ValueError("expected printable characters")
    return value


UserBody = Annotated[
    str,
    BeforeValidator(_text),
    Body(embed=True, min_length=1, max_length=64, description="Who replies"),
]


def create_router(
    store: Store, findings: FindingsService, *, clock: Callable[[], int] = time.time_ns
) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(
        prefix="/api/v1", dependencies=[Depends(check_parameters)], tags=["findings"]
    )

    @router.get("/findings", responses=replies(FindingList, 422, 503))
    def listed(  # noqa: PLR0913 -- FastAPI: one for each parameter of the query
        request: Request,
        user: Text = None,
        account: Text = None,
        cluster: Text = None,
        partition: Text = None,
        kind: KindText = None,
        severity: Severities = "info",
        audience: Literal["user", "staff"] | None = None,
        since: TimeParameter = None,
        until: TimeParameter = None,
        all_states: Annotated[
            bool, Query(alias="all", description="Also findings with a reply, gone and withheld")
        ] = False,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        cursor: Annotated[
            str | None, Query(pattern=CURSOR_PATTERN, description="`next` of the page before")
        ] = None,
        viewer: ViewerParameter = None,
    ) -> Response:
        """List findings of runs that started in complete days (UTC), the highest cost first."""
        wanted = FindingFilter(
            user=user,
            account=account,
            cluster=cluster,
            partition=partition,
            kind=kind,
            severity=SEVERITIES.index(severity),
            since=None if since is None else since // _DAY,
            until=None if until is None else -(-until // _DAY),
            # Findings for staff are about the site.
            audience=audience if viewer_of(request.scope).visibility.everything else "user",
            all_states=all_states,
            visibility=visibility_of(request),
        )
        after = None if cursor is None else _position(cursor)
        rows, following = list_reports(store, wanted, limit, after, findings.prices)
        shown = shown_to(request, viewer)
        if shown is not None:
            for row in rows:
                findings.record(row.run, [row.finding], shown, "api")
        return page_reply(request, FindingList(limit, _cursor(following), rows), "findings", None)

    @router.get("/findings/summary", responses=replies(SummaryReply, 404, 422, 503))
    def summary(  # noqa: PLR0913 -- FastAPI: one for each parameter of the query
        request: Request,
        by: Annotated[
            str,
            Query(
                max_length=200, pattern=rf"^{_KEY}(,{_KEY})*$", description="Comma-separated keys"
            ),
        ] = "kind",
        user: Text = None,
        account: Text = None,
        cluster: Text = None,
        partition: Text = None,
        kind: KindText = None,
        since: TimeParameter = None,
        until: TimeParameter = None,
    ) -> Response:
        """Sum the findings that hold, by kind, owner and day (UTC) of the start of the runs."""
        keys = list(dict.fromkeys(by.split(",")))
        user, account = own_owner(request, user, account)
        wanted = FindingFilter(
            user=user,
            account=account,
            cluster=cluster,
            partition=partition,
            kind=kind,
            since=None if since is None else since // _DAY,
            until=None if until is None else -(-until // _DAY),
        )
        return json_reply(SummaryReply(keys, summarize(store, keys, wanted, findings.prices)))

    @router.get("/findings/effect", responses=replies(Effect, 422, 503))
    def effect(kind: KindText = None, since: TimeParameter = None) -> Response:
        """Compare the runs of each work before and after a finding was shown since then."""
        return json_reply(
            measure_effect(store, kind=kind, since=since or 0, prices=findings.prices)
        )

    @router.get("/jobs/{run}/explain", responses=replies(Explanation, 400, 404, 422, 503))
    def explain(request: Request, run: RunText) -> Response:
        """What every rule says about a run, and why; judged now."""
        stored = find_run(store, run, visibility_of(request))
        try:
            judge = findings.judge()
        except JobsightError as error:
            raise HTTPException(503, str(error)) from None
        return json_reply(explain_run(store, judge, stored, clock()))

    @router.get("/jobs/{run}/fit", responses=replies(FitReply, 400, 404, 413, 422, 503))
    def fitted(request: Request, run: RunText) -> Response:
        """The memory, time, cores and GPUs that would have fitted a run and the earlier runs of
        the same work."""
        stored = find_run(store, run, visibility_of(request))
        found = recommendations(store, stored, clock())
        return json_reply(FitReply(str(stored.run), stored.info.name, found))

    _add_replies(router, store, findings, clock)
    return router


def _add_replies(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of what people reply to findings."""

    def reply_to(request: Request, run: str, kind: str, state: Any, user: str) -> Response:
        stored = find_run(store, run, visibility_of(request))
        viewer = viewer_of(request.scope)
        if not viewer.may_write:
            raise HTTPException(
                403, "the token permits reading only; expected one with scope write"
            )
        if not viewer.has_server_token and user != viewer.name:
            raise HTTPException(403, f"you reply as {viewer.name}; expected that name as user")
        try:
            row = set_reply(store.database, stored.id, kind, state, user, clock())
        except NoSuchFinding as error:
            raise HTTPException(404, str(error)) from None
        return json_reply(ReplyReply(str(stored.run), from_row(row, findings.prices)))

    responses = replies(ReplyReply, 400, 404, 422, 503)

    @router.post("/jobs/{run}/findings/{kind}/acknowledge", responses=responses)
    def acknowledge(request: Request, run: RunText, kind: KindPath, user: UserBody) -> Response:
        """Acknowledge a finding: it is known, and lists leave it out."""
        return reply_to(request, run, kind, "acknowledged", user)

    @router.post("/jobs/{run}/findings/{kind}/not-helpful", responses=responses)
    def not_helpful(request: Request, run: RunText, kind: KindPath, user: UserBody) -> Response:
        """Say that a finding does not help; the rate by kind is in the summary."""
        return reply_to(request, run, kind, "not helpful", user)

    @router.post("/jobs/{run}/findings/{kind}/reopen", responses=responses)
    def reopen(request: Request, run: RunText, kind: KindPath, user: UserBody) -> Response:
        """Take a reply back."""
        return reply_to(request, run, kind, "open", user)


def _position(text: str) -> FindingPosition:
    weight, run_id, kind = text.split("-", 2)
    return FindingPosition(min(int(weight), 2**63 - 1), int(run_id), kind)


def _cursor(position: FindingPosition | None) -> str | None:
    return None if position is None else f"{position.weight}-{position.run_id}-{position.kind}"
