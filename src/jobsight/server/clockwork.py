"""Clockwork's REST routes, for its Python client and for scripts that use them.

They are added with ``server.clockwork_routes``. Documents have Clockwork's fields, in the form that
the sink ``mongodb`` writes; errors are JSON strings, as its clients expect. Credentials are those
of HTTP Basic: any name, and a token of jobsight in place of the API key. Everybody sees what the
policy permits, and disabled accounts see nothing.

Read ``create_router`` first; :class:`ClockworkCredentials` lets the access control see a token.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jobsight.access.policy import visibility_of
from jobsight.model import SECOND, JobInfo, RunReference
from jobsight.reports.gpu_models import GpuModel, find_model, gpu_models
from jobsight.reports.pending import find_info
from jobsight.scheduler.records import JobDetails, JobRecord, NodeInfo
from jobsight.scheduler.sinks.base import Figures, SinkJob
from jobsight.scheduler.sinks.clockwork import job_document, node_document
from jobsight.server.api.properties import find_own_job, read_json
from jobsight.store.properties import (
    InvalidProperty,
    JobKey,
    TooManyProperties,
    read_properties,
    remove_properties,
    set_properties,
)
from jobsight.store.read import viewed
from jobsight.store.read.clusters import known_clusters
from jobsight.store.read.queries import RunNotFound, StoredRun
from jobsight.store.read.viewed import not_shown
from jobsight.store.read.visibility import Visibility
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store

PREFIX: Final = "/api/v1/clusters"
#: Parts of the address below the prefix that are Clockwork's.
_OWN: Final = tuple(f"{PREFIX}/{part}/" for part in ("jobs", "nodes", "gpu"))
#: The newest jobs that a search looks at, and documents in one reply.
MAX_SEARCHED: Final = 10_000
MAX_DOCUMENTS: Final = 2_000
#: Clusters, states and ids that one request may name.
_MAX_NAMES: Final = 50
_PER_PAGE: Final = 40

#: The states that Clockwork takes for one.
AGGREGATED: Final = {
    "PENDING": (
        *("CONFIGURING", "PENDING", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD"),
        *("REQUEUED", "RESIZING"),
    ),
    "RUNNING": ("COMPLETING", "RUNNING", "SIGNALING", "STAGE_OUT"),
    "COMPLETED": ("COMPLETED",),
    "FAILED": (
        *("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "SPECIAL_EXIT", "STOPPED", "SUSPENDED", "TIMEOUT"),
    ),
}
_SORTS: Final[dict[str, Callable[[JobInfo], Any]]] = {
    "cluster_name": lambda info: info.cluster,
    "user": lambda info: info.user,
    "job_id": lambda info: info.job_id,
    "name": lambda info: info.name,
    "job_state": lambda info: info.state,
    "submit_time": lambda info: info.submit,
    "start_time": lambda info: info.start,
    "end_time": lambda info: info.end,
}
#: Names that Clockwork gives to models with more memory.
_LARGER: Final = {
    "v100l": "v100 32gb",
    "p100": "p100 12gb",
    "p100l": "p100",
    "a100l": "a100 80gb",
}
_SHORT: Final = {words: name for name, words in _LARGER.items()}


#: A parameter that Clockwork has.
Name = Annotated[str | None, Query(max_length=300)]


class Search(msgspec.Struct, kw_only=True):
    """What a request searches for."""

    username: str | None
    clusters: list[str]
    states: set[str]
    job_ids: list[str]
    job_array: int | None
    since: int | None
    property: tuple[str, str | None] | None

    def includes(self, info: JobInfo) -> bool:
        return (
            (not self.clusters or info.cluster in self.clusters)
            and (not self.states or info.state in self.states)
            and (not self.job_ids or str(info.job_id) in self.job_ids)
            and self.username in (None, info.user)
            and self.job_array in (None, info.array_job_id)
            and (self.since is None or (info.end or info.start or self.since) >= self.since)
        )


def create_router(store: Store, *, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    """The routes, which are not described by OpenAPI."""
    router = APIRouter(
        prefix=PREFIX, include_in_schema=False, dependencies=[Depends(_set_error_form)]
    )

    @router.get("/jobs/list")
    def jobs_list(request: Request) -> Response:
        given = request.query_params
        search = _search_of(given.get, clock())
        visibility = visibility_of(request)
        found: list[StoredRun | JobRecord] = [
            *_pending(store, search, visibility),
            *_runs(store, search, visibility),
        ]
        _sort(found, given.get("sort_by") or "submit_time", given.get("sort_asc") or "0")
        first, last = _page(given.get("page_num"), given.get("nbr_items_per_page"))
        documents = [_document(store, job) for job in found[first:last]]
        if (given.get("want_count") or "").lower() == "true":
            return _json({"nbr_total_jobs": len(found), "jobs": documents})
        return _json(documents)

    @router.get("/jobs/one")
    def jobs_one(request: Request, job_id: Name = None, cluster_name: Name = None) -> Response:
        if job_id is None:
            raise HTTPException(400, "Missing argument job_id.")
        try:
            reference = _reference(job_id, cluster_name)
            return _json(_document(store, _find(store, reference, visibility_of(request))))
        except (ValueError, RunNotFound):
            return _json({})

    _add_properties(router, store, clock)
    _add_nodes(router, store)
    return router


def _add_properties(router: APIRouter, store: Store, clock: Callable[[], int]) -> None:
    """Add the routes of properties."""

    @router.get("/jobs/user_props/get")
    def props_get(request: Request, job_id: Name = None, cluster_name: Name = None) -> Response:
        _require(job_id=job_id, cluster_name=cluster_name)
        try:
            info = find_info(store, _reference(job_id, cluster_name), visibility_of(request))
        except (ValueError, RunNotFound):
            return _json({})
        job = JobKey(info.cluster, info.job_id, info.user or "")
        return _json(read_properties(store.database, job))

    @router.put("/jobs/user_props/set")
    async def props_set(request: Request) -> Response:
        given = await read_json(request, dict[str, Any])
        _require(job_id=given.get("job_id"), cluster_name=given.get("cluster_name"))
        updates = given.get("updates")
        if not isinstance(updates, dict):
            raise HTTPException(500, "Expected `updates` to be a dict.")

        def write() -> dict[str, Any]:
            job = _own_job(store, request, given)
            try:
                return set_properties(store.database, job, updates, clock())
            except TooManyProperties as error:
                sentence = f"Too huge job-user props: maximum 2.0 Mbytes; {error}"
                raise HTTPException(500, sentence) from None
            except InvalidProperty as error:
                raise HTTPException(500, str(error)) from None

        return _json(await run_in_threadpool(write))

    @router.put("/jobs/user_props/delete")
    async def props_delete(request: Request) -> Response:
        given = await read_json(request, dict[str, Any])
        _require(job_id=given.get("job_id"), cluster_name=given.get("cluster_name"))
        keys = given.get("keys")
        names = [keys] if isinstance(keys, str) else keys
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise HTTPException(500, "Expected `keys` to be a string or list of strings.")

        def write() -> None:
            remove_properties(store.database, _own_job(store, request, given), names)

        await run_in_threadpool(write)
        return _json("")


def _add_nodes(router: APIRouter, store: Store) -> None:
    """Add the routes of nodes and GPUs."""

    def nodes_of(cluster: str | None) -> Iterator[NodeInfo]:
        for name in known_clusters(store.database):
            if cluster in (None, name):
                yield from read_snapshot(store.database, name, "node", NodeInfo)

    def find_node(node: str | None, cluster: str | None) -> NodeInfo | None:
        return next((each for each in nodes_of(cluster) if each.name == node), None)

    @router.get("/nodes/list")
    def nodes_list(cluster_name: Name = None) -> Response:
        return _json([node_document(node) for node in nodes_of(cluster_name)])

    @router.get("/nodes/one")
    def nodes_one(node_name: Name = None, cluster_name: Name = None) -> Response:
        node = find_node(node_name, cluster_name)
        return _json({} if node is None else node_document(node))

    @router.get("/nodes/one/gpu")
    def nodes_one_gpu(node_name: Name = None, cluster_name: Name = None) -> Response:
        _require(node_name=node_name)
        node = find_node(node_name, cluster_name)
        gpu = {} if node is None else node_document(node)["cw"]["gpu"]
        return _json(_gpu_document(gpu["cw_name"]) if gpu else {})

    @router.get("/gpu/list")
    def gpu_list() -> Response:
        names = {" ".join(model.words): model for model in gpu_models()}
        return _json(
            [_specification(_SHORT.get(name, name), model) for name, model in names.items()]
        )

    @router.get("/gpu/one")
    def gpu_one(gpu_name: Name = None) -> Response:
        _require(gpu_name=gpu_name)
        return _json(_gpu_document(gpu_name or ""))


class ClockworkCredentials:
    """Makes a Bearer token of the API key of HTTP Basic, for Clockwork's routes only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_OWN):
            scope["headers"] = [
                (name, _bearer(value) if name == b"authorization" else value)
                for name, value in scope["headers"]
            ]
        await self._app(scope, receive, send)


