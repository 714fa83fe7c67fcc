"""Two to eight runs side by side: figures with their differences, charts by time since start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import visibility_of
from jobsight.findings.service import FindingsService
from jobsight.model import RunReference
from jobsight.reports.pending import find_report
from jobsight.reports.report import JobReport, describe_state
from jobsight.store.store import Store
from jobsight.util import units
from jobsight.web.render import page

MIN_RUNS, MAX_RUNS = 2, 8
#: Figures that differ by less are the same.
_TOLERANCE: Final = 0.02


class Figure(NamedTuple):
    """One figure of all runs."""

    title: str
    texts: list[str]
    #: Of the figures as shares of the largest; None where they are no numbers.
    shares: list[float | None]
    differs: bool


class Section(NamedTuple):
    title: str
    figures: list[Figure]


_Numbers = tuple[str, Callable[[JobReport], float | None], Callable[[Any], str]]
_Texts = tuple[str, Callable[[JobReport], str | None]]

_WHAT: Final[tuple[_Texts, ...]] = (
    ("Name", lambda run: run.name),
    ("User", lambda run: run.user),
    ("Account", lambda run: run.account),
    ("Cluster", lambda run: run.cluster),
    ("Partition", lambda run: run.partition),
    ("State", lambda run: run.state_text or describe_state(run.state, None, None)),
    ("Nodes", lambda run: ", ".join(run.nodes) if len(run.nodes) < 5 else f"{len(run.nodes)}"),
    ("Command", lambda run: run.command),
)
_REQUESTED: Final[tuple[_Numbers, ...]] = (
    ("CPUs", lambda run: run.cpu.requested_cpus, units.format_count),
    ("Memory", lambda run: run.memory.requested_bytes, units.format_bytes),
    ("Time limit", lambda run: run.time.requested, units.format_duration),
    ("GPUs", lambda run: run.gpu.requested_gpus if run.gpu else None, units.format_count),
)
_USED: Final[tuple[_Numbers, ...]] = (
    ("Elapsed", lambda run: run.time.elapsed, units.format_duration),
    ("CPU time", lambda run: run.cpu.time, units.format_duration),
    ("Cores busy, mean", lambda run: run.cpu.mean_cores, units.format_cores),
    ("CPU use", lambda run: run.cpu.share, units.format_share),
    ("Memory, peak", lambda run: run.memory.used_peak_bytes, units.format_bytes),
    ("Memory, peak of requested", lambda run: run.memory.share, units.format_share),
    ("Read", lambda run: run.io.syscall_read_bytes, units.format_bytes),
    ("Written", lambda run: run.io.syscall_written_bytes, units.format_bytes),
    ("Read from storage", lambda run: run.io.storage_read_bytes, units.format_bytes),
    ("Written to storage", lambda run: run.io.storage_written_bytes, units.format_bytes),
    ("GPU use", lambda run: run.gpu.used_share if run.gpu else None, units.format_share),
)


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the route of the page."""

    # Not async: FastAPI runs it in a thread, so that the store does not block the event loop.
    @router.get("/compare")
    def compare(
        request: Request, run: Annotated[list[str], Query(default_factory=list)]
    ) -> HTMLResponse:
        wanted = list(dict.fromkeys(text.strip() for text in run if text.strip()))
        if not MIN_RUNS <= len(wanted) <= MAX_RUNS:
            raise HTTPException(
                422, f"run: expected {MIN_RUNS} to {MAX_RUNS} runs, as in /compare?run=12&run=13"
            )
        reports = []
        for text in wanted:
            try:
                reference = RunReference.parse(text[:300])
            except ValueError as error:
                raise HTTPException(422, f"run: {error}") from None
            report = find_report(
                store,
                reference,
                visibility=visibility_of(request),
                clock=clock,
                prices=findings.prices,
                complete=False,
            )
            if report.pending:
                raise HTTPException(422, f"run: job {report.display_id} has not started")
            reports.append(report)
        return page(request, "compare.html", reports=reports, sections=compared(reports))


def compared(reports: Sequence[JobReport]) -> list[Section]:
    """The figures of all runs, without those that none has."""
    software = [_programs(report) for report in reports]
    return [
        Section("What", _texts(_WHAT, reports)),
        Section("Requested", _numbers(_REQUESTED, reports)),
        Section("Used", _numbers(_USED, reports)),
        Section(
            "Found",
            [
                _text("Findings", [_kinds(report) for report in reports]),
                _text("Programs by CPU time", software),
            ],
        ),
    ]


def _texts(rows: Sequence[_Texts], reports: Sequence[JobReport]) -> list[Figure]:
    figures = [_text(title, [value(run) for run in reports]) for title, value in rows]
    return [figure for figure in figures if any(text != units.UNKNOWN for text in figure.texts)]


def _text(title: str, values: Sequence[str | None]) -> Figure:
    texts = [value or units.UNKNOWN for value in values]
    return Figure(title, texts, [None] * len(texts), len(set(texts)) > 1)


def _numbers(rows: Sequence[_Numbers], reports: Sequence[JobReport]) -> list[Figure]:
    figures = []
    for title, value, show in rows:
        values = [value(run) for run in reports]
        known = [each for each in values if each is not None]
        if not known:
            continue
        largest = max(known)
        scale = max(largest, 1.0) if "use" in title or "of requested" in title else largest
        shares = [None if each is None or not scale else each / scale for each in values]
        differs = len(known) < len(values) or largest - min(known) > _TOLERANCE * abs(largest)
        figures.append(Figure(title, [show(each) for each in values], shares, differs))
    return figures


def _kinds(report: JobReport) -> str:
    return ", ".join(finding.kind for finding in report.findings if finding.state == "open")


def _programs(report: JobReport) -> str:
    rows = [row for row in report.executables if row.kind not in ("others", "remainder")][:3]
    return ", ".join(
        f"{row.path.rpartition('/')[2]} {units.format_share(row.cpu_share)}" for row in rows
    )
