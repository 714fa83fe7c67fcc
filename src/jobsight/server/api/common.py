"""What the routes of the API have in common: parameters, references of runs, replies, paging.

Replies are msgspec structs, which also give the schemas of the OpenAPI description;
:mod:`jobsight.util.outer` converts them to outer units.
"""

from __future__ import annotations

import base64
import difflib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from fastapi import HTTPException, Path, Query
from pydantic import BeforeValidator, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from jobsight.access.policy import User, not_found, visibility_of
from jobsight.access.viewer import viewer_of
from jobsight.model import RunReference
from jobsight.reports.report import STATES, parse_state
from jobsight.server.auth import RETRY_AFTER
from jobsight.server.problems import MEDIA_TYPE, Problem
from jobsight.store.read.queries import StoredRun
from jobsight.store.read.visibility import Visibility, VisibleAccount
from jobsight.store.store import Store
from jobsight.util.outer import encode_json, from_seconds, outer_names, parse_rfc3339, to_outer

#: The largest time in nanoseconds that fits into 64 bits, in seconds: the year 2262.
_MAX_SECONDS = 9_223_372_036

Text = Annotated[str | None, Query(max_length=200)]


def parse_time(value: str | None) -> int | None:
    """Nanoseconds since 1970 from an RFC 3339 time or seconds since 1970.

    RFC 3339 has years 0 to 9999; a time beyond what the store can hold is moved to its limit.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return min(max(parse_rfc3339(value), 0), 2**63 - 1)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"{value!r} is not between 0 and {_MAX_SECONDS} seconds since 1970")
    return min(from_seconds(seconds), 2**63 - 1)


TimeParameter = Annotated[
    int | None,
    BeforeValidator(parse_time),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "number", "minimum": 0, "maximum": _MAX_SECONDS},
            ]
        }
    ),
    Query(description="RFC 3339, or seconds since 1970 (UTC)"),
]


MetricNames = Annotated[
    str | None, Query(max_length=4000, description="Comma-separated names; all by default")
]
PointCount = Annotated[
    int,
    Query(ge=1, le=10_000, description="Maximum per time series; fewer for jobs with very many"),
]


def check_state(value: str | None) -> str | None:
    """Refuse a state that no job can have: its list would be empty for ever."""
    if value is not None and value != parse_state(value):
        raise ValueError(f"states are written in capitals: {parse_state(value)}")
    return value


StateParameter = Annotated[
    str | None,
    BeforeValidator(check_state),
    WithJsonSchema({"type": "string", "enum": [*STATES]}),
    Query(description="The state that the list shows"),
]
ViewerParameter = Annotated[
    str | None,
    Query(max_length=64, description="Who is shown the findings: recorded, see `effect`"),
]
RunText = Annotated[
    str,
    Path(
        max_length=300,
        description="A job id such as 12 (its latest run), 62_3, 88+1, or cluster:12:start",
        # Described but not checked here: RunReference.parse has the better error message.
        json_schema_extra={
            "pattern": r"^([^:\s]+:)?[0-9]{1,18}([_+][0-9]{1,9})?(:[0-9]{8}T[0-9]{6}Z)?$",
            "examples": ["12"],
        },
    ),
]


async def check_parameters(request: Request) -> None:
    """Refuse parameters that the route does not have, or that the viewer may not ask by."""
    route: Any = request.scope["route"]
    refuse_unknown(request, [field.alias for field in route.dependant.query_params])
    if viewer_of(request.scope).pseudonyms:
        _refuse_names(request)


#: Parameters that compare names or texts of users; lists are not sorted by the first three.
_NAMING: Final = ("user", "account", "name", "search", "viewer", "property")


def _refuse_names(request: Request) -> None:
    """The store would find nothing: say why."""
    given = [name for name in _NAMING if name in request.query_params]
    given += [f"sort={key}" for key in _NAMING[:3] if _sorts_by(request) == key]
    if given:
        raise HTTPException(403, f"you see pseudonyms; {given[0]} would tell a name")


def _sorts_by(request: Request) -> str:
    return request.query_params.get("sort", "").removeprefix("-")


def refuse_unknown(request: Request, known: Sequence[str]) -> None:
    """Refuse unknown and repeated parameters: ?usr=bob must not list the jobs of all users."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected: {', '.join(known) or 'none'}"
            raise HTTPException(422, f"unknown parameter {name[:80]!r}; {hint}")
        if given.count(name) > 1:
            raise HTTPException(422, f"the parameter {name} is repeated")


def shown_to(request: Request, viewer: str | None) -> str | None:
    """Who is shown the findings of a reply: whom the server's token names, else the own account."""
    own = viewer_of(request.scope)
    return viewer if own.has_server_token else own.name


def own_owner(
    request: Request, user: str | None, account: str | None
) -> tuple[str | None, str | None]:
    """The filters of a request for sums, of what the viewer may see as a whole.

    Who does not see everything gets their own sums, or those of an account that they see always
    and on every cluster; other names are answered as if they did not exist.
    """
    visibility = visibility_of(request)
    if visibility.everything:
        return user, account
    own = [each.name for each in visibility.users if each.cluster is None]
    whole = [VisibleAccount(account)] if account is not None else []
    if user not in own and any(each in visibility.accounts for each in whole):
        return user, account
    if user is None and own:
        return own[0], account
    if user not in own:
        raise HTTPException(404, not_found(User(user or "")))
    return user, account


