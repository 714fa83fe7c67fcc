"""The list of jobs: running, waiting and ended, with filters, order and columns in the address.

:class:`ListQuery` is the list that an address requests; page and files use the same filters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

import msgspec
from fastapi import APIRouter, HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from jobsight.access.policy import visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.findings.service import FindingsService
from jobsight.model import SECOND
from jobsight.reports.build import JobRow
from jobsight.reports.csv_lines import csv_lines
from jobsight.reports.pending import (
    Cursor,
    GroupedPage,
    GroupedRow,
    list_grouped,
    list_page,
)
from jobsight.reports.report import parse_state
from jobsight.store.accounts.preferences import write_preferences
from jobsight.store.read.filters import ANY_FINDING, LATEST, Filters, Sort
from jobsight.store.snapshot import snapshot_clusters
from jobsight.store.store import Store
from jobsight.util.outer import encode_json, outer_names, parse_rfc3339
from jobsight.web.render import page

_Value = TypeVar("_Value")

ROWS_PER_PAGE = 50
#: Rows of a file, and rows that are read at a time for it.
MAX_EXPORTED, _EXPORTED_AT_A_TIME = 100_000, 500

#: The states in the filter, by frequency of use.
STATES: Final = (
    *("RUNNING", "PENDING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"),
    "NODE_FAIL",
)


class Column(NamedTuple):
    """A column of the list."""

    title: str
    #: Of :data:`jobsight.store.read.filters.SORTS`; empty if the list cannot be sorted by it.
    sort: str = ""
    shown: bool = True
    number: bool = False
    #: Classes of cells that are left out where there is no room.
    room: str = ""


#: All columns in their order; ``run`` is always shown.
COLUMNS: Final[Mapping[str, Column]] = {
    "run": Column("Job", "job_id"),
    "state": Column("State, finding", "state"),
    "name": Column("Name", "name"),
    "user": Column("User", "user"),
    "account": Column("Account", "account", room="minor least"),
    "cluster": Column("Cluster", "cluster", shown=False),
    "partition": Column("Partition", "partition", shown=False),
    "qos": Column("QOS", "qos", shown=False),
    "submitted": Column("Submitted (UTC)", shown=False, room="minor"),
    "expected": Column("Expected start (UTC)", shown=False),
    "start": Column("Start (UTC)", "start"),
    "end": Column("End (UTC)", "end", shown=False),
    "elapsed": Column("Elapsed", "elapsed", number=True),
    "limit": Column("Time limit", shown=False, number=True),
    "cpus": Column("CPUs", "cpus", number=True, room="minor"),
    "cpu": Column("CPU use", "cpu_share"),
    "cpu_time": Column("CPU time", "cpu_time", shown=False, number=True),
    "memory": Column("Memory, peak of requested", "memory_share"),
    "memory_peak": Column("Memory peak", "memory_peak", shown=False, number=True),
    "memory_requested": Column("Memory requested", shown=False, number=True),
    "gpus": Column("GPUs, used of held", "gpu_share"),
    "gpu_count": Column("GPUs", "gpus", shown=False, number=True),
    "nodes": Column("Nodes", number=True, room="minor"),
}
DEFAULT_COLUMNS: Final = tuple(name for name, column in COLUMNS.items() if column.shown)
#: Of jobs that wait: what they requested, and since when. They have used nothing.
WAITING_COLUMNS: Final = (
    *("run", "state", "name", "user", "partition", "submitted", "expected", "limit", "cpus"),
    *("memory_requested", "gpu_count"),
)

#: Parameters of the address that are filters with a text of their own.
_TEXTS: Final = (
    *("search", "user", "account", "cluster", "partition", "qos", "name", "node", "software"),
    "finding",
)
_PARAMETERS: Final = (
    *_TEXTS,
    *("state", "since", "until", "cpu_share_below", "cpu_share_above", "gpu"),
    *("sort", "columns", "group", "open", "chain", "array", "cursor", "shown"),
)
_MAX_LENGTH: Final = 200
_AGO: Final = re.compile(r"(\d{1,5})([hdw])", re.ASCII)
_UNITS: Final = {"h": 3600 * SECOND, "d": 86400 * SECOND, "w": 7 * 86400 * SECOND}
_GPU: Final = ("", "any", "unused")
_GROUP: Final = re.compile(r"([^:\s]{1,200}):(\d{1,18})", re.ASCII)


class ListQuery(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The list that an address requests."""

    #: As they are in the address, without empty ones.
    given: dict[str, str]
    filters: Filters
    sort: Sort = LATEST
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    #: Rows of a page, as the viewer prefers.
    rows: int = ROWS_PER_PAGE
    grouped: bool = True
    opened: str = ""
    cursor: Cursor | None = None
    #: Rows on the pages before, which is only shown.
    shown: int = 0

    def __getitem__(self, name: str) -> str:
        return self.given.get(name, "")

    def address(self, **changes: str | None) -> str:
        """The same list with other parameters, from its beginning."""
        kept = {
            name: value
            for name, value in self.given.items()
            if name not in ("cursor", "shown", "open") and name not in changes
        }
        pairs = {**kept, **{name: value for name, value in changes.items() if value}}
        return f"?{urlencode(pairs)}" if pairs else "?"

    @cached_property
    def filtered(self) -> bool:
        others = ("sort", "columns", "group", "open", "cursor", "shown")
        return any(name not in others for name in self.given)

    @cached_property
    def has_more(self) -> bool:
        """Whether a filter is set that is not always visible."""
        return any(
            name not in ("search", "user", "state", "sort", "cursor", "shown", "open")
            for name in self.given
        )


