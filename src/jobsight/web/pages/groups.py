"""The pages of an array or heterogeneous job, and of a script: all runs of the same work."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import visibility_of
from jobsight.errors import JobsightError
from jobsight.findings.fit import Split, memory_option, round_memory, split_array
from jobsight.findings.service import FindingsService
from jobsight.model import SECOND
from jobsight.reports.build import JobRow, job_row
from jobsight.reports.report import tone_of
from jobsight.reports.subject import SubjectReport, array_report, find_works, script_report
from jobsight.store.findings.works import find_script
from jobsight.store.history import Work, note_scripts, versions_of_work
from jobsight.store.read.filters import Filters
from jobsight.store.store import Store
from jobsight.util.units import format_bytes, format_duration, format_share
from jobsight.web.charts import Label, Line, LineChart, round_up
from jobsight.web.pages.people import shown
from jobsight.web.render import page

_REFERENCE: Final = re.compile(r"([^:\s]{1,200}):(\d{1,18})", re.ASCII)
#: Tasks that are drawn, and runs of a script in its list.
MAX_DRAWN, MAX_LISTED = 400, 25
#: Split into two requests only where that saves so much.
_LEAST_SAVING: Final = 0.1
_NO_GROUP: Final = "there is no such array or heterogeneous job, or you may not see it"
_NO_SCRIPT: Final = "there is no such script, or you may not see its runs"


class DrawnTask(NamedTuple):
    """A task as a column: its elapsed time, and how much of its CPUs it used."""

    x: str
    width: str
    y: str
    height: str
    used_y: str
    used_height: str
    tone: str
    run: str
    title: str


class DrawnTasks(NamedTuple):
    """The tasks of an array by their number."""

    tasks: list[DrawnTask]
    top: str
    first: str
    last: str
    #: Tasks that are left out.
    others: int


class ShownSplit(NamedTuple):
    """Two requests in place of one."""

    option: str
    tasks: int
    rest_option: str
    rest: list[str]
    saving: float


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of both pages."""

    # Not async: FastAPI runs them in threads, so that the store does not block the event loop.
    @router.get("/arrays/{reference}")
    def array(request: Request, reference: str) -> HTMLResponse:
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise HTTPException(404, "expected an address such as /arrays/cluster:1234")
        cluster, job_id = match[1], int(match[2])
        visibility = visibility_of(request)
        try:
            report = array_report(
                store,
                job_id,
                cluster=cluster,
                prices=findings.prices,
                visibility=visibility,
                clock=clock,
            )
        except JobsightError:
            raise HTTPException(404, _NO_GROUP) from None
        own: Filters = {"cluster": cluster, "visibility": visibility}
        own["array_job_id" if report.kind == "array" else "het_job_id"] = job_id
        runs = store.runs(limit=5 * MAX_DRAWN, **own)
        rows = [job_row(run, clock()) for run in runs]
        rows.sort(key=lambda row: _part_of(row.display_id))
        return page(
            request,
            "array.html",
            report=report,
            drawn=draw_tasks(rows),
            split=split_of(rows),
            distributions=[shown(each) for each in report.distributions],
        )

    @router.get("/scripts/{key}")
    def script(request: Request, key: str) -> HTMLResponse:
        visibility = visibility_of(request)
        try:
            works = _visible(find_works(store, key[:300]), visibility)
        except (JobsightError, ValueError):
            works = []
        if not works:
            raise HTTPException(404, _NO_SCRIPT)
        note_scripts(works)
        report = script_report(
            store, works, prices=findings.prices, visibility=visibility, clock=clock
        )
        runs = store.runs(
            limit=MAX_LISTED, work_ids=[work.id for work in works], visibility=visibility
        )
        return page(
            request,
            "script.html",
            report=report,
            works=works,
            text=find_script(store.database, works[0].key),
            versions=_visible(versions_of_work(store.database, works[0]), visibility),
            rows=[job_row(run, clock()) for run in runs],
            trends=trend_charts(report),
            distributions=[shown(each) for each in report.distributions],
        )


def _visible(works: Sequence[Work], visibility: Any) -> list[Work]:
    return [
        work
        for work in works
        if visibility.includes(
            cluster=work.cluster, user=work.user or None, account=work.account or None, start=None
        )
    ]


def _part_of(display_id: str) -> int:
    """The number of a task or component."""
    part = re.split(r"[_+]", display_id)[-1]
    return int(part) if part.isdecimal() else -1


