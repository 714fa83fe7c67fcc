"""The pages of findings: those of a user, those of all for staff, and the help of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import Site, may_see
from jobsight.access.viewer import viewer_of
from jobsight.findings.costs import weight
from jobsight.findings.effect import measure_effect
from jobsight.findings.listed import FindingSummary, list_reports, summarize
from jobsight.findings.service import FindingsService, RuleJudge
from jobsight.findings.withheld import withheld_kinds
from jobsight.store.findings.read import FindingFilter, last_days
from jobsight.store.rollups.usage import date_of
from jobsight.store.store import Store
from jobsight.web.pages.interval import CHOICES, DAY, Days, Interval
from jobsight.web.render import markdown, page

#: Findings, and replies, in a list.
MAX_WORST: Final = 25
MAX_OWN: Final = 100
MAX_REPLIES: Final = 50
#: Works whose runs before and after a finding was shown are compared.
MAX_COMPARED: Final = 100
#: Days after which a rule that did not fire is listed, whatever the page shows.
QUIET_DAYS: Final = 30
#: The newest runs for which rules are applied again, to say why they do not decide.
MAX_JUDGED: Final = 200


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of findings."""

    @router.get("/findings")
    def all_findings(request: Request, days: Days = 30) -> HTMLResponse:
        interval = Interval.of(days, clock())
        viewer = viewer_of(request.scope)
        if may_see(viewer, Site()):
            return _for_staff(request, interval)
        if viewer.name is None:
            raise HTTPException(404, "there is no such page, or it is for staff")
        wanted = FindingFilter(
            user=viewer.name, audience="user", since=interval.since, until=interval.until
        )
        rows, following = list_reports(store, wanted, MAX_OWN, prices=findings.prices)
        return page(
            request,
            "own_findings.html",
            rows=rows,
            more=following is not None,
            interval=interval,
            choices=CHOICES,
        )

    def _for_staff(request: Request, interval: Interval) -> HTMLResponse:
        wanted = FindingFilter(since=interval.since, until=interval.until)
        judge = findings.judge()
        rules = judge.rules if isinstance(judge, RuleJudge) else {}
        worst, _ = list_reports(store, wanted, MAX_WORST, prices=findings.prices)
        replies, _ = list_reports(
            store,
            wanted._replace(state="not helpful", all_states=True),
            MAX_REPLIES,
            prices=findings.prices,
        )
        kinds = summarize(store, ("kind",), wanted, findings.prices)
        newest = store.runs(limit=MAX_JUDGED, until=interval.until * DAY)
        return page(
            request,
            "staff_findings.html",
            worst=worst,
            kinds=sorted(kinds, key=_most_expensive),
            rules=rules,
            quiet=_quiet(last_days(store.database), rules, Interval.of(QUIET_DAYS, clock()).since),
            quiet_days=QUIET_DAYS,
            replies=replies,
            effect=measure_effect(
                store,
                since=interval.since * DAY,
                limit=MAX_COMPARED,
                prices=findings.prices,
            ),
            withheld=withheld_kinds(store, judge, newest),
            judged=len(newest),
            interval=interval,
            choices=CHOICES,
        )

    @router.get("/findings/{kind}")
    def finding(request: Request, kind: str) -> HTMLResponse:
        text = findings.help(kind)
        if text is None:
            raise HTTPException(404, f"no rule is called {kind[:100]!r}")
        return page(request, "finding.html", kind=kind, text=markdown(text))


def _quiet(last: Mapping[str, int], rules: Iterable[str], since: int) -> list[tuple[str, str]]:
    """The rules that did not fire for a run since a day, and the last day of each: those that
    never fired first, whose day is empty."""
    days = sorted((last.get(kind, -1), kind) for kind in rules if last.get(kind, -1) < since)
    return [(kind, "" if day < 0 else date_of(day).isoformat()) for day, kind in days]


def _most_expensive(each: FindingSummary) -> tuple[float, str]:
    return -weight(each.cost), each.kind or ""
