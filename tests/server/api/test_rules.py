"""Every route of the API has a rule, and the rules of the access control let users in."""

import re
from collections.abc import Iterable, Iterator

import pytest
from starlette.routing import Route

from jobsight.access.rules import RULES, Rule
from jobsight.config.settings import ServerSettings
from jobsight.server.app import create_app
from jobsight.store.store import Store
from tests.server.conftest import TOKEN


def _paths(routes: Iterable[object]) -> Iterator[str]:
    for route in routes:
        if isinstance(route, Route):
            yield route.path
        # FastAPI keeps a router that is included as a whole.
        elif (included := getattr(route, "original_router", None)) is not None:
            yield from _paths(included.routes)


def test_every_route_of_the_api_has_a_rule(store: Store) -> None:
    settings = ServerSettings(clockwork_routes=True, petricore_routes=True)
    app = create_app(store, TOKEN, settings=settings)
    paths = {path for path in _paths(app.routes) if path.startswith("/api/")}
    assert len(paths) > 50
    assert paths <= RULES.keys()


@pytest.mark.parametrize(
    "path",
    [
        *("/api/v1/batches", "/api/v1/discovery", "/api/v1/health"),
        *("/api/v1/findings/effect", "/api/v1/software"),
    ],
)
def test_what_is_about_the_site_is_not_for_users(path: str) -> None:
    assert RULES[path] in (Rule.AGENTS, Rule.STAFF, Rule.OVERSIGHT)
    assert re.fullmatch("[a-z0-9/]+", path)
