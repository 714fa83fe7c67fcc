"""API routes of users and accounts: associations with fair share, and usage from the rollups.

A viewer who does not see everything gets their own user, and the accounts that they coordinate or
mentor, for as long as they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import Account, User, not_found, require, visibility_of
from jobsight.model import SECOND
from jobsight.scheduler.adapters.policy import AssociationInfo
from jobsight.server.api.common import (
    NameCursor,
    PageLimit,
    Text,
    TimeParameter,
    check_parameters,
    json_reply,
    page_of_names,
    page_reply,
    replies,
)
from jobsight.store.read.clusters import known_clusters
from jobsight.store.read.visibility import Visibility, VisibleAccount
from jobsight.store.rollups.usage import Question, UsageRow, date_of, usage
from jobsight.store.snapshot import read_snapshot
from jobsight.store.store import Store

_DAY = 86400 * SECOND
#: Days of usage unless the request says since when.
_RECENT = 30


class Association(msgspec.Struct, kw_only=True):
    """A user in an account of a cluster, or the account itself, with what the scheduler assigns."""

    cluster: str
    account: str
    #: Null for the association of the account.
    user: str | None
    partition: str | None
    parent: str | None
    shares: int | None
    #: The assigned share of the cluster, the share that was used, and what follows for priority:
    #: 1 has used nothing, 0.5 exactly what is assigned.
    share: float | None
    usage_share: float | None
    fair_share: float | None
    qos: tuple[str, ...]


class UserList(msgspec.Struct):
    """Users with runs in the period, by name."""

    since: str
    limit: int
    next: str | None
    users: list[UsageRow]


class UserReply(msgspec.Struct):
    """A user: associations, and usage by cluster and account in the period."""

    user: str
    since: str
    associations: list[Association]
    usage: list[UsageRow]


class AccountList(msgspec.Struct):
    """Accounts with runs in the period, by name."""

    since: str
    limit: int
    next: str | None
    accounts: list[UsageRow]


class AccountReply(msgspec.Struct):
    """An account: associations with its members, and usage by cluster and user in the period."""

    account: str
    since: str
    associations: list[Association]
    usage: list[UsageRow]


REPLIES = (UserList, UserReply, AccountList, AccountReply)

Since = Annotated[
    TimeParameter, Query(description="Usage of days since then; the last 30 days by default")
]
NamePath = Annotated[str, Path(max_length=200)]


def create_router(store: Store, *, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)], tags=["people"])

    def first_day(since: int | None) -> int:
        return clock() // _DAY - _RECENT if since is None else since // _DAY

    def ask(*questions: Question) -> list[UsageRow]:
        with store.database.read() as connection:
            return [row for question in questions for row in usage(connection, question)]

    def associations(visibility: Visibility, **names: str) -> list[Association]:
        fields = Association.__struct_fields__
        return [
            Association(**{field: getattr(record, field) for field in fields})
            for cluster in known_clusters(store.database)
            for record in read_snapshot(store.database, cluster, "association", AssociationInfo)
            if all(getattr(record, name) == value for name, value in names.items())
            and visibility.includes(
                cluster=cluster, user=record.user, account=record.account, start=None
            )
        ]

    @router.get("/users", responses=replies(UserList, 422, 503))
    def users(
        request: Request,
        since: TimeParameter = None,
        cluster: Text = None,
        account: Text = None,
        limit: PageLimit = 100,
        cursor: NameCursor = None,
    ) -> Response:
        """List the users with runs in a period, with their usage."""
        day, visibility = first_day(since), visibility_of(request)
        wanted = Question(by=("user",), since=day, cluster=cluster, account=account)
        rows = ask(*(_visible_users(visibility, wanted)))
        page, following = page_of_names(rows, lambda row: (row.user or "",), limit, cursor)
        reply = UserList(date_of(day).isoformat(), limit, following, page)
        return page_reply(request, reply, "users", None)

    @router.get("/users/{user}", responses=replies(UserReply, 404, 422, 503))
    def user(request: Request, user: NamePath, since: TimeParameter = None) -> Response:
        """One user: accounts and fair share, and usage by cluster and account."""
        require(request, User(user))
        day = first_day(since)
        rows = ask(Question(by=("cluster", "account"), since=day, user=user))
        members = associations(visibility_of(request), user=user)
        if not rows and not members and not store.runs(limit=1, user=user):
            raise HTTPException(404, not_found(User(user)))
        return json_reply(UserReply(user, date_of(day).isoformat(), members, rows))

    @router.get("/accounts", responses=replies(AccountList, 422, 503))
    def accounts(
        request: Request,
        since: TimeParameter = None,
        cluster: Text = None,
        limit: PageLimit = 100,
        cursor: NameCursor = None,
    ) -> Response:
        """List the accounts with runs in a period, with their usage."""
        day, visibility = first_day(since), visibility_of(request)
        wanted = Question(by=("account",), since=day, cluster=cluster)
        rows = ask(*_visible_accounts(visibility, wanted))
        page, following = page_of_names(rows, lambda row: (row.account or "",), limit, cursor)
        reply = AccountList(date_of(day).isoformat(), limit, following, page)
        return page_reply(request, reply, "accounts", None)

    @router.get("/accounts/{account}", responses=replies(AccountReply, 404, 422, 503))
    def account(request: Request, account: NamePath, since: TimeParameter = None) -> Response:
        """One account: its members with their fair share, and usage by cluster and user."""
        require(request, Account(account))
        day, visibility = first_day(since), visibility_of(request)
        wanted = Question(by=("cluster", "user"), since=day, account=account)
        rows = ask(*_visible_accounts(visibility, wanted))
        members = associations(visibility, account=account)
        if not rows and not members and not store.runs(limit=1, account=account):
            raise HTTPException(404, not_found(Account(account)))
        return json_reply(AccountReply(account, date_of(day).isoformat(), members, rows))

    return router


def _visible_users(visibility: Visibility, question: Question) -> Iterator[Question]:
    """The questions whose answers together are what the viewer may see."""
    if visibility.everything:
        yield question
        return
    for own in visibility.users:
        if question.cluster is None or own.cluster in (None, question.cluster):
            yield msgspec.structs.replace(
                question, user=own.name, cluster=own.cluster or question.cluster
            )


def _visible_accounts(visibility: Visibility, question: Question) -> Iterator[Question]:
    if visibility.everything:
        yield question
        return
    for seen in visibility.accounts:
        fits_cluster = question.cluster is None or seen.cluster in (None, question.cluster)
        if fits_cluster and question.account in (None, seen.name):
            yield _within(question, seen)


def _within(question: Question, seen: VisibleAccount) -> Question:
    """The question for the complete days of the interval in which the account is visible."""
    since, until = question.since, question.until
    if seen.since is not None:
        first = -(-seen.since // _DAY)
        since = first if since is None else max(since, first)
    if seen.until is not None:
        last = seen.until // _DAY
        until = last if until is None else min(until, last)
    return msgspec.structs.replace(
        question,
        account=seen.name,
        cluster=seen.cluster or question.cluster,
        since=since,
        until=until,
    )
