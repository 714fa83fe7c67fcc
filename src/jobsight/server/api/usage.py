"""API routes of software usage: the rows of `jobsight software report` and `software list`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from jobsight.model import SECOND
from jobsight.server.api.common import (
    Text,
    TimeParameter,
    check_parameters,
    json_reply,
    own_owner,
    replies,
)
from jobsight.store.rollups.catalogue import SoftwareRow, count_software, list_software
from jobsight.store.rollups.usage import (
    NAMES,
    OWNERS,
    LeftOut,
    Question,
    UsageRow,
    count_waiting,
    date_of,
    left_out,
    usage,
)
from jobsight.store.store import Store

_DAY = 86400 * SECOND
_KEY = f"({'|'.join((*NAMES, *OWNERS))})"


class UsageReply(msgspec.Struct, kw_only=True):
    """Usage by group."""

    #: The first day, and the day after the last; null without a limit.
    since: str | None
    until: str | None
    rows: list[UsageRow]
    #: Usage that the rules ignore and the rows do not include.
    left_out: LeftOut
    #: Changed runs of the cluster, or of all, that the daily rollups do not include yet.
    pending_runs: int
    #: Those that failed and are set aside; pending_runs does not count them.
    set_aside_runs: int


class SoftwareList(msgspec.Struct):
    software: list[SoftwareRow]
    #: Names in the store, of which the list has those with the most core hours.
    total: int


REPLIES = (UsageReply, SoftwareList)


def create_router(store: Store) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)])

    @router.get("/usage", tags=["software"], responses=replies(UsageReply, 304, 404, 422, 503))
    def use(  # noqa: PLR0913 -- FastAPI: one for each parameter of the query
        request: Request,
        by: Annotated[
            str,
            Query(
                max_length=200,
                pattern=rf"^{_KEY}(,{_KEY})*$",
                description="Comma-separated keys",
            ),
        ] = "software",
        every: Annotated[
            Literal["day", "week", "month"] | None, Query(description="Also by time")
        ] = None,
        since: TimeParameter = None,
        until: TimeParameter = None,
        software: Text = None,
        version: Text = None,
        cluster: Text = None,
        user: Text = None,
        account: Text = None,
        partition: Text = None,
        ignored: Annotated[
            bool, Query(description="Include software that the rules ignore")
        ] = False,
    ) -> Response:
        """Usage by software, version, owner and time, in complete days (UTC)."""
        user, account = own_owner(request, user, account)
        question = Question(
            by=tuple(dict.fromkeys(by.split(","))) + ((every,) if every else ()),
            since=None if since is None else since // _DAY,
            until=None if until is None else -(-until // _DAY),
            software=software,
            version=version,
            cluster=cluster,
            user=user,
            account=account,
            partition=partition,
            ignored=ignored,
        )
        with store.database.read() as connection:
            waiting = count_waiting(connection, cluster)
            reply = UsageReply(
                since=_date(question.since),
                until=_date(question.until),
                rows=usage(connection, question),
                left_out=left_out(connection, question),
                pending_runs=waiting.pending,
                set_aside_runs=waiting.set_aside,
            )
        return json_reply(reply)

    @router.get("/software", tags=["software"], responses=replies(SoftwareList, 304, 422, 503))
    def software(
        limit: Annotated[int, Query(ge=1, le=10_000, description="Most names in the list")] = 1000,
    ) -> Response:
        """List the software names with their total usage."""
        with store.database.read() as connection:
            listed = list_software(connection, limit=limit)
            return json_reply(SoftwareList(listed, count_software(connection)))

    return router


def _date(day: int | None) -> str | None:
    return None if day is None else date_of(day).isoformat()
