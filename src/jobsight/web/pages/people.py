"""The pages of users and accounts, and their lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from jobsight.access.accounts import role_of
from jobsight.access.policy import Account, Site, User, may_see, not_found, require
from jobsight.access.viewer import Role, Viewer, viewer_of
from jobsight.findings.listed import FindingSummary, summarize
from jobsight.findings.service import FindingsService
from jobsight.reports.over_time import UseOverTime, use_over_time
from jobsight.reports.standing import compare_user
from jobsight.reports.subject import Distribution, SubjectReport, period_report
from jobsight.scheduler.adapters.policy import AssociationInfo
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.coordinators import coordinators_of
from jobsight.store.findings.read import FindingFilter
from jobsight.store.rollups.usage import Question, UsageRow, usage
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.store.store import Store
from jobsight.util.units import format_bytes, format_duration, format_hours, format_share
from jobsight.web.charts import ColumnChart, use_chart
from jobsight.web.pages.interval import CHOICES, DAY, Days, Interval
from jobsight.web.render import page

#: Rows of a list of users or accounts.
MAX_ROWS: Final = 200
#: Members of an account on its page.
MAX_MEMBERS: Final = 100

Order = Literal["core_hours", "cpu_share", "gpu_hours", "gpu_share", "waste", "jobs"]
Sort = Annotated[Order, Query(description="The column by which the list is sorted")]
Text = Annotated[str, Query(max_length=200)]

_TITLES: Final = {
    "elapsed_seconds": "Elapsed",
    "cpu_share": "CPU used of held",
    "memory_share": "Memory, peak of requested",
    "memory_bytes": "Memory, peak",
    "gpu_share": "GPU used of held",
    "wait_seconds": "Waiting for the start",
}


class OwnerRow(msgspec.Struct, kw_only=True):
    """A user or account in a list."""

    name: str
    use: UsageRow
    findings: FindingSummary | None

    @property
    def cpu_share(self) -> float | None:
        return self.use.cpu_hours / self.use.core_hours if self.use.core_hours else None

    @property
    def gpu_share(self) -> float | None:
        measured = self.use.gpu_measured_hours
        return (self.use.gpu_used_hours or 0.0) / measured if measured else None

    @property
    def waste(self) -> float:
        return 0.0 if self.findings is None else self.findings.cost.core_hours or 0.0

    def sort_key(self, order: Order) -> float:
        values = {
            "core_hours": self.use.core_hours,
            "cpu_share": None if self.cpu_share is None else 1 - self.cpu_share,
            "gpu_hours": self.use.gpu_hours,
            "gpu_share": None if self.gpu_share is None else 1 - self.gpu_share,
            "waste": self.waste,
            "jobs": float(self.use.jobs),
        }
        value = values[order]
        return -1.0 if value is None else value


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of users and accounts."""

    @router.get("/users")
    def users(
        request: Request, days: Days = 30, sort: Sort = "core_hours", search: Text = ""
    ) -> Response:
        viewer = viewer_of(request.scope)
        if not viewer.visibility.everything:
            if viewer.name is None:
                raise HTTPException(404, not_found(User("")))
            return RedirectResponse(f"{request.scope.get('root_path', '')}/users/{viewer.name}")
        return _list(request, "user", viewer, days, sort, search)

    @router.get("/accounts")
    def accounts(
        request: Request, days: Days = 30, sort: Sort = "core_hours", search: Text = ""
    ) -> HTMLResponse:
        return _list(request, "account", viewer_of(request.scope), days, sort, search)

    def _list(
        request: Request,
        kind: Literal["user", "account"],
        viewer: Viewer,
        days: int,
        sort: Order,
        search: str,
    ) -> HTMLResponse:
        if viewer.pseudonyms:
            # Its rule has refused the route already.
            raise HTTPException(404, not_found(Site()))
        interval = Interval.of(days, clock())
        rows = owner_rows(store, kind, interval, viewer, findings)
        wanted = search.strip().lower()
        chosen = [row for row in rows if wanted in row.name.lower()]
        chosen.sort(key=lambda row: (-row.sort_key(sort), row.name))
        return page(
            request,
            "owners.html",
            kind=kind,
            rows=chosen[:MAX_ROWS],
            total=len(chosen),
            sort=sort,
            search=search,
            interval=interval,
            choices=CHOICES,
        )

    @router.get("/users/{name:path}")
    def user(request: Request, name: str, days: Days = 30) -> HTMLResponse:
        require(request, User(name))
        viewer = viewer_of(request.scope)
        interval = Interval.of(days, clock())
        shares = [each for each in associations(store) if each.user == name]
        report = _report("user", name, interval)
        if not report.runs and not shares and viewer.name != name:
            _check_known(User(name), user=name)
        return page(
            request,
            "user.html",
            standings=compare_user(store, name, interval.since, interval.until),
            shares=shares,
            accounts={each.account for each in shares},
            linked=lambda account: may_see(viewer, Account(account)),
            **_context(report, Question(by=(), user=name), interval),
        )

    @router.get("/accounts/{name:path}")
    def account(request: Request, name: str, days: Days = 30) -> HTMLResponse:
        require(request, Account(name))
        viewer = viewer_of(request.scope)
        interval = visible_days(viewer, name, Interval.of(days, clock()))
        known = [each for each in associations(store) if each.account == name]
        report = _report("account", name, interval)
        if not report.runs and not known:
            _check_known(Account(name), account=name)
        question = Question(by=("user",), account=name, since=interval.since, until=interval.until)
        with store.database.read() as connection:
            used = usage(connection, question)
        names = {row.user for row in used}
        return page(
            request,
            "account.html",
            members=[
                (row, next((each for each in known if each.user == row.user), None))
                for row in used[:MAX_MEMBERS]
            ],
            member_count=len(used),
            idle=sorted({each.user for each in known if each.user} - names)[:MAX_MEMBERS],
            shares=[each for each in known if each.user is None],
            coordinators=coordinators(store, name),
            linked=lambda member: may_see(viewer, User(member)),
            **_context(report, Question(by=(), account=name), interval),
        )

    def _report(kind: Literal["user", "account"], name: str, interval: Interval) -> SubjectReport:
        return period_report(
            store,
            kind,
            name,
            since=interval.since,
            until=interval.until,
            prices=findings.prices,
            clock=clock,
        )

    def _check_known(subject: User | Account, **filters: str) -> None:
        """A name that never occurred is not found."""
        if not store.runs(limit=1, **filters):  # type: ignore[arg-type]
            raise HTTPException(404, not_found(subject))

    def _context(report: SubjectReport, question: Question, interval: Interval) -> dict[str, Any]:
        within = msgspec.structs.replace(question, since=interval.since, until=interval.until)
        use = use_over_time(store, within)
        return {
            "report": report,
            "use": use,
            "cpu_chart": core_chart(use),
            "gpu_chart": gpu_chart(use) if use.total.gpu_hours else None,
            "distributions": [shown(each) for each in report.distributions],
            "interval": interval,
            "choices": CHOICES,
            "now": clock(),
        }


