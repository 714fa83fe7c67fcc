"""API routes of arrays and of the parts of a run: programs, software, steps, nodes, GPUs, findings.

The report of a run has the same rows. A part alone is smaller, and has its own address.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path
from msgspec import field
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
    StepRow,
)
from jobsight.reports.subject import SubjectReport, array_report
from jobsight.server.api.common import (
    RunText,
    ViewerParameter,
    check_parameters,
    find_run,
    json_reply,
    parse_reference,
    replies,
)
from jobsight.store.store import Store
from jobsight.util.outer import Duration

#: Names of software of a run.
_MAX_SOFTWARE = 1000


class ProgramsReply(msgspec.Struct):
    """The programs of a run, those with the most CPU time first."""

    run: str
    programs: list[ExecutableRow]


class SoftwareOfRun(msgspec.Struct, kw_only=True):
    """A software name and what its programs used; without a name: what no rule names."""

    software: str | None
    version: str | None
    local_version: str | None
    user_provided: bool | None
    ignored: bool | None
    executions: int
    cpu_time: Duration = field(name="cpu_seconds")
    gpu_time: Duration = field(name="gpu_seconds")


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


class FindingsReply(msgspec.Struct):
    run: str
    findings: list[ReportedFinding]


REPLIES = (
    *(ProgramsReply, SoftwareOfRunReply, StepsReply, NodesReply, GpusReply),
    *(FindingsReply, SubjectReport),
)
ArrayText = Annotated[
    str,
    Path(
        max_length=300,
        description="The id of an array or a heterogeneous job: 62, or cluster:62",
        json_schema_extra={"pattern": r"^([^:\s]+:)?[0-9]{1,18}$", "examples": ["62"]},
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
        rows = [
            SoftwareOfRun(
                software=row.name,
                version=row.version,
                local_version=row.local_version,
                user_provided=row.user_provided,
                ignored=row.ignored,
                executions=row.executions,
                cpu_time=row.cpu_time,
                gpu_time=row.gpu_time,
            )
            for row in store.software_use_of(stored.id, _MAX_SOFTWARE)
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
        findings.record(report.run, report.findings, viewer, "api")
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

    return router
