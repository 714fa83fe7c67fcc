"""The list of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, HTTPException, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import visibility_of
from jobsight.findings.service import FindingsService
from jobsight.reports.build import JobRow
from jobsight.reports.pending import CURSOR_PATTERN, MAX_OFFSET, Cursor, list_page
from jobsight.reports.report import parse_state
from jobsight.store.read.queries import ANY_FINDING, Filters
from jobsight.store.store import Store
from jobsight.web.render import page

ROWS_PER_PAGE = 50

#: The states in the filter, by frequency of use.
STATES = ("RUNNING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "PENDING")

Text = Annotated[str, Query(max_length=200)]


class RunsPage(msgspec.Struct, kw_only=True):
    """One page of the list, and its filter."""

    rows: list[JobRow]
    total: int
    total_exact: bool
    offset: int
    #: Where the next page begins; None on the last one.
    next: Cursor | None
    search: str
    user: str
    state: str
    unused_gpus: bool = False
    #: The kind of finding in the filter, and the kinds that runs have with how many of them.
    finding: str = ""
    kinds: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def known_kinds(self) -> list[str]:
        chosen = {self.finding} - {"", ANY_FINDING}
        return sorted({*self.kinds, *chosen})

    @property
    def has_findings(self) -> bool:
        return any(row.findings for row in self.rows)

    @property
    def states(self) -> tuple[str, ...]:
        common = not self.state or self.state in STATES
        return STATES if common else (*STATES, self.state)

    @property
    def filtered(self) -> bool:
        return bool(self.search or self.user or self.state or self.unused_gpus or self.finding)

    @property
    def running(self) -> bool:
        return any(row.running for row in self.rows)

    @property
    def has_gpus(self) -> bool:
        return self.unused_gpus or any(row.gpu_count or row.requested_gpus for row in self.rows)

    @property
    def first(self) -> int:
        return self.offset + 1

    @property
    def last(self) -> int:
        return self.offset + len(self.rows)

    @property
    def newer(self) -> str | None:
        before = max(self.offset - ROWS_PER_PAGE, 0)
        return self._address(before) if self.offset and before <= MAX_OFFSET else None

    @property
    def older(self) -> str | None:
        return None if self.next is None else self._address(self.last, self.next)

    @property
    def newest(self) -> str:
        return self._address(0)

    def _address(self, offset: int, cursor: Cursor | None = None) -> str:
        filters = {
            "search": self.search,
            "user": self.user,
            "state": self.state,
            "finding": self.finding,
        }
        pairs = {name: value for name, value in filters.items() if value}
        if self.unused_gpus:
            pairs["unused_gpus"] = "true"
        if offset:
            pairs["offset"] = str(offset)
        # Far down the list, the offset is only shown.
        if cursor is not None and offset > MAX_OFFSET:
            pairs["cursor"] = str(cursor)
        return "?" + urlencode(pairs)


def add_routes(
    router: APIRouter, store: Store, findings: FindingsService, clock: Callable[[], int]
) -> None:
    """Add the routes of the list."""

    # Not async: FastAPI runs them in threads, so that the store does not block the event loop.
    @router.get("/")
    def runs(
        request: Request,
        search: Text = "",
        user: Text = "",
        state: Text = "",
        unused_gpus: bool = False,
        finding: Text = "",
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        cursor: Annotated[str, Query(pattern=CURSOR_PATTERN)] | None = None,
    ) -> HTMLResponse:
        if cursor is None and offset > MAX_OFFSET:
            raise HTTPException(422, f"offset: expected at most {MAX_OFFSET} without a cursor")
        try:
            state = parse_state(state) if state.strip() else ""
        except ValueError as error:
            raise HTTPException(422, f"state: {error}") from None
        filters: Filters = {
            "search": search.strip() or None,
            "user": user.strip() or None,
            "state": state or None,
            "unused_gpus": unused_gpus,
            "finding": finding.strip() or None,
            "visibility": visibility_of(request),
        }
        found = list_page(
            store,
            now=clock(),
            limit=ROWS_PER_PAGE,
            offset=offset,
            cursor=None if cursor is None else Cursor.parse(cursor),
            **filters,
        )
        shown = RunsPage(
            rows=found.rows,
            total=found.total,
            total_exact=found.total_exact,
            next=found.next,
            offset=offset,
            search=search,
            user=user,
            state=state,
            unused_gpus=unused_gpus,
            finding=finding,
            kinds=findings.kinds(clock()),
        )
        return page(request, "runs.html", page=shown)
