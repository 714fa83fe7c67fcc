"""API routes of GPU models: what their vendors specify, and how many the nodes have."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path
from starlette.responses import Response

from jobsight.reports.gpu_models import GpuModel, find_model, gpu_models
from jobsight.scheduler.records import NodeInfo
from jobsight.server.api.clusters import gpus_of
from jobsight.server.api.common import check_parameters, json_reply, replies
from jobsight.store.snapshot import read_snapshot, snapshot_clusters
from jobsight.store.store import Store


class GpuReply(GpuModel, kw_only=True, frozen=True):
    """A model, and how many of it the nodes of all clusters have."""

    count: int
    allocated: int
    #: The types in Slurm that mean this model.
    types: list[str]


class GpuList(msgspec.Struct):
    """The models that are known, by name, and the types of nodes that mean none of them."""

    gpus: list[GpuReply]
    unknown_types: dict[str, int]


REPLIES = (GpuList, GpuReply)

GpuPath = Annotated[
    str,
    Path(max_length=200, description="The name of a model, or a type in Slurm or of a driver"),
]


def create_router(store: Store) -> APIRouter:
    """The routes under /api/v1."""
    router = APIRouter(
        prefix="/api/v1", dependencies=[Depends(check_parameters)], tags=["clusters"]
    )

    @router.get("/gpus", responses=replies(GpuList, 422, 503))
    def gpus() -> Response:
        """List the models of GPUs that are known, with those that the nodes have."""
        total, allocated, types = _count_gpus(store)
        rows = [
            _gpu_reply(model, total, allocated, types)
            for model in sorted(gpu_models(), key=lambda model: (model.vendor, model.name))
        ]
        unknown = {name: count for name, count in total.items() if find_model(name) is None}
        return json_reply(GpuList(rows, unknown))

    @router.get("/gpus/{gpu}", responses=replies(GpuReply, 404, 422, 503))
    def gpu(gpu: GpuPath) -> Response:
        """One model of GPUs."""
        model = next((each for each in gpu_models() if each.name == gpu), find_model(gpu))
        if model is None:
            raise HTTPException(404, f"the model of GPU {gpu[:100]!r} is not known")
        return json_reply(_gpu_reply(model, *_count_gpus(store)))

    return router


def _count_gpus(store: Store) -> tuple[Counter[str], Counter[str], list[str]]:
    """All and allocated GPUs by their type in Slurm, and the types."""
    total: Counter[str] = Counter()
    allocated: Counter[str] = Counter()
    for cluster in snapshot_clusters(store.database):
        for node in read_snapshot(store.database, cluster, "node", NodeInfo):
            for row in gpus_of(node):
                total[row.type] += row.count
                allocated[row.type] += row.allocated
    return total, allocated, sorted(total)


def _gpu_reply(
    model: GpuModel, total: Counter[str], allocated: Counter[str], types: list[str]
) -> GpuReply:
    own = [name for name in types if find_model(name) == model]
    return GpuReply(
        **msgspec.structs.asdict(model),
        count=sum(total[name] for name in own),
        allocated=sum(allocated[name] for name in own),
        types=own,
    )
