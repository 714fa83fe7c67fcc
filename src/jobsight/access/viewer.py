"""Who makes a request: name, role, and the runs that this permits to see."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec
from starlette.types import Scope

from jobsight.store.accounts.preferences import NO_PREFERENCES, Preferences
from jobsight.store.read.visibility import EVERYTHING, NOTHING, Visibility

#: Key of the scope: the viewer, which the access control sets.
VIEWER_IN_SCOPE: Final = "jobsight.viewer"


class Role(StrEnum):
    """What an account is for. The order is that of the documents, not of rights."""

    #: Sees the own runs.
    USER = "user"
    #: Sees the runs of the accounts that they coordinate as well, as of the time of the run.
    COORDINATOR = "coordinator"
    #: Sees the runs of named accounts as well: a support person for some projects.
    MENTOR = "mentor"
    #: Sees everything; views of pages of users are logged.
    STAFF = "staff"
    #: Sees everything with pseudonyms in place of names and texts of users.
    AUDITOR = "auditor"


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a request."""

    #: The name of the account; None of the server's token and of nobody.
    name: str | None = None
    role: Role | None = None
    visibility: Visibility = NOTHING
    #: The request has the server's token, or comes from a browser that signed in with it: the
    #: administrator of this server, or the only user of a server on one's own machine.
    has_server_token: bool = False
    #: Names and texts of users are shown as pseudonyms.
    pseudonyms: bool = False
    #: Whether the credentials permit changes: a session with a CSRF token, a token with the scope.
    may_write: bool = False
    #: What a form of this viewer must send back as ``csrf``; empty with a token.
    csrf: str = ""
    #: Shown language, time zone, rows and columns.
    preferences: Preferences = NO_PREFERENCES

    @property
    def is_staff(self) -> bool:
        """Whether pages for staff are shown: all users, findings for staff, operations."""
        return self.has_server_token or self.role is Role.STAFF

    @property
    def is_signed_in(self) -> bool:
        return self.has_server_token or self.role is not None


NOBODY: Final = Viewer()
SERVER_TOKEN: Final = Viewer(has_server_token=True, visibility=EVERYTHING, may_write=True)


def viewer_of(scope: Scope) -> Viewer:
    """The viewer of a request; nobody, if the access control did not say who it is."""
    viewer = scope.get(VIEWER_IN_SCOPE)
    return viewer if isinstance(viewer, Viewer) else NOBODY