def parse_query(request: Request, now: int) -> ListQuery:
    """The list that a request is for; 422 with a sentence if it cannot be understood."""
    given: dict[str, str] = {}
    chosen: list[str] = []
    for name, value in request.query_params.multi_items():
        if name not in _PARAMETERS:
            raise HTTPException(422, f"there is no filter {name[:80]!r}")
        if len(value) > (8000 if name == "cursor" else _MAX_LENGTH):
            raise HTTPException(422, f"{name}: expected at most {_MAX_LENGTH} characters")
        if name == "columns":
            chosen += value.split(",")
        elif value.strip():
            given[name] = value.strip()
    try:
        return _parse(given, [name for name in chosen if name], now, request)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None


def _parse(given: dict[str, str], chosen: list[str], now: int, request: Request) -> ListQuery:
    filters = _filters(given, now)
    filters["visibility"] = visibility_of(request)
    sort = _named("sort", Sort.parse, given["sort"]) if "sort" in given else LATEST
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown:
        raise ValueError(f"columns: {unknown[0][:40]!r} is none of {', '.join(COLUMNS)}")
    columns = tuple(name for name in COLUMNS if name == "run" or name in chosen)
    waiting = given.get("state") == "PENDING"
    preferred = WAITING_COLUMNS if waiting else preferred_columns(request)
    if chosen and columns != preferred:
        given["columns"] = ",".join(columns)
    if given.get("group", "1") not in ("0", "1"):
        raise ValueError("group: expected 0 or 1")
    cursor = None
    if "cursor" in given:
        cursor = _named("cursor", lambda text: Cursor.parse(text, sort), given["cursor"])
    shown = given.get("shown", "0")
    return ListQuery(
        given=given,
        filters=filters,
        sort=sort,
        columns=columns if chosen else preferred,
        rows=viewer_of(request.scope).preferences.rows or ROWS_PER_PAGE,
        grouped=given.get("group") != "0" and "array" not in given,
        opened=given.get("open", ""),
        cursor=cursor,
        shown=int(shown) if shown.isascii() and shown.isdigit() and len(shown) < 10 else 0,
    )


def preferred_columns(request: Request) -> tuple[str, ...]:
    """The columns that the viewer has chosen before, or those that everybody gets."""
    chosen = viewer_of(request.scope).preferences.columns.get("jobs", [])
    known = tuple(name for name in COLUMNS if name == "run" or name in chosen)
    return known if len(known) > 1 else DEFAULT_COLUMNS


