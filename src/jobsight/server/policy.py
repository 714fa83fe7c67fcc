"""Who may see what: the one place that decides it.

A route names its subject and asks :func:`require`; nothing else in the server decides who may read
a job or the data of a user. The server's token sees everything, and nobody else sees anything.
"""

from __future__ import annotations

from typing import Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.types import Scope

#: Key of the scope: the viewer, which the access control sets.
VIEWER_IN_SCOPE: Final = "jobsight.viewer"


class Viewer(msgspec.Struct, frozen=True):
    """Who makes a request."""

    #: The request came with the server's token, or from a browser that signed in with it.
    has_server_token: bool = False


class Job(msgspec.Struct, frozen=True):
    """A job, with the figures and texts that belong to it."""

    user: str | None
    account: str | None
    cluster: str | None


class User(msgspec.Struct, frozen=True):
    """What is known of a user: jobs and usage of file systems."""

    name: str


Subject = Job | User

NOBODY: Final = Viewer()
SERVER_TOKEN: Final = Viewer(has_server_token=True)


def may_see(viewer: Viewer, subject: Subject) -> bool:
    """Whether the viewer may see the subject."""
    return viewer.has_server_token


def viewer_of(scope: Scope) -> Viewer:
    """The viewer of a request; nobody, if the access control did not say who it is."""
    viewer = scope.get(VIEWER_IN_SCOPE)
    return viewer if isinstance(viewer, Viewer) else NOBODY


def require(request: Request, subject: Subject) -> None:
    """Refuse a request whose viewer may not see the subject, with 403."""
    if not may_see(viewer_of(request.scope), subject):
        what = "this job" if isinstance(subject, Job) else "this user"
        raise HTTPException(403, f"your credentials do not permit to see {what}")