def draw_tasks(rows: Sequence[JobRow]) -> DrawnTasks | None:
    """Columns of the elapsed time by task; None if nothing is known."""
    known = [row for row in rows if row.elapsed is not None]
    if len(known) < 2:
        return None
    drawn = known[:MAX_DRAWN]
    top = max(max(row.elapsed or 0 for row in drawn), 1)
    width = 100 / len(drawn)
    tasks = []
    for number, row in enumerate(drawn):
        height = 100 * (row.elapsed or 0) / top
        used = height * min(row.cpu_share or 0.0, 1.0)
        state = row.state.replace("_", " ").lower()
        tasks.append(
            DrawnTask(
                x=f"{number * width:.3f}%",
                width=f"{max(width * 0.85, 0.1):.3f}%",
                y=f"{100 - height:.2f}%",
                height=f"{height:.2f}%",
                used_y=f"{100 - used:.2f}%",
                used_height=f"{used:.2f}%",
                tone=tone_of(row.state),
                run=row.run,
                title=f"{row.display_id}: {state}, {format_duration(row.elapsed)}, "
                f"CPU {format_share(row.cpu_share)}, "
                f"memory {format_bytes(row.memory_used_peak_bytes)}",
            )
        )
    return DrawnTasks(
        tasks,
        format_duration(top),
        drawn[0].display_id,
        drawn[-1].display_id,
        len(known) - len(drawn),
    )


def split_of(rows: Sequence[JobRow]) -> ShownSplit | None:
    """Two requests of memory that would have fitted; None if they would save little."""
    ended = [
        row
        for row in rows
        if row.state == "COMPLETED" and row.memory_used_peak_bytes and row.elapsed
    ]
    found: Split | None = split_array(
        [float(row.memory_used_peak_bytes or 0) for row in ended],
        [(row.elapsed or 0) / SECOND for row in ended],
        round_memory,
    )
    if found is None or found.saving < _LEAST_SAVING or len(found.rest) > len(ended) / 2:
        return None
    return ShownSplit(
        option=memory_option(found.request),
        tasks=found.tasks,
        rest_option=memory_option(found.rest_request),
        rest=[ended[index].display_id for index in found.rest[:20]],
        saving=found.saving,
    )


class Trend(NamedTuple):
    """A figure of a script over time."""

    title: str
    chart: LineChart


def trend_charts(report: SubjectReport) -> list[Trend]:
    """Medians by interval, one chart for each figure that is known."""
    rows = report.trend
    if len(rows) < 2:
        return []
    first, last = rows[0].since, rows[-1].since
    span = max(last - first, 1)
    # A label is as wide as an eighth of the chart, and begins at its time.
    labels = [
        Label(f"{100 * (row.since - first) / span:.2f}%", _day(row.since))
        for row in rows[:: -(-len(rows) // 4)]
        if row.since - first <= 0.8 * span
    ]
    figures: tuple[tuple[str, Callable[[float], str], dict[str, list[float | None]]], ...] = (
        (
            "Elapsed, median",
            lambda value: format_duration(round(value * SECOND)),
            {"elapsed": [row.elapsed_seconds for row in rows]},
        ),
        ("CPU use, median", format_share, {"CPU use": [row.cpu_share for row in rows]}),
        (
            "Memory, median",
            format_bytes,
            {
                "peak used": [row.memory_used_bytes for row in rows],
                "requested": [row.memory_requested_bytes for row in rows],
            },
        ),
        (
            "Runs, and those that failed",
            lambda value: f"{value:.0f}",
            {
                "runs": [float(row.runs) for row in rows],
                "failed": [float(row.failed) for row in rows],
            },
        ),
    )
    charts = []
    for title, show, lines in figures:
        known = [value for values in lines.values() for value in values if value is not None]
        if not known:
            continue
        top = 1.0 if "CPU" in title and max(known) <= 1 else round_up(max(known))
        drawn = [
            Line(
                name,
                [
                    " ".join(
                        f"{1000 * (row.since - first) / span:.1f},{100 - 100 * value / top:.1f}"
                        for row, value in zip(rows, values, strict=True)
                        if value is not None
                    )
                ],
                style,
            )
            for (name, values), style in zip(lines.items(), ("accent", "second"), strict=False)
        ]
        described = f"from {show(min(known))} to {show(max(known))}"
        charts.append(Trend(title, LineChart(drawn, labels, show(top), described)))
    return charts


def _day(moment: int) -> str:
    return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%d")
