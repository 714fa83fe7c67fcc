"""API routes of arrays and of the parts of a run: programs, software, steps, nodes, GPUs, findings.

The report of a run has the same rows. A part alone is smaller, and has its own address.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import visibility_of
from jobsight.errors import StoreError
from jobsight.findings.reported import ReportedFinding
from jobsight.findings.service import FindingsService
from jobsight.model import RunReference
from jobsight.reports.pending import find_report
from jobsight.reports.report import (
    ExecutableRow,
    GpuRow,
    GpuTotals,
    JobReport,
    NodeRow,
    SchedulerStep,
    SoftwareRow,
    StepRow,
)
from jobsight.reports.run_parts import name_of_run, software_row
from jobsight.reports.subject import MAX_COUNTED, SubjectReport, array_report, script_report
from jobsight.reports.subject_findings import ScriptUse, scripts_of
from jobsight.server.api.common import (
    RunText,
    Text,
    TimeParameter,
    ViewerParameter,
    check_parameters,
    find_run,
    json_reply,
    parse_reference,
    replies,
    shown_to,
)
from jobsight.store.history import Work, largest_works, note_scripts, works_of_key
from jobsight.store.read.filters import run_filter
from jobsight.store.read.visibility import Visibility
from jobsight.store.store import Store

#: Names of software of a run.
_MAX_SOFTWARE = 1000


class ProgramsReply(msgspec.Struct):
    """The programs of a run, those with the most CPU time first."""

    run: str
    programs: list[ExecutableRow]


class SoftwareOfRun(SoftwareRow, kw_only=True):
    """A software name and what its programs used, also of software that the rules ignore."""

    local_version: str | None
    ignored: bool | None


class SoftwareOfRunReply(msgspec.Struct):
    run: str
    software: list[SoftwareOfRun]


class StepsReply(msgspec.Struct):
    """The steps as nodes measured them, and as the scheduler recorded them."""

    run: str
    steps: list[StepRow]
    scheduler_steps: list[SchedulerStep]


class NodesReply(msgspec.Struct):
    run: str
    nodes: list[NodeRow]


class GpusReply(msgspec.Struct):
    """The GPUs that a run held."""

    run: str
    totals: GpuTotals | None
    gpus: list[GpuRow]


class ScriptList(msgspec.Struct):
    scripts: list[ScriptUse]


class FindingsReply(msgspec.Struct):
    run: str
    findings: list[ReportedFinding]


REPLIES = (
    *(ProgramsReply, SoftwareOfRunReply, StepsReply, NodesReply, GpusReply),
    *(FindingsReply, SubjectReport, ScriptList),
)
ArrayText = Annotated[
    str,
    Path(
        max_length=300,
        description="The id of an array or a heterogeneous job: 62, or cluster:62",
        json_schema_extra={"pattern": r"^([^:\s]+:)?[0-9]{1,18}$", "examples": ["62"]},
    ),
]


KeyText = Annotated[
    str,
    Path(
        pattern="^([0-9a-f]{2}){4,16}$",
        description="The key of a script, or its beginning: at least 8 hexadecimal digits",
    ),
]


def create_router(
    store: Store, findings: FindingsService, *, clock: Callable[[], int] = time.time_ns
) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)], tags=["jobs"])
    failures = (400, 404, 413, 422, 503)

    def report_of(request: Request, run: str) -> JobReport:
        return find_report(
            store,
            parse_reference(run),
            visibility=visibility_of(request),
            clock=clock,
            prices=findings.prices,
            complete=False,
        )

    @router.get("/jobs/{run}/programs", responses=replies(ProgramsReply, *failures))
    def programs(request: Request, run: RunText) -> Response:
        """The programs of a run: `executables` of its report."""
        report = report_of(request, run)
        return json_reply(ProgramsReply(report.run, report.executables))

    @router.get("/jobs/{run}/software", responses=replies(SoftwareOfRunReply, *failures))
    def software(request: Request, run: RunText) -> Response:
        """What the programs of a run used, by the software that the rules name."""
        stored = find_run(store, run, visibility_of(request))
        used = store.software_use_of(stored.id, _MAX_SOFTWARE)
        whole = max(stored.cpu_time or 0, sum(use.cpu_time for use in used))
        rows = [
            SoftwareOfRun(
                **msgspec.structs.asdict(software_row(use, stored.info, whole)),
                local_version=name_of_run(use.local_version, stored.info),
                ignored=use.ignored,
            )
            for use in used
        ]
        return json_reply(SoftwareOfRunReply(str(stored.run), rows))

    @router.get("/jobs/{run}/steps", responses=replies(StepsReply, *failures))
    def steps(request: Request, run: RunText) -> Response:
        """The steps of a run."""
        report = report_of(request, run)
        recorded = report.scheduler.steps if report.scheduler else []
        return json_reply(StepsReply(report.run, report.steps, recorded))

    @router.get("/jobs/{run}/nodes", responses=replies(NodesReply, *failures))
    def nodes(request: Request, run: RunText) -> Response:
        """The figures of a run by node."""
        report = report_of(request, run)
        return json_reply(NodesReply(report.run, report.node_rows))

    @router.get("/jobs/{run}/gpus", responses=replies(GpusReply, *failures))
    def gpus(request: Request, run: RunText) -> Response:
        """The GPUs of a run."""
        report = report_of(request, run)
        return json_reply(GpusReply(report.run, report.gpu, report.gpus))

    @router.get("/jobs/{run}/findings", responses=replies(FindingsReply, *failures))
    def found(request: Request, run: RunText, viewer: ViewerParameter = None) -> Response:
        """The findings of a run, the worst first."""
        report = report_of(request, run)
        findings.record(report.run, report.findings, shown_to(request, viewer), "api")
        return json_reply(FindingsReply(report.run, report.findings))

    @router.get("/arrays/{array}", responses=replies(SubjectReport, *failures))
    def array(request: Request, array: ArrayText) -> Response:
        """The tasks of an array, or the components of a heterogeneous job, as a whole: states,
        totals, quartiles, outliers and failures. `/api/v1/jobs?array=` lists them."""
        reference = parse_reference(array)
        if reference != RunReference(job_id=reference.job_id, cluster=reference.cluster):
            raise HTTPException(400, f"{array[:100]!r} is not the id of an array; expected 62")
        try:
            report = array_report(
                store,
                reference.job_id,
                cluster=reference.cluster,
                prices=findings.prices,
                visibility=visibility_of(request),
                clock=clock,
            )
        except StoreError:
            sentence = f"there is no array {array[:100]!r}, or you may not see it"
            raise HTTPException(404, sentence) from None
        return json_reply(report)

    _add_scripts(router, store, findings, clock)
    return router


def _add_scripts(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of works: runs of the same script, or of the same name and programs."""

    @router.get("/scripts", responses=replies(ScriptList, 422, 503))
    def scripts(
        request: Request,
        user: Text = None,
        account: Text = None,
        cluster: Text = None,
        since: TimeParameter = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 20,
    ) -> Response:
        """List scripts by the core time that their runs held, the most first; of the newest runs
        that pass the filters."""
        wanted = run_filter(
            user=user,
            account=account,
            cluster=cluster,
            since=since,
            visibility=visibility_of(request),
        )
        uses = largest_works(store.database, wanted, MAX_COUNTED, limit)
        return json_reply(ScriptList(scripts_of(store, uses, fitted=0, now=clock())))

    @router.get("/scripts/{key}", responses=replies(SubjectReport, 404, 422, 503))
    def script(request: Request, key: KeyText) -> Response:
        """The runs of one script as a whole, with the trend and what would have fitted."""
        works = [
            work
            for work in works_of_key(store.database, bytes.fromhex(key))
            if _sees_always(visibility_of(request), work)
        ]
        if not works:
            raise HTTPException(404, f"there is no script {key!r}, or you may not see its runs")
        note_scripts(works)
        return json_reply(script_report(store, works, prices=findings.prices, clock=clock))


def _sees_always(visibility: Visibility, work: Work) -> bool:
    """Whether all runs of a work may be seen, whenever they started."""
    ever = (0, 2**63 - 1)
    return all(
        visibility.includes(cluster=work.cluster, user=work.user, account=work.account, start=start)
        for start in ever
    )
