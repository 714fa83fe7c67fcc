"""The page of operations, for staff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.access.policy import Site, require
from jobsight.store.dead_letters import list_dead_letters
from jobsight.store.read.operations import (
    count_agents,
    lost_batches,
    silent_agents,
    store_size,
)
from jobsight.store.store import Store
from jobsight.store.tokens import Tokens
from jobsight.web.pages.interval import DAY
from jobsight.web.render import page

#: An agent without jobs sends nothing; one that is silent for longer is called late.
LATE: Final = DAY
MAX_LETTERS: Final = 50

#: The health of the server: :class:`jobsight.server.api.health.Health`, of a higher layer.
ReadHealth = Callable[[], Any]


def add_routes(
    router: APIRouter, store: Store, clock: Callable[[], int], health: ReadHealth
) -> None:
    """Add the route of operations."""

    @router.get("/operations")
    def operations(request: Request) -> HTMLResponse:
        require(request, Site())
        now = clock()
        tokens = Tokens(store.database).list()
        return page(
            request,
            "operations.html",
            health=health(),
            agents=count_agents(store.database, now - LATE),
            silent=silent_agents(store.database),
            late=now - LATE,
            lost=lost_batches(store.database),
            size=store_size(store.database),
            letters=list_dead_letters(store.database, MAX_LETTERS),
            tokens=[(token, token.refusal(now)) for token in tokens],
            now=now,
        )
