"""Records who viewed the pages and runs of whom, and shows it to those users.

Everybody who sees the data of another user is recorded: staff, auditors, coordinators and mentors,
on pages and by the API. The server's token is not: who has it can read the store itself.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobsight.access.viewer import Viewer, viewer_of
from jobsight.errors import JobsightError
from jobsight.model import RunReference
from jobsight.store.accounts.audit import AuditLog
from jobsight.store.read.pseudonyms import shown_as_written
from jobsight.store.store import Store

#: Pages, replies and files of one run, also by petricore's addresses.
_RUN: Final = re.compile(r"(?:/api/v1)?/(?:jobs|mail|plot|pie|pdf)/(?P<run>[^/]+)(?:/.*)?")
_USER: Final = re.compile(r"(?:/api/v1)?/users/(?P<user>.+)")


class ViewLog:
    """Records the views of runs and pages of other users."""

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

        await self._app(scope, receive, send_noted)
        if status in (200, 304):
            await run_in_threadpool(self._record, viewer, scope["path"])

    def _record(self, viewer: Viewer, path: str) -> None:
        user, subject = self._owner(viewer, path)
        if user and user != viewer.name:
            self._log.record(user=user, viewer=viewer.name or "", subject=subject)

    def _owner(self, viewer: Viewer, path: str) -> tuple[str | None, str]:
        match = _USER.fullmatch(path)
        if match is not None:
            return unquote(match["user"]), "the page of the user"
        match = _RUN.fullmatch(path)
        if match is None:
            return None, ""
        try:
            # The log is for the users themselves, also if the viewer sees a pseudonym.
            with shown_as_written():
                found = self._store.find(RunReference.parse(match["run"]), viewer.visibility)
        except (JobsightError, ValueError):
            # A pending job, or one that was removed meanwhile.
            return None, ""
        return found.info.user, str(found.run)


def may_see_others(viewer: Viewer) -> bool:
    """Whether a viewer with a name may see data of other users."""
    visible = viewer.visibility
    return viewer.name is not None and (visible.everything or bool(visible.accounts))
