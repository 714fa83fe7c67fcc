"""Requests to the pages by a chosen viewer: here the pages are tested, not the sign-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from jobsight.access.viewer import Role, Viewer
from jobsight.store.read.visibility import EVERYTHING, Visibility, VisibleAccount, VisibleUser

_USERS = (
    "jobsight.access.policy.viewer_of",
    "jobsight.web.render.viewer_of",
    "jobsight.web.language.viewer_of",
    "jobsight.web.pages.people.viewer_of",
    "jobsight.web.pages.software.viewer_of",
    "jobsight.web.pages.findings.viewer_of",
    "jobsight.web.pages.home.viewer_of",
    "jobsight.web.pages.run.viewer_of",
)


@contextmanager
def seen_by(viewer: Viewer) -> Iterator[None]:
    """All requests are made by one viewer."""
    with ExitStack() as stack:
        for name in _USERS:
            stack.enter_context(patch(name, return_value=viewer))
        yield


def user(name: str) -> Viewer:
    return Viewer(name=name, role=Role.USER, visibility=Visibility(users=(VisibleUser(name),)))


def coordinator(name: str, *accounts: VisibleAccount) -> Viewer:
    visible = Visibility(users=(VisibleUser(name),), accounts=accounts)
    return Viewer(name=name, role=Role.COORDINATOR, visibility=visible)


#: Sees no names of users.
AUDITOR = Viewer(name="dan", role=Role.AUDITOR, visibility=EVERYTHING, pseudonyms=True)
STAFF = Viewer(name="carol", role=Role.STAFF, visibility=EVERYTHING)