def _filters(given: dict[str, str], now: int) -> Filters:
    filters: Filters = {}
    for name in _TEXTS:
        if name in given:
            filters[name] = given[name]
    if "state" in given:
        given["state"] = filters["state"] = _named("state", parse_state, given["state"])
    for name in ("since", "until"):
        if name in given:
            moment = _named(name, lambda text: parse_moment(text, now), given[name])
            filters[name] = moment  # type: ignore[literal-required]
    for name in ("cpu_share_below", "cpu_share_above"):
        if name in given:
            share = _named(name, parse_share, given[name])
            filters[name] = share  # type: ignore[literal-required]
    gpu = given.get("gpu", "")
    if gpu not in _GPU:
        raise ValueError("gpu: expected any or unused")
    filters["gpus"], filters["unused_gpus"] = gpu == "any", gpu == "unused"
    for name, column in (("chain", "chain_job_id"), ("array", "array_job_id")):
        if name in given:
            match = _GROUP.fullmatch(given[name])
            if match is None:
                raise ValueError(f"{name}: expected cluster:id")
            filters["cluster"] = match[1]
            filters[column] = int(match[2])  # type: ignore[literal-required]
    return filters


def _named(name: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def parse_moment(text: str, now: int) -> int:
    """A day, an RFC 3339 time, or how long ago: 24h, 7d, 2w."""
    if match := _AGO.fullmatch(text):
        return max(now - int(match[1]) * _UNITS[match[2]], 0)
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        return min(max(int(day.timestamp()) * SECOND, 0), 2**63 - 1)
    except ValueError:
        pass
    try:
        return min(max(parse_rfc3339(text), 0), 2**63 - 1)
    except ValueError:
        raise ValueError(
            f"{text[:40]!r} is no time; expected 2026-11-15, 2026-11-15T05:43:06Z, 24h, 7d or 2w"
        ) from None


def parse_share(text: str) -> float:
    """A share of 0 or more: 0.25, or 25%."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= 1000:
        raise ValueError(f"{text[:40]!r} is no share; expected a number such as 0.25, or 25%")
    return share


class JobsPage(msgspec.Struct, kw_only=True):
    """One page of the list, as the template shows it."""

    query: ListQuery
    found: GroupedPage
    kinds: Mapping[str, int]
    clusters: list[str]

    @property
    def rows(self) -> list[GroupedRow]:
        return self.found.rows

    @property
    def columns(self) -> dict[str, Column]:
        """Columns that are empty for every job on the page are left out unless they were chosen."""
        columns = {name: COLUMNS[name] for name in self.query.columns}
        if "columns" not in self.query.given and not self.has_gpus:
            columns.pop("gpus", None)
        return columns

    @property
    def has_gpus(self) -> bool:
        rows = [row for each in self.rows for row in (each.row, *each.runs)]
        return any(row.gpu_count or row.requested_gpus for row in rows)

    @property
    def running(self) -> bool:
        return any(each.row.running for each in self.rows)

    @property
    def states(self) -> tuple[str, ...]:
        state = self.query["state"]
        return STATES if not state or state in STATES else (*STATES, state)

    @property
    def known_kinds(self) -> list[str]:
        return sorted({*self.kinds, self.query["finding"]} - {"", ANY_FINDING})

    @property
    def first(self) -> int:
        return self.query.shown + 1

    @property
    def last(self) -> int:
        return self.query.shown + len(self.rows)

    @property
    def further(self) -> str | None:
        if self.found.next is None:
            return None
        return self.query.address(cursor=str(self.found.next), shown=str(self.last))

    @property
    def is_short(self) -> bool:
        """Whether the page ends because many jobs were compared, not because it is full."""
        return self.found.next is not None and len(self.rows) < self.query.rows

    def sorted_by(self, column: Column) -> str:
        """The value of ``aria-sort`` of a column."""
        if column.sort != self.query.sort.key:
            return ""
        return "descending" if self.query.sort.descending else "ascending"

    def sort_address(self, column: Column) -> str:
        """The list by a column: figures and times from the highest, names from the first."""
        current = self.query.sort
        names = ("run", "state", "name", "user", "account", "cluster", "partition", "qos")
        descending = not any(COLUMNS[name] == column for name in names)
        if current.key == column.sort:
            descending = not current.descending
        sort = Sort(column.sort, descending)
        return self.query.address(sort=None if sort == LATEST else str(sort))


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of the list."""

    # Not async: FastAPI runs them in threads, so that the store does not block the event loop.
    @router.get("/jobs", response_model=None)
    def jobs(request: Request) -> Response:
        query = parse_query(request, clock())
        if any(not value.strip() for _, value in request.query_params.multi_items()):
            # A form sends its empty fields too; the address is to be one that people can read.
            return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs{query.address()}")
        return _page(request, query)

    def _page(request: Request, query: ListQuery) -> HTMLResponse:
        options: dict[str, Any] = {
            "now": clock(),
            "limit": query.rows,
            "cursor": query.cursor,
            "sort": query.sort,
            **query.filters,
        }
        if query.grouped:
            found = list_grouped(store, opened=query.opened, **options)
        else:
            listed = list_page(store, **options)
            rows = [GroupedRow(row) for row in listed.rows]
            found = GroupedPage(rows, listed.next, listed.total, listed.total_exact)
        shown = JobsPage(
            query=query,
            found=found,
            kinds=findings.kinds(clock()),
            clusters=snapshot_clusters(store.database),
        )
        return page(request, "jobs.html", page=shown, all_columns=COLUMNS)

    @router.post("/jobs")
    async def remember_columns(request: Request) -> RedirectResponse:
        """Store the columns of the list as the viewer's preference."""
        # The access control has read the form, which is small, and checked its CSRF token.
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        names = [name for name in form.get("columns", "").split(",") if name]
        viewer = viewer_of(request.scope)
        if viewer.name is None:
            raise HTTPException(403, "the server's token is no account that could remember columns")
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise HTTPException(
                422, f"columns: {unknown[0][:40]!r} is none of {', '.join(COLUMNS)}"
            )
        chosen = {**viewer.preferences.columns, "jobs": names}
        preferences = msgspec.structs.replace(viewer.preferences, columns=chosen)
        await run_in_threadpool(write_preferences, store.database, viewer.name, preferences)
        return RedirectResponse(f"{request.scope.get('root_path', '')}/jobs", status_code=303)

    @router.get("/jobs.csv")
    def jobs_as_csv(request: Request) -> StreamingResponse:
        query = parse_query(request, clock())
        names = [*outer_names(JobRow).values()]
        return _download(csv_lines(_exported(query), names), "text/csv; charset=utf-8", "jobs.csv")

    @router.get("/jobs.json")
    def jobs_as_json(request: Request) -> StreamingResponse:
        query = parse_query(request, clock())

        def lines() -> Iterator[bytes]:
            separator = b'{"jobs": [\n'
            for row in _exported(query):
                yield separator + encode_json(row)
                separator = b",\n"
            yield (separator if separator.startswith(b"{") else b"") + b"\n]}\n"

        return _download(lines(), "application/json", "jobs.json")

    def _exported(query: ListQuery) -> Iterator[JobRow]:
        """The rows of the list from its beginning, at most :data:`MAX_EXPORTED`."""
        cursor, left = None, MAX_EXPORTED
        while left > 0:
            found = list_page(
                store,
                now=clock(),
                limit=min(_EXPORTED_AT_A_TIME, left),
                cursor=cursor,
                sort=query.sort,
                **query.filters,
            )
            yield from found.rows
            left -= len(found.rows)
            if found.next is None:
                return
            cursor = found.next


def _download(
    content: Iterator[str] | Iterator[bytes], media_type: str, name: str
) -> StreamingResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(content, media_type=media_type, headers=headers)
