"""Records who viewed the data of whom, and shows it to those users.

Everybody who sees the data of another user is recorded: staff, auditors, coordinators and mentors,
on pages, in files and by the API. Whose data a reply has is noted where records leave the store
(:mod:`jobsight.store.read.viewed`), so that a new route needs nothing for it. The server's token is
not recorded: who has it can read the store itself.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobsight.access.viewer import Viewer, viewer_of
from jobsight.errors import JobsightError
from jobsight.model import RunReference
from jobsight.store.accounts.audit import LIST, LISTS_OF_MANY, MANY_USERS, USER_PAGE, AuditLog
from jobsight.store.read.viewed import ViewedOwners, noting_owners
from jobsight.store.store import Store

#: The page of a run, which requests itself again.
_RUN: Final = re.compile(r"(?:/api/v1)?/jobs/(?P<run>[^/]+)(?:/.*)?")
_USER: Final = re.compile(r"(?:/api/v1)?/users/(?P<user>.+)")
#: Users of one reply of whom each is told, if the viewer sees all users.
MAX_TOLD: Final = 8
_NOT_MODIFIED: Final = 304


class ViewLog:
    """Records the views of data of other users."""

    def __init__(self, app: ASGIApp, *, store: Store, log: AuditLog) -> None:
        self._app = app
        self._store = store
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer = viewer_of(scope)
        if scope["type"] != "http" or not may_see_others(viewer):
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with noting_owners() as owners:
            try:
                await self._app(scope, receive, send_noted)
            finally:
                if 200 <= status < 300 or status == _NOT_MODIFIED:
                    # Also what was sent until the client closed the connection was viewed.
                    recorded = asyncio.to_thread(
                        self._record, viewer, scope["path"], owners, status
                    )
                    await asyncio.shield(recorded)

    def _record(self, viewer: Viewer, path: str, owners: ViewedOwners, status: int) -> None:
        if status == _NOT_MODIFIED:
            # The run was sent before, and is shown once more.
            self._find_run(viewer, path)
        found = owners.subjects()
        page = _USER.fullmatch(path)
        if page is not None:
            found[page["user"]] = {USER_PAGE}
        found.pop(viewer.name or "", None)
        if viewer.visibility.everything and (len(found) > MAX_TOLD or owners.are_more):
            found = {MANY_USERS: {LISTS_OF_MANY}}
        for user, subjects in found.items():
            for subject in subjects or (LIST,):
                self._log.record(user=user, viewer=viewer.name or "", subject=subject)

    def _find_run(self, viewer: Viewer, path: str) -> None:
        match = _RUN.fullmatch(path)
        if match is not None:
            try:
                self._store.find(RunReference.parse(match["run"]), viewer.visibility)
            except (JobsightError, ValueError):
                # It was removed meanwhile.
                return


def may_see_others(viewer: Viewer) -> bool:
    """Whether a viewer with a name may see data of other users."""
    visible = viewer.visibility
    return viewer.name is not None and (visible.everything or bool(visible.accounts))
