"""Errors of the API as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"


class Problem(msgspec.Struct):
    """Why a request failed. The status is the kind of problem; there are no other types."""

    #: The phrase of the status.
    title: str
    status: int
    #: What is wrong and what would be right, in one sentence.
    detail: str
    type: str = "about:blank"


def problem_reply(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """The reply to a request that failed."""
    problem = Problem(HTTPStatus(status).phrase, status, sentence)
    return Response(msgspec.json.encode(problem), status, headers, MEDIA_TYPE)
