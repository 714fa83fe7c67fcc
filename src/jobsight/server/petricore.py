"""petricore's routes, for sites whose scripts and mails use them: ``server.petricore_routes``.

They answer about finished jobs only, as petricore does. A route about a job finds only the runs
that the viewer may see (:func:`jobsight.access.policy.visibility_of`), so that any other one is
unknown; a route about a user asks :func:`jobsight.access.policy.may_see` and refuses.
"""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from jobsight.access.policy import User, require, visibility_of
from jobsight.errors import JobsightError
from jobsight.findings.service import FindingsService
from jobsight.reports.pending import find_report
from jobsight.reports.petricore import mail_text, read_usage, usage_json
from jobsight.reports.report import JobReport
from jobsight.server.api.common import RunText, check_parameters, parse_reference
from jobsight.server.api.files import DrawingQueue, file_reply
from jobsight.server.user_jobs import UserJobs
from jobsight.store.store import Store
from jobsight.util.decoding import decode_json_as

#: Jobs in the reply about a user, the latest.
MAX_JOBS: Final = 1000
#: Bytes of the file with the usage of file systems.
MAX_FILE: Final = 32 * 2**20
#: petricore's limits on the number of files.
FILE_LIMITS: Final = {"scratch": 1_000_000, "home": 500_000, "projects": 5_000_000}


class FileUsage(msgspec.Struct, forbid_unknown_fields=True):
    """Files of a user in one place, and how many are permitted."""

    file_count: Annotated[int, msgspec.Meta(ge=0)]
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class UserUsage(msgspec.Struct, forbid_unknown_fields=True):
    """What a scheduled command has found out about a user."""

    #: Path by project.
    projects: dict[str, str] = msgspec.field(default_factory=dict)
    #: Bytes by project.
    project_usages: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = msgspec.field(
        default_factory=dict
    )
    #: By place: scratch, home, projects.
    file_usages: dict[str, FileUsage] = msgspec.field(default_factory=dict)


class UsageFile:
    """The usage of file systems by user, from a JSON file; read again when the file changes."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._version: tuple[int, int, int] | None = None
        self._users: dict[str, UserUsage] = {}

    def find(self, user: str) -> UserUsage | None:
        """The usage of a user; None if the file does not name the user."""
        if self._path is None:
            return None
        with self._mutex:
            self._read(self._path)
            return self._users.get(user)

    def _read(self, path: str) -> None:
        try:
            with open(os.path.expanduser(path), "rb") as opened:
                status = os.fstat(opened.fileno())
                version = (status.st_ino, status.st_size, status.st_mtime_ns)
                if version == self._version:
                    return
                data = opened.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise JobsightError(f"server.petricore_usage: the file has more than {MAX_FILE} B")
            self._users = decode_json_as(dict[str, UserUsage], data)
        except OSError as error:
            raise JobsightError(f"server.petricore_usage: {error.strerror}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise JobsightError(f"server.petricore_usage: {error}") from None
        self._version = version


def create_router(
    store: Store,
    findings: FindingsService,
    queue: DrawingQueue,
    usage_file: UsageFile,
    user_jobs: UserJobs | None = None,
    *,
    clock: Callable[[], int] = time.time_ns,
) -> APIRouter:
    """All of petricore's routes."""
    router = APIRouter(
        include_in_schema=False, dependencies=[Depends(_error_form), Depends(check_parameters)]
    )

    def finished(request: Request, job: str) -> JobReport:
        report = find_report(
            store,
            parse_reference(job),
            visibility=visibility_of(request),
            clock=clock,
            prices=findings.prices,
            complete=False,
        )
        if report.pending or report.running:
            raise HTTPException(404, f"job {report.display_id} is not finished")
        return report

    @router.get("/mail/{job}")
    def mail(request: Request, job: RunText) -> Response:
        usage = read_usage(store, finished(request, job))
        return PlainTextResponse(mail_text(usage, str(request.base_url).rstrip("/")))

    @router.get("/plot/{job}/{metric}")
    async def plot(
        request: Request, job: RunText, metric: Annotated[str, Path(max_length=40)]
    ) -> Response:
        def draw() -> Response:
            from jobsight.reports.petricore_plots import METRICS, metric_plot

            report = finished(request, job)
            name = metric.removeprefix("jobs_")
            if name not in METRICS:
                known = ", ".join(METRICS)
                raise HTTPException(404, f"no plot {metric!r}; expected one of {known}")
            data = metric_plot(store, report, name)
            if data is None:
                raise HTTPException(404, f"{name} of job {report.display_id} was not measured")
            return file_reply(data, "image/png")

        return await queue.run(draw)

    @router.get("/pie/{job}/")
    @router.get("/pie/{job}")
    async def pie(request: Request, job: RunText) -> Response:
        def draw() -> Response:
            from jobsight.reports.petricore_plots import time_pies

            report = finished(request, job)
            data = time_pies(store, report)
            if data is None:
                raise HTTPException(404, f"the CPU time of job {report.display_id} is not known")
            return file_reply(data, "image/png")

        return await queue.run(draw)

    @router.get("/pdf/{job}")
    async def pdf(request: Request, job: RunText) -> Response:
        def draw() -> Response:
            from jobsight.reports.with_plots import pdf_of, read_series

            report = finished(request, job)
            data = pdf_of(report, read_series(store, report), clock())
            return file_reply(data, "application/pdf", f"job-{report.display_id}.pdf")

        return await queue.run(draw)

    @router.get("/api/v1/jobs/{job}/usage")
    def usage(request: Request, job: RunText) -> Response:
        return _json(usage_json(read_usage(store, finished(request, job))))

    @router.get("/api/v1/users/{user}")
    def user(request: Request, user: Annotated[str, Path(max_length=200)]) -> Response:
        require(request, User(user))
        return _json(_user_json(store, usage_file.find(user), user, user_jobs))

    return router


def _error_form(request: Request) -> None:
    """petricore's clients expect its form of errors."""
    if request.url.path.startswith("/api/"):
        request.state.error_form = _error


def _error(status: int, sentence: str) -> Response:
    body = msgspec.json.encode({"error": sentence})
    return Response(body, status, media_type="application/json")


def _user_json(
    store: Store, used: UserUsage | None, user: str, user_jobs: UserJobs | None
) -> dict[str, Any]:
    runs = store.runs(user=user, limit=MAX_JOBS)
    uid = next((run.info.uid for run in runs if run.info.uid is not None), None)
    uid = _uid(user) if uid is None else uid
    if not runs and used is None and uid is None:
        raise HTTPException(404, f"no user {user[:80]!r} is known")
    ids = [run.info.job_id for run in runs]
    if user_jobs is not None and uid is not None:
        # Slurm remembers jobs that were never scraped or measured.
        ids += user_jobs.of(uid)
    return {
        "user": {"username": user, "uid": uid},
        "jobs": list(dict.fromkeys(ids))[:MAX_JOBS],
        **_files(used or UserUsage()),
    }


def _files(used: UserUsage) -> dict[str, Any]:
    return {
        "projects": used.projects,
        "project_usages": {**used.project_usages, "unit": "B"},
        "file_usages": {
            place: {"file_count": files.file_count, "percentage": _share(place, files)}
            for place, files in used.file_usages.items()
        },
    }


def _share(place: str, files: FileUsage) -> float | None:
    """A share between 0 and 1, as petricore's field of this name has it."""
    limit = files.limit or FILE_LIMITS.get(place)
    return None if limit is None else round(files.file_count / limit, 6)


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        return None


def _json(reply: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(reply), media_type="application/json")