class ShownCoordinator(NamedTuple):
    """Who coordinates an account, and who says so."""

    user: str
    #: The cluster whose Slurm says so; None if staff has given the account to the user.
    cluster: str | None
    #: None before the first scrape of the cluster, and without a cluster.
    since: int | None


def coordinators(store: Store, account: str) -> list[ShownCoordinator]:
    """The coordinators of an account now: of Slurm's associations, and of user accounts."""
    found = [
        ShownCoordinator(each.user, each.cluster, each.since or None)
        for each in coordinators_of(store.database, account)
        if each.until is None
    ]
    found += [
        ShownCoordinator(each.name, None, None)
        for each in UserAccounts(store.database).list()
        if role_of(each) is Role.COORDINATOR and account in each.accounts and not each.disabled
    ]
    return sorted(found, key=lambda each: (each.user, each.cluster or ""))


def visible_days(viewer: Viewer, account: str, interval: Interval) -> Interval:
    """The days of an account in the interval that the viewer may see."""
    visible = viewer.visibility
    if visible.everything:
        return interval
    own = [each for each in visible.accounts if each.name == account]
    first = min((each.since or 0 for each in own), default=0)
    last = max((2**62 if each.until is None else each.until for each in own), default=0)
    # Days are summed as a whole: only those that lie completely within are shown.
    since = max(interval.since, -(-first // DAY))
    return interval._replace(since=since, until=max(since, min(interval.until, last // DAY)))


def associations(store: Store) -> list[AssociationInfo]:
    """The associations of all clusters, as of the last scrape."""
    return [
        each
        for cluster in snapshot_clusters(store.database)
        for each in read_snapshot(store.database, cluster, "association", AssociationInfo)
    ]


def owner_rows(
    store: Store,
    kind: Literal["user", "account"],
    interval: Interval,
    viewer: Viewer,
    findings: FindingsService,
) -> list[OwnerRow]:
    """The users or accounts that the viewer may see, with their use."""
    subject: Callable[[str], User | Account] = User if kind == "user" else Account
    question = Question(by=(kind,), since=interval.since, until=interval.until)
    with store.database.read() as connection:
        rows = usage(connection, question)
    found = FindingFilter(since=interval.since, until=interval.until)
    sums: Iterable[FindingSummary] = summarize(store, (kind,), found, findings.prices)
    by_name = {getattr(each, kind): each for each in sums}
    result = []
    for row in rows:
        name = getattr(row, kind) or ""
        if name and may_see(viewer, subject(name)):
            owner = OwnerRow(name=name, use=row, findings=by_name.get(name))
            result.append(owner)
    return result


def core_chart(use: UseOverTime) -> ColumnChart:
    return use_chart(
        use,
        lambda point: point.core_hours,
        lambda point: point.cpu_hours,
        lambda value: f"{format_hours(value)} h",
        names=("core hours held", "used"),
    )


def gpu_chart(use: UseOverTime) -> ColumnChart:
    return use_chart(
        use,
        lambda point: point.gpu_hours,
        lambda point: point.gpu_used_hours,
        lambda value: f"{format_hours(value)} h",
        names=("GPU hours held", "used"),
    )


class ShownDistribution(msgspec.Struct, kw_only=True):
    """A distribution as texts, and as positions of a box plot; none without a scale."""

    title: str
    count: int
    low: str
    middle: str
    high: str
    #: Shares of the largest value.
    box: tuple[float, float, float]


def shown(each: Distribution) -> ShownDistribution:
    """The quartiles of a figure in its unit."""
    show: Callable[[float], str]
    if each.figure.endswith("_seconds"):
        show = lambda value: format_duration(round(value * 10**9))  # noqa: E731
    else:
        show = format_bytes if each.figure == "memory_bytes" else format_share
    top = 1.0 if each.figure.endswith("share") else max(each.upper_quartile * 1.25, 1e-9)
    values = (each.quartile, each.median, each.upper_quartile)
    return ShownDistribution(
        title=_TITLES[each.figure],
        count=each.count,
        low=show(values[0]),
        middle=show(values[1]),
        high=show(values[2]),
        box=(values[0] / top, values[1] / top, values[2] / top),
    )
