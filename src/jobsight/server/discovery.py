"""Which agents there are, as Prometheus's HTTP service discovery reads it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from sqlalchemy import select
from starlette.responses import Response

from jobsight.model import SECOND
from jobsight.server.api import Text, check_parameters, replies
from jobsight.store.schema.tables import agents
from jobsight.store.store import Store

#: An agent without jobs sends nothing, so that silence is no sign of its end.
_SILENT_DAYS = 7.0


class TargetGroup(msgspec.Struct):
    """One agent: where it answers /metrics, and what may become labels."""

    targets: list[str]
    labels: dict[str, str]


def create_router(store: Store, clock: Callable[[], int] = time.time_ns) -> APIRouter:
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_parameters)])

    @router.get("/discovery", tags=["agents"], responses=_replies())
    def discovery(
        cluster: Text = None,
        port: Annotated[int, Query(ge=1, le=65535, description="Where agents answer")] = 9306,
        days: Annotated[
            float,
            Query(ge=0.001, le=3660, description="Agents that were silent longer are left out"),
        ] = _SILENT_DAYS,
    ) -> Response:
        """List the agents for Prometheus's `http_sd_configs`."""
        since = clock() - round(days * 86400) * SECOND
        found = target_groups(store, cluster=cluster, port=port, since=since)
        return Response(msgspec.json.encode(found), media_type="application/json")

    return router


def target_groups(store: Store, *, cluster: str | None, port: int, since: int) -> list[TargetGroup]:
    """The agents that were heard since then, by cluster and node."""
    query = select(agents.c.cluster, agents.c.node, agents.c.version).where(
        agents.c.received >= since
    )
    if cluster is not None:
        query = query.where(agents.c.cluster == cluster)
    with store.database.read() as connection:
        rows = list(connection.execute(query.order_by(agents.c.cluster, agents.c.node)))
    return [
        TargetGroup(
            [f"[{node}]:{port}" if ":" in node else f"{node}:{port}"],
            {
                "__meta_jobsight_cluster": of,
                "__meta_jobsight_node": node,
                "__meta_jobsight_version": version,
            },
        )
        for of, node, version in rows
    ]


def _replies() -> dict[int | str, dict[str, Any]]:
    made = replies(TargetGroup, 422, 503)
    # Prometheus wants a bare list.
    content = made[200]["content"]["application/json"]
    content["schema"] = {"type": "array", "items": content["schema"]}
    return made