def find_run(store: Store, text: str, visibility: Visibility) -> StoredRun:
    """The run of a reference; 400 if the text is not one, 404 if there is no such run."""
    return store.find(parse_reference(text), visibility)


def parse_reference(text: str) -> RunReference:
    """A reference; 400 if the text is not one."""
    try:
        return RunReference.parse(text)
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def json_reply(reply: msgspec.Struct) -> Response:
    """A reply in outer units."""
    return Response(encode_json(reply), media_type="application/json")


def page_reply(
    request: Request, reply: msgspec.Struct, rows: str, fields: Sequence[str] | None
) -> Response:
    """A page of a list in outer units; ``rows`` is the attribute with its rows, of which all
    fields are sent or the selected ones. The header Link has the address of the next page."""
    if fields is None:
        answer = json_reply(reply)
    else:
        document = to_outer(reply)
        document[rows] = [{name: row[name] for name in fields} for row in document[rows]]
        answer = Response(encode_json(document), media_type="application/json")
    following = getattr(reply, "next", None)
    if following is not None:
        kept = [
            (name, value)
            for name, value in request.query_params.multi_items()
            if name not in ("cursor", "offset")
        ]
        path = request.scope.get("root_path", "") + request.scope["path"]
        query = urlencode([*kept, ("cursor", following)])
        answer.headers["Link"] = f'<{quote(path)}?{query}>; rel="next"'
    return answer


#: A cursor of a list that is ordered by names: their encoded texts.
NameCursor = Annotated[
    str | None,
    Query(
        max_length=3000,
        description="`next` of the page before",
        json_schema_extra={"pattern": "^[A-Za-z0-9_-]{4,3000}$"},
    ),
]
PageLimit = Annotated[int, Query(ge=1, le=1000, description="Most rows of the page")]

_Row = TypeVar("_Row")


def page_of_names(
    rows: Iterable[_Row],
    key: Callable[[_Row], tuple[str, ...]],
    limit: int,
    cursor: str | None,
) -> tuple[list[_Row], str | None]:
    """The rows after the cursor, in the order of their keys, and the cursor of the next page."""
    after = None if cursor is None else _names_of(cursor)
    ordered = sorted(rows, key=key)
    if after is not None:
        ordered = ordered[bisect_right(ordered, after, key=key) :]
    page = ordered[:limit]
    return page, _cursor_of(key(page[-1])) if len(ordered) > limit else None


def _cursor_of(names: tuple[str, ...]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(names)).decode().rstrip("=")


def _names_of(cursor: str) -> tuple[str, ...]:
    try:
        data = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        return msgspec.json.decode(data, type=tuple[str, ...])
    except (ValueError, msgspec.MsgspecError):
        raise HTTPException(422, "cursor: expected a cursor as the page before gave it") from None


#: Structs whose fields can be selected -> the outer names of those that are always sent.
_SELECTABLE: dict[str, tuple[str, ...]] = {}


class Selection:
    """The parameter that selects fields of the rows of a list; the keys are always sent."""

    def __init__(self, row: type[msgspec.Struct], *keys: str) -> None:
        _SELECTABLE[row.__name__] = keys
        self._keys = keys
        self._known = list(outer_names(row).values())
        one = f"({'|'.join(self._known)})"
        #: The metadata of the annotation.
        self.query: Any = Query(
            max_length=2000,
            description=f"Comma-separated fields of the rows; {', '.join(keys)} always",
            # Described but not checked here: parse has the better error message.
            json_schema_extra={"pattern": f"^{one}(,{one})*$"},
        )

    def parse(self, value: str | None) -> list[str] | None:
        """The names of the selected fields; None for all."""
        if value is None:
            return None
        chosen = value.split(",")
        for name in chosen:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(self._known)}"
                raise HTTPException(422, f"fields: there is no field {name[:80]!r}; {hint}")
        return [*self._keys, *(name for name in dict.fromkeys(chosen) if name not in self._keys)]


def without_required_fields(schemas: dict[str, Any]) -> None:
    """In the schemas of rows whose fields can be selected, leave only the keys required."""
    for name, keys in _SELECTABLE.items():
        if name in schemas:
            schemas[name]["required"] = list(keys)


_MEANINGS = {
    304: "Not changed since the reply with the ETag that If-None-Match names",
    400: "Invalid run reference, batch or Host header",
    403: "The token or the certificate does not permit this",
    404: "It does not exist, or the viewer may not see it",
    408: "The batch was not complete in time",
    413: "The batch, or what a query would read, is too large",
    422: "Invalid parameter, or invalid content of a batch",
    429: "The agent exceeds its rate limit; see Retry-After",
    503: f"The store is not available; try again after {RETRY_AFTER} seconds",
}


def replies(success: type[msgspec.Struct], *errors: int) -> dict[int | str, dict[str, Any]]:
    """The replies of a route by status, for the OpenAPI description."""

    def described(meaning: str, reply: type) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{reply.__name__}"}
        media_type = MEDIA_TYPE if reply is Problem else "application/json"
        return {"description": meaning, "content": {media_type: {"schema": schema}}}

    replies: dict[int | str, dict[str, Any]] = {200: described("Success", success)}
    replies[401] = described("The token is missing or invalid", Problem)
    # The access control answers so before any route: a token that permits less, and a route that
    # is not for the viewer.
    for status in dict.fromkeys((*errors, 403, 404)):
        if status == 304:
            replies[status] = {"description": _MEANINGS[status]}
        else:
            replies[status] = described(_MEANINGS[status], Problem)
    return replies
