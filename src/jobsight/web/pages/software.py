"""The pages of software and programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import Site, may_see, visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.reports.build import job_row
from jobsight.reports.over_time import use_over_time
from jobsight.reports.standing import FEWEST_USERS
from jobsight.software.queries import read_trends
from jobsight.store.read.programs import (
    MAX_USES,
    ProgramUser,
    find_program,
    runs_of_program,
    users_of_program,
)
from jobsight.store.read.visibility import Visibility
from jobsight.store.rollups.catalogue import list_software, paths_of, undetermined_paths
from jobsight.store.rollups.usage import Question, UsageRow, usage
from jobsight.store.store import Store
from jobsight.text import path_bytes, readable_path
from jobsight.web.pages.interval import CHOICES, DAY, Days, Interval
from jobsight.web.pages.people import core_chart, gpu_chart
from jobsight.web.render import page

if TYPE_CHECKING:
    from jobsight.store.database import Connection

MAX_ROWS: Final = 200
#: Versions, users and paths on the page of a software.
MAX_DETAILS: Final = 50
MAX_RUNS: Final = 15
#: Points of the small line next to a software.
_TREND: Final = 24

Order = Literal["core_hours", "jobs", "users", "gpu_hours", "share"]
Text = Annotated[str, Query(max_length=200)]
PathText = Annotated[str, Query(max_length=8200, description="The path of the program")]


class SoftwareRow(msgspec.Struct, kw_only=True):
    """A software in the list."""

    use: UsageRow
    #: Shares of its highest core hours over time, for a small line.
    trend: str

    @property
    def share(self) -> float | None:
        return self.use.cpu_hours / self.use.core_hours if self.use.core_hours else None


def add_routes(router: APIRouter, store: Store, clock: Callable[[], int]) -> None:
    """Add the routes of software and programs."""

    @router.get("/software")
    def software(
        request: Request,
        days: Days = 30,
        sort: Annotated[Order, Query()] = "core_hours",
        search: Text = "",
    ) -> HTMLResponse:
        interval = Interval.of(days, clock())
        question = Question(by=("software",), since=interval.since, until=interval.until)
        with store.database.read() as connection:
            rows = usage(connection, question)
            known = _visible(connection, rows, visibility_of(request), interval)
            trends = read_trends(connection, question, _TREND)
        wanted = search.strip().lower()
        chosen = [row for row in known if wanted in (row.software or "").lower()]
        chosen.sort(key=lambda row: (-_order(row, sort), row.software or ""))
        shown = [
            SoftwareRow(use=row, trend=_line(trends.get((row.kind, row.software), [])))
            for row in chosen[:MAX_ROWS]
        ]
        return page(
            request,
            "software_list.html",
            rows=shown,
            total=len(chosen),
            hidden=len(rows) - len(known),
            fewest=FEWEST_USERS,
            unnamed=[row for row in rows if row.software is None],
            sort=sort,
            search=search,
            interval=interval,
            choices=CHOICES,
        )

    @router.get("/software/{name:path}")
    def one_software(request: Request, name: str, days: Days = 30) -> HTMLResponse:
        interval = Interval.of(days, clock())
        visibility = visibility_of(request)
        question = Question(
            by=("software",),
            software=name,
            since=interval.since,
            until=interval.until,
            ignored=True,
        )
        with store.database.read() as connection:
            ever = usage(connection, Question(by=("software",), software=name, ignored=True))
            known = _visible(connection, ever, visibility, Interval(0, 0, interval.until))
            if not known:
                raise HTTPException(
                    404, f"there is no software {name[:100]!r}, or it has too few users"
                )

            def by(*keys: str) -> list[UsageRow]:
                return usage(connection, msgspec.structs.replace(question, by=keys))

            versions = by("software", "version", "local_version")
            users = by("user")
            clusters = by("cluster", "partition")
            ids = [row.id for row in list_software(connection, name)]
            paths = (
                paths_of(connection, ids, MAX_DETAILS, interval.since * DAY)
                if ids and may_see(viewer_of(request.scope), Site())
                else []
            )
        use = use_over_time(store, msgspec.structs.replace(question, by=()))
        return page(
            request,
            "software.html",
            name=name,
            use=use,
            versions=versions[:MAX_DETAILS],
            users=[row for row in users if _is_own(visibility, row.user)][:MAX_DETAILS],
            user_count=len(users),
            clusters=clusters[:MAX_DETAILS],
            paths=paths,
            cpu_chart=core_chart(use),
            gpu_chart=gpu_chart(use) if use.total.gpu_hours else None,
            interval=interval,
            choices=CHOICES,
        )

    @router.get("/programs")
    def programs(request: Request, path: PathText = "", days: Days = 30) -> HTMLResponse:
        interval = Interval.of(days, clock())
        viewer, visibility = viewer_of(request.scope), visibility_of(request)
        if not path:
            rows = []
            if may_see(viewer, Site()):
                with store.database.read() as connection:
                    rows = undetermined_paths(connection, MAX_ROWS, interval.since * DAY)
            return page(request, "programs.html", rows=rows, interval=interval, choices=CHOICES)
        program = find_program(store.database, path_bytes(path))
        users = (
            []
            if program is None
            else users_of_program(store.database, program.id, interval.since * DAY)
        )
        own = [each for each in users if _is_own(visibility, each.user)]
        may_count = visibility.everything or own or len(users) >= FEWEST_USERS
        if program is None or not may_count:
            raise HTTPException(
                404,
                "there is no such program in the runs of this time, or it has too few users",
            )
        runs = runs_of_program(store.database, program.id, MAX_RUNS, visibility)
        now = clock()
        return page(
            request,
            "program.html",
            path=readable_path(program.path),
            program=program,
            total=_sum(users),
            users=own[:MAX_DETAILS],
            user_count=len(users),
            runs=[job_row(run, now) for run in runs],
            most=MAX_USES,
            interval=interval,
            choices=CHOICES,
        )


def _visible(
    connection: Connection, rows: list[UsageRow], visibility: Visibility, interval: Interval
) -> list[UsageRow]:
    """Named software that the viewer may know of: with enough users, or used by themselves.

    The name of a program of one user may contain the name of the user.
    """
    named = [row for row in rows if row.software is not None]
    if visibility.everything:
        return named
    own: set[str | None] = set()
    for each in visibility.users:
        question = Question(
            by=("software",), user=each.name, since=interval.since, until=interval.until,
            ignored=True,
        )  # fmt: skip
        own |= {row.software for row in usage(connection, question)}
    return [row for row in named if row.users >= FEWEST_USERS or row.software in own]


def _is_own(visibility: Visibility, user: str | None) -> bool:
    return visibility.everything or any(each.name == user for each in visibility.users)


def _order(row: UsageRow, order: Order) -> float:
    if order == "share":
        return 1 - row.cpu_hours / row.core_hours if row.core_hours else -1.0
    values = {
        "core_hours": row.core_hours,
        "jobs": row.jobs,
        "users": row.users,
        "gpu_hours": row.gpu_hours,
    }
    return float(values[order] or 0)


def _line(values: list[float]) -> str:
    """Points of a polyline in a box of 100 by 20."""
    top = max(values, default=0.0) or 1.0
    step = 100 / max(len(values) - 1, 1)
    return " ".join(
        f"{index * step:.1f},{19 - 18 * value / top:.1f}" for index, value in enumerate(values)
    )


def _sum(users: list[ProgramUser]) -> ProgramUser | None:
    if not users:
        return None
    return ProgramUser(
        "",
        sum(each.runs for each in users),
        sum(each.executions for each in users),
        sum(each.failures for each in users),
        sum(each.cpu_time for each in users),
        sum(each.core_time for each in users),
        min(each.first for each in users),
        max(each.last for each in users),
    )
