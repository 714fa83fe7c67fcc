"""Who may see what: the one place that decides it.

Lists and single runs are restricted by the viewer's visibility inside the query, so that a run
that may not be seen is the same as one that does not exist. A route about something else than a run
names its subject and asks :func:`require`.
"""

from __future__ import annotations

import msgspec
from fastapi import HTTPException
from starlette.requests import Request

from jobsight.access.viewer import Viewer, viewer_of
from jobsight.store.read import pseudonyms
from jobsight.store.read.visibility import NOTHING, Visibility


class Job(msgspec.Struct, frozen=True):
    """A job, with the figures and texts that belong to it."""

    user: str | None
    account: str | None
    cluster: str | None
    #: None of a job that waits.
    start: int | None = None


class User(msgspec.Struct, frozen=True):
    """What is known of a user: jobs and usage of file systems."""

    name: str


class Account(msgspec.Struct, frozen=True):
    """An account of the scheduler with its members and sums."""

    name: str


class Site(msgspec.Struct, frozen=True):
    """What belongs to no user: operations, findings for staff, other people's accounts."""


Subject = Job | User | Account | Site


def may_see(viewer: Viewer, subject: Subject) -> bool:
    """Whether the viewer may see the subject."""
    visible = viewer.visibility
    match subject:
        case Job(user=user, account=account, cluster=cluster, start=start):
            return visible.includes(cluster=cluster, user=user, account=account, start=start)
        case User() | Account() if viewer.pseudonyms:
            # They would show whose pseudonym it is.
            return False
        case User(name=name):
            return visible.everything or any(own.name == name for own in visible.users)
        case Account(name=name):
            return visible.everything or any(seen.name == name for seen in visible.accounts)
        case Site():
            return viewer.is_staff


def visibility_of(request: Request) -> Visibility:
    """The runs that the viewer of a request may see; for a viewer of pseudonyms only while runs
    leave the store under pseudonyms."""
    viewer = viewer_of(request.scope)
    return NOTHING if viewer.pseudonyms and not pseudonyms.is_active() else viewer.visibility


def require(request: Request, subject: Subject) -> None:
    """Refuse a request whose viewer may not see the subject, as if there were no such thing."""
    if not may_see(viewer_of(request.scope), subject):
        raise HTTPException(404, not_found(subject))


def not_found(subject: Subject) -> str:
    """The same sentence for what does not exist and for what may not be seen."""
    match subject:
        case Job():
            return "there is no such job, or you may not see it"
        case User(name=name):
            return f"there is no user {name[:100]!r}, or you may not see their jobs"
        case Account(name=name):
            return f"there is no account {name[:100]!r}, or you may not see its jobs"
        case Site():
            return "there is no such page, or it is for staff"
