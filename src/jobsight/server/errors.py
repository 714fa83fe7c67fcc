"""Errors as answers: a sentence as JSON for programs, as a page for people, never a trace."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from jobsight.errors import JobsightError, StoreError
from jobsight.server.auth import HEADERS, RETRY_AFTER
from jobsight.server.receiver import ForeignCluster
from jobsight.store.read.queries import RunNotFound
from jobsight.store.write.validation import BatchError


class ErrorReply(msgspec.Struct):
    """Why there is no answer, in one sentence."""

    error: str


def answer(
    request: Request, status: int, sentence: str, headers: dict[str, str] | None = None
) -> Response:
    """Say a sentence in the form that the asker reads."""
    if request.url.path.startswith(("/api/", "/static/", "/healthz")):
        body = msgspec.json.encode(ErrorReply(sentence))
        return Response(body, status, headers, "application/json")
    from jobsight.web.pages import render

    return HTMLResponse(render("error.html", status=status, sentence=sentence), status, headers)


def status_of(error: JobsightError) -> int:
    """The HTTP status that tells a program what to do about an error."""
    if isinstance(error, RunNotFound):
        return 404
    if isinstance(error, BatchError):
        return 422
    if isinstance(error, ForeignCluster):
        return 403
    return 503 if isinstance(error, StoreError) else 500


async def _jobsight_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, JobsightError)
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    # Where the store lies is not the business of those who ask over the network.
    sentence = error.sentence if isinstance(error, RunNotFound) else str(error)
    return answer(request, status, sentence, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = str(error.detail)
    if sentence == HTTPStatus(error.status_code).phrase:
        sentence = f"{request.method} {request.url.path[:200]}: {sentence.lower()}"
    return answer(request, error.status_code, sentence, dict(error.headers or {}))


async def _wrong_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentences = [
        f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}"
        for problem in error.errors()
    ]
    return answer(request, 422, "; ".join(sentences))


async def _unexpected(request: Request, error: Exception) -> Response:
    # This answer is made outside of the access check, which adds the headers to all others.
    headers = HEADERS | {"Cache-Control": "no-store"}
    return answer(request, 500, "The server failed at this request; its log says why.", headers)


def install(app: FastAPI) -> None:
    """Make every error of an application one of these answers."""
    app.add_exception_handler(JobsightError, _jobsight_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(Exception, _unexpected)
