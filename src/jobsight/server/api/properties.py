"""API routes of the properties of jobs: what users add to their own jobs by name.

A property is any JSON value, for example the settings of an experiment or the address of its page
in a tracking service. Reading follows the visibility of the job; writing is for its user.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.reports.pending import find_info
from jobsight.server.api.common import (
    RunText,
    check_parameters,
    json_reply,
    parse_reference,
    replies,
)
from jobsight.store.properties import (
    MAX_NAME_SIZE,
    MAX_PROPERTIES,
    MAX_SIZE,
    InvalidProperty,
    JobKey,
    Link,
    TooManyProperties,
    links_of,
    read_properties,
    remove_properties,
    set_properties,
)
from jobsight.store.store import Store

#: JSON may have more bytes than the canonical form, whose size is limited.
_MAX_BODY = 2 * MAX_SIZE


class PropertiesReply(msgspec.Struct):
    """The properties of a job, and those of them that are addresses of the web."""

    cluster: str
    job_id: int
    user: str | None
    properties: dict[str, Any]
    links: list[Link]


REPLIES = (PropertiesReply,)

NamePath = Annotated[str, Path(max_length=MAX_NAME_SIZE, description="The name of the property")]
_Result = TypeVar("_Result")


def create_router(store: Store, *, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(
        prefix="/api/v1/jobs/{run}/properties",
        dependencies=[Depends(check_parameters)],
        tags=["properties"],
    )
    changes = replies(PropertiesReply, 400, 403, 404, 408, 413, 422, 503)

    @router.get("", responses=replies(PropertiesReply, 400, 404, 422, 503))
    def listed(request: Request, run: RunText) -> Response:
        """The properties of a job."""
        return _reply(store, find_job(store, request, run))

    @router.patch("", responses=changes, openapi_extra=_body({"type": "object"}))
    async def merge(request: Request, run: RunText) -> Response:
        """Add and replace properties; null removes one. The body is an object, such as
        `{"learning_rate": 0.1, "wandb_hyperlink": "https://wandb.example.org/x"}`."""
        updates = await read_json(request, dict[str, Any])

        def write() -> Response:
            job = find_own_job(store, request, run)
            _explained(lambda: set_properties(store.database, job, updates, clock()))
            return _reply(store, job)

        return await run_in_threadpool(write)

    @router.put("/{name}", responses=changes, openapi_extra=_body({}))
    async def put(request: Request, run: RunText, name: NamePath) -> Response:
        """Add or replace one property; the body is its value."""
        value = await read_json(request, Any)

        def write() -> Response:
            job = find_own_job(store, request, run)
            _explained(lambda: set_properties(store.database, job, {name: value}, clock()))
            return _reply(store, job)

        return await run_in_threadpool(write)

    @router.delete("/{name}", responses=replies(PropertiesReply, 400, 403, 404, 422, 503))
    def remove(request: Request, run: RunText, name: NamePath) -> Response:
        """Remove one property, if it exists."""
        job = find_own_job(store, request, run)
        remove_properties(store.database, job, [name])
        return _reply(store, job)

    return router


def find_job(store: Store, request: Request, run: str) -> JobKey:
    """The job of a run, or of a job that waits, that the viewer may see."""
    info = find_info(store, parse_reference(run), visibility_of(request))
    return JobKey(info.cluster, info.job_id, info.user or "")


def find_own_job(store: Store, request: Request, run: str) -> JobKey:
    """The same for a change, which the user of the job may make, and the server's token."""
    viewer = viewer_of(request.scope)
    job = find_job(store, request, run)
    if not viewer.may_write:
        raise HTTPException(403, "the token permits reading only; expected one with scope write")
    if not viewer.has_server_token and viewer.name != job.user:
        raise HTTPException(403, "only the user of a job may change its properties")
    return job


async def read_json(request: Request, form: Any) -> Any:
    """The body of a request, within limits."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise HTTPException(413, f"the body is larger than {_MAX_BODY} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(422, f"the body is not the expected JSON: {error}") from None


def _explained(change: Callable[[], _Result]) -> _Result:
    try:
        return change()
    except InvalidProperty as error:
        raise HTTPException(422, str(error)) from None
    except TooManyProperties as error:
        raise HTTPException(413, str(error)) from None


def _reply(store: Store, job: JobKey) -> Response:
    properties = read_properties(store.database, job)
    return json_reply(
        PropertiesReply(job.cluster, job.job_id, job.user or None, properties, links_of(properties))
    )


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "description": f"At most {MAX_PROPERTIES} properties and {MAX_SIZE} bytes in all",
            "content": {"application/json": {"schema": schema}},
        }
    }