def _bearer(value: bytes) -> bytes:
    kind, _, encoded = value.partition(b" ")
    if kind.lower() != b"basic":
        return value
    try:
        key = base64.b64decode(encoded.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return value
    return b"Bearer " + key


def _set_error_form(request: Request) -> None:
    request.state.error_form = _error


def _error(status: int, sentence: str) -> Response:
    return Response(msgspec.json.encode(sentence), status, media_type="application/json")


def _json(document: Any) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


def _require(**given: str | None) -> None:
    for name, value in given.items():
        if value is None:
            raise HTTPException(400, f"Missing argument {name}.")


def _reference(job_id: str | None, cluster: str | None) -> RunReference:
    """The latest run of a job; :class:`ValueError` if it is not an id."""
    text = str(job_id)
    return RunReference.parse(text if not cluster else f"{cluster}:{text}")


def _own_job(store: Store, request: Request, given: dict[str, Any]) -> JobKey:
    run = f"{given['cluster_name']}:{given['job_id']}"
    try:
        return find_own_job(store, request, run)
    except RunNotFound as error:
        raise HTTPException(404, error.sentence) from None


def _names(text: str | None) -> list[str]:
    """A comma-separated list."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if len(names) > _MAX_NAMES:
        raise HTTPException(400, f"expected at most {_MAX_NAMES} names separated by commas")
    return names


def _search_of(get: Callable[[str], str | None], now: int) -> Search:
    states = {state.upper() for state in _names(get("job_state"))}
    for name in _names(get("aggregated_job_state")):
        states.update(AGGREGATED.get(name.upper(), ()))
    relative, prop = _number(get("relative_time"), "relative_time"), get("user_prop_name")
    username = get("username")
    return Search(
        # Clockwork's names are addresses of mail.
        username=username.partition("@")[0] if username else None,
        clusters=_names(get("cluster_name")),
        states=states,
        job_ids=_names(get("job_id")),
        job_array=_number(get("job_array"), "job_array"),
        since=None if relative is None else now - relative * SECOND,
        property=(prop, get("user_prop_content") or None) if prop else None,
    )


def _number(text: str | None, name: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise HTTPException(400, f"Expected {name} to be a number.")
    return int(text)


def _page(page: str | None, per_page: str | None) -> tuple[int, int]:
    """The first and the last document; without paging those that fit into a reply."""
    if not page and not per_page:
        return 0, MAX_DOCUMENTS
    size = min(max(_number(per_page, "nbr_items_per_page") or _PER_PAGE, 1), MAX_DOCUMENTS)
    first = (max(_number(page, "page_num") or 1, 1) - 1) * size
    return first, first + size


def _runs(store: Store, search: Search, visibility: Visibility) -> Iterator[StoredRun]:
    """The newest runs that the search finds, one for each job."""
    seen = set()
    # One cluster or state is a condition of the query; several are compared here.
    single = search.clusters[0] if len(search.clusters) == 1 else None
    with not_shown():
        runs = store.runs(
            limit=MAX_SEARCHED,
            user=search.username,
            cluster=single,
            array_job_id=search.job_array,
            visibility=visibility,
        )
    for run in runs:
        key = run.info.cluster, run.info.job_id
        if search.includes(run.info) and key not in seen and _has_property(store, search, run.info):
            seen.add(key)
            yield run


def _pending(store: Store, search: Search, visibility: Visibility) -> Iterator[JobRecord]:
    for cluster in known_clusters(store.database):
        for record in read_snapshot(store.database, cluster, "pending", JobRecord):
            info = record.info
            is_visible = visibility.includes(
                cluster=cluster, user=info.user, account=info.account, start=None
            )
            if is_visible and search.includes(info) and _has_property(store, search, info):
                yield record


def _has_property(store: Store, search: Search, info: JobInfo) -> bool:
    if search.property is None:
        return True
    name, content = search.property
    job = JobKey(info.cluster, info.job_id, info.user or "")
    properties = read_properties(store.database, job)
    return name in properties and content in (None, str(properties[name]))


def _find(store: Store, reference: RunReference, visibility: Visibility) -> StoredRun | JobRecord:
    try:
        return store.find(reference, visibility)
    except RunNotFound:
        wanted = find_info(store, reference, visibility)
        for record in read_snapshot(store.database, wanted.cluster, "pending", JobRecord):
            if record.info == wanted:
                return record
        raise


def _sort(jobs: list[StoredRun | JobRecord], by: str, ascending: str) -> None:
    key = _SORTS.get(by)
    if key is None:
        raise HTTPException(400, f"Expected sort_by to be one of {', '.join(_SORTS)}.")
    is_text = by in ("cluster_name", "user", "name", "job_state")
    descending = ascending == "-1" or (ascending != "1" and not is_text)
    known = [job for job in jobs if key(job.info) is not None]
    unknown = [job for job in jobs if key(job.info) is None]
    known.sort(key=lambda job: key(job.info), reverse=descending)
    jobs[:] = known + unknown


def _document(store: Store, job: StoredRun | JobRecord) -> dict[str, Any]:
    if isinstance(job, JobRecord):
        viewed.note(job.info.user)
        return job_document(SinkJob(job, Figures()))
    # With the names of the nodes, which a list does not have.
    with not_shown():
        run = store.run_by_id(job.id) or job
    viewed.note(run.info.user)
    details = store.details(run.id, JobDetails) or JobDetails()
    record = JobRecord(info=run.info, **msgspec.structs.asdict(details))
    figures = Figures(
        cpu_time=run.cpu_time,
        memory_used_peak=run.memory_used_peak,
        memory_peak=run.memory_peak,
        gpus=run.gpus,
    )
    return job_document(SinkJob(record, figures))


def _gpu_document(name: str) -> dict[str, Any]:
    model = find_model(_LARGER.get(name, name))
    return {} if model is None else _specification(name, model)


def _specification(name: str, model: GpuModel) -> dict[str, Any]:
    specification = {
        "name": name,
        "vendor": model.vendor.lower(),
        "ram": model.memory_gb,
        "cuda_cores": model.cores,
        "tensor_cores": model.tensor_cores,
        "tflops_fp32": model.tflops_fp32,
    }
    return {field: value for field, value in specification.items() if value is not None}
