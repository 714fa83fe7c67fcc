"""Pseudonyms in the replies of the API, for viewers who may see figures but no names.

An auditor sees all runs; the names of users are replaced by pseudonyms that are the same in all
replies of a server, and what users write (names and commands of jobs, paths, properties) is left
out. Filters by such texts are refused, because their replies would tell the names.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobsight.access.viewer import viewer_of
from jobsight.server.problems import problem_reply

#: Parameters that compare names or texts of users.
_FILTERS: Final = frozenset({"user", "search", "name", "viewer", "property"})
#: Routes that are about one user, or whose replies are not JSON.
_NAMED: Final = re.compile(
    r"/api/v1/(users(/.*)?|jobs/[^/]+/(properties(/.*)?|report\..*|plots/.*|explain|usage)"
    r"|clusters/jobs/.*|scripts(/.*)?)"
)
#: Fields with the name of a user, or with several.
_USERS: Final = frozenset({"user", "reason_user", "reply_user", "viewer", "users"})
#: Texts that users write; ``name`` in objects about jobs only.
_TEXTS: Final = frozenset({"job_name", "command", "submit_line", "working_directory"})
#: Texts of findings, which quote programs.
_OF_FINDINGS: Final = frozenset({"title", "text", "change"})
#: As jobsight.store.read.pseudonyms writes it.
_PSEUDONYM: Final = re.compile(r"user-[0-9a-f]{8}")
_DESCRIPTION: Final = "/api/v1/openapi.json"
_ABOUT_JOBS: Final = frozenset({"run", "display_id", "subject"})
_EMPTIED: Final = frozenset({"properties", "links", "programs", "figures"})


class Pseudonyms:
    """Replaces names in JSON replies to viewers of pseudonyms."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._key = hmac.digest(token.encode(), b"jobsight pseudonyms", "sha256")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or not scope["path"].startswith("/api/")
            or scope["path"] == _DESCRIPTION
            or not viewer_of(scope).pseudonyms
        ):
            await self._app(scope, receive, send)
            return
        if _NAMED.fullmatch(scope["path"]):
            refusal = problem_reply(
                404, "there is no such thing, or you may not see names of users"
            )
            await refusal(scope, receive, send)
            return
        given = {name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"))}
        if given & _FILTERS:
            sentence = f"you see pseudonyms; {min(given & _FILTERS)} would tell a name"
            await problem_reply(403, sentence)(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def send_replaced(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            assert start is not None
            replaced = self._replaced(bytes(body))
            MutableHeaders(scope=start)["content-length"] = str(len(replaced))
            await send(start)
            await send({"type": "http.response.body", "body": replaced})

        await self._app(scope, receive, send_replaced)

    def _replaced(self, body: bytes) -> bytes:
        if not body:
            return body
        try:
            document = msgspec.json.decode(body)
        except msgspec.DecodeError:
            # Nothing of it is known to be without names.
            return b""
        return msgspec.json.encode(self._walk(document))

    def _walk(self, document: Any) -> Any:
        if isinstance(document, list):
            return [self._walk(part) for part in document]
        if not isinstance(document, dict):
            return document
        texts = _TEXTS
        if not _ABOUT_JOBS.isdisjoint(document):
            texts |= {"name"}
        if "severity" in document:
            texts |= _OF_FINDINGS
        return {name: self._field(name, value, texts) for name, value in document.items()}

    def _field(self, name: str, value: Any, texts: frozenset[str]) -> Any:
        if name in _USERS and not isinstance(value, int):
            return self._names(value)
        if isinstance(value, str):
            if name in texts:
                return ""
            if name == "path":
                return value.rpartition("/")[2]
            return value
        if name in _EMPTIED and isinstance(value, dict | list):
            return type(value)() if name != "programs" or _are_texts(value) else self._walk(value)
        return self._walk(value)

    def _names(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._names(each) for each in value]
        if isinstance(value, str) and _PSEUDONYM.fullmatch(value):
            # What left the store has the same pseudonym as on the pages.
            return value
        if isinstance(value, str) and value:
            return f"user-{hmac.new(self._key, value.encode(), hashlib.sha256).hexdigest()[:10]}"
        return self._walk(value)


def _are_texts(value: Any) -> bool:
    return all(isinstance(each, str) for each in value)
