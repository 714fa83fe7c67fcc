"""Error replies: one sentence, as problem details for programs and as a page for browsers."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jobsight.errors import JobsightError, StoreError
from jobsight.server.auth import HEADERS, RETRY_AFTER
from jobsight.server.problems import problem_reply
from jobsight.server.receiver import ForeignCluster
from jobsight.store.read.queries import RunNotFound, TooLarge
from jobsight.store.write.validation import BatchError
from jobsight.web.render import page

#: Makes the error reply of a route whose clients expect another form, from status and sentence.
ErrorForm = Callable[[int, str], Response]


def install(app: FastAPI) -> None:
    """Register the handlers for every kind of error."""
    app.add_exception_handler(JobsightError, _jobsight_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameter)
    app.add_exception_handler(Exception, _internal_error)


def error_reply(
    request: Request, status: int, sentence: str, headers: dict[str, str] | None = None
) -> Response:
    """Problem details for the API and files, a page for everything else."""
    form: ErrorForm | None = getattr(request.state, "error_form", None)
    if form is not None:
        answer = form(status, sentence)
        answer.headers.update(headers or {})
        return answer
    if request.url.path.startswith(("/api/", "/static/", "/healthz")):
        return problem_reply(status, sentence, headers)
    answer = page(request, "error.html", status=status, sentence=sentence)
    answer.status_code = status
    answer.headers.update(headers or {})
    return answer


def not_found(request: Request) -> Response:
    """The reply for a route that does not exist, or is not for the viewer of the request."""
    return error_reply(request, 404, f"{request.method} {request.url.path[:200]}: not found")


def status_of(error: JobsightError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RunNotFound):
        return 404
    if isinstance(error, BatchError):
        return 422
    if isinstance(error, TooLarge):
        return 413
    if isinstance(error, ForeignCluster):
        return 403
    return 503 if isinstance(error, StoreError) else 500


async def _jobsight_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, JobsightError)
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    # Clients on the network do not need the location of the store, which the full text contains.
    sentence = error.sentence if isinstance(error, RunNotFound) else str(error)
    return error_reply(request, status, sentence, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = str(error.detail)
    if sentence == HTTPStatus(error.status_code).phrase:
        sentence = f"{request.method} {request.url.path[:200]}: {sentence.lower()}"
    return error_reply(request, error.status_code, sentence, dict(error.headers or {}))


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentences = [
        f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors()
    ]
    return error_reply(request, 422, "; ".join(sentences))


async def _internal_error(request: Request, error: Exception) -> Response:
    # This reply is sent outside of the middleware, which adds the headers to all others.
    headers = HEADERS | {"Cache-Control": "no-store"}
    return error_reply(
        request, 500, "The request failed with an internal error; see the server's log.", headers
    )
