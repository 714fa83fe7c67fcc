"""Conditional requests: a page or reply that has not changed is answered with 304 and no content.

A page of a running job requests itself every few seconds, with the tag of the last reply. The tag
is computed before the reply, from a revision of what the reply shows: of the run, of the rollups,
or of the whole store. What changes while a reply is computed has another revision and is sent with
the next request.

Besides the revision, a tag contains everything else that a reply depends on: the address, and the
viewer of the request. Elapsed times of running jobs are continued by the browser; the tag of
a reply with such times is valid for :data:`CLOCK_STEP` at most.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import jobsight
from jobsight.access.viewer import viewer_of
from jobsight.errors import JobsightError
from jobsight.model import SECOND, RunReference
from jobsight.store.read.visibility import Visibility
from jobsight.store.rollups.rollups import rollup_revision
from jobsight.store.store import Store
from jobsight.web.language import language_of

#: Nanoseconds after which a reply with elapsed times is computed again.
CLOCK_STEP: Final = 15 * SECOND

#: Lists of runs, which show elapsed times.
_LISTS: Final = frozenset({"/", "/jobs", "/api/v1/jobs"})
_ROLLUPS: Final = "/api/v1/usage"
_SOFTWARE: Final = "/api/v1/software"
#: The page, the report and the time series of a run.
_RUN: Final = re.compile(r"(?:/api/v1)?/jobs/(?P<run>[^/]+)(?P<series>/series)?")
#: A list of tags: RFC 9110, section 8.8.3.
_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')


class ConditionalReplies:
    """Adds tags to replies, and answers requests with the current tag with 304."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        store: Store,
        token: str,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._app = app
        self._store = store
        # A digest with a key, since a tag is computed from credentials.
        self._key = hashlib.blake2b(token.encode()).digest()
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        tag = await run_in_threadpool(self._tag, scope)
        if tag is None:
            await self._app(scope, receive, send)
            return
        if tag in _TAG.findall(Headers(scope=scope).get("if-none-match", "")):
            await Response(status_code=304, headers={"ETag": f"W/{tag}"})(scope, receive, send)
            return

        async def send_tagged(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)["ETag"] = f"W/{tag}"
            await send(message)

        await self._app(scope, receive, send_tagged)

    def _tag(self, scope: Scope) -> str | None:
        """The tag of the reply, without W/; None for a reply that has none."""
        try:
            revision = self._revision(scope["path"], viewer_of(scope).visibility)
        except (JobsightError, ValueError):
            # The route reports it.
            return None
        if revision is None:
            return None
        headers = Headers(scope=scope)
        viewer = viewer_of(scope)
        parts = (
            jobsight.__version__,
            scope.get("root_path", ""),
            scope["path"],
            scope["query_string"].decode("latin-1"),
            headers.get("host", ""),
            # What the viewer may see and has chosen, whatever the credentials are.
            repr(viewer),
            language_of(scope),
            revision,
        )
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        for part in parts:
            # With its length, so that no two sequences of parts are the same bytes.
            data = part.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(data) + data)
        return f'"{digest.hexdigest()}"'

    def _revision(self, path: str, visibility: Visibility) -> str | None:
        if path in _LISTS:
            return f"{self._store.database.revision()} {self._clock() // CLOCK_STEP}"
        if path == _ROLLUPS:
            return rollup_revision(self._store.database)
        if path == _SOFTWARE:
            return self._store.database.revision()
        match = _RUN.fullmatch(path)
        # The values of external time series are not in the store.
        if match is None or self._store.external_series is not None:
            return None
        found = self._store.revision_of(RunReference.parse(match["run"]), visibility)
        is_timeless = found.ended or match["series"] is not None
        moment = "" if is_timeless else self._clock() // CLOCK_STEP
        return f"{found.run_id} {found.text} {moment}"
