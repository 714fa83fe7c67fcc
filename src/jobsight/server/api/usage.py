"""The API's figures of use: the same rows as `jobsight software report` and `list`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from jobsight.server.api.jobs import Moment, Text, check_parameters, json_reply, replies
from jobsight.store.rollups.catalogue import SoftwareRow, list_software
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

_DAY = 86400
_KEY = f"({'|'.join((*NAMES, *OWNERS))})"


class UsageReply(msgspec.Struct, kw_only=True):
    """The groups that were asked for."""

    #: The first day that counts and the one after the last, where the question gave them.
    since: str | None
    until: str | None
    rows: list[UsageRow]
    #: What the rules ignore, where it is not among the rows.
    left_out: LeftOut
    #: Runs that have changed and are not summed up anew yet.
    waiting: int


class SoftwareList(msgspec.Struct):
    software: list[SoftwareRow]


REPLIES = (UsageReply, SoftwareList)


def create_router(store: Store) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)])

    @router.get("/usage", tags=["software"], responses=replies(UsageReply, 422, 503))
    def use(
        by: Annotated[
            str,
            Query(
                max_length=200,
                pattern=rf"^{_KEY}(,{_KEY})*$",
                description="Keys with commas",
            ),
        ] = "software",
        every: Annotated[
            Literal["day", "week", "month"] | None, Query(description="By time, too")
        ] = None,
        since: Moment = None,
        until: Moment = None,
        software: Text = None,
        version: Text = None,
        cluster: Text = None,
        user: Text = None,
        account: Text = None,
        partition: Text = None,
        ignored: Annotated[bool, Query(description="With what the rules ignore")] = False,
    ) -> Response:
        """Sum up who used what, by software, version, owner and time; whole days in UTC."""
        question = Question(
            by=tuple(dict.fromkeys(by.split(","))) + ((every,) if every else ()),
            since=None if since is None else int(since // _DAY),
            until=None if until is None else int(-(-until // _DAY)),
            software=software,
            version=version,
            cluster=cluster,
            user=user,
            account=account,
            partition=partition,
            ignored=ignored,
        )
        with store.database.read() as connection:
            reply = UsageReply(
                since=_date(question.since),
                until=_date(question.until),
                rows=usage(connection, question),
                left_out=left_out(connection, question),
                waiting=count_waiting(connection),
            )
        return json_reply(reply)

    @router.get("/software", tags=["software"], responses=replies(SoftwareList, 422, 503))
    def software() -> Response:
        """List the names that the rules have given, with all their use."""
        with store.database.read() as connection:
            return json_reply(SoftwareList(list_software(connection)))

    return router


def _date(day: int | None) -> str | None:
    return None if day is None else date_of(day).isoformat()
