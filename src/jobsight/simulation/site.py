"""The clusters, partitions, nodes, users and accounts of the made-up site."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from jobsight.model import SECOND
from jobsight.scheduler.records import NodeInfo, PartitionInfo

GIB: Final = 2**30
_HOUR: Final = 3600 * SECOND


class NodeKind(NamedTuple):
    """Nodes of one kind, which are a partition."""

    cluster: str
    partition: str
    prefix: str
    size: int
    cores: int
    memory: int
    gpus: int = 0
    #: As Slurm names it, and as the driver does.
    gpu_type: str = ""
    gpu_name: str = ""
    gpu_memory: int = 0

    def node_names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{number:03d}" for number in range(1, self.size + 1))

    @property
    def memory_per_core(self) -> int:
        return self.memory // self.cores


NODE_KINDS: Final = (
    NodeKind("north", "cpu", "nc", 180, 64, 256 * GIB),
    NodeKind("north", "bigmem", "nm", 8, 64, 2048 * GIB),
    NodeKind("north", "gpu", "ng", 32, 64, 512 * GIB, 4, "a100", "NVIDIA A100-SXM4-80GB", 80 * GIB),
    NodeKind("south", "main", "sc", 120, 128, 512 * GIB),
    NodeKind("south", "gpu", "sg", 12, 96, 768 * GIB, 8, "h200", "NVIDIA H200", 141 * GIB),
)
CLUSTERS: Final = tuple(dict.fromkeys(kind.cluster for kind in NODE_KINDS))
#: The longest time that a job may request.
MAX_TIME: Final = 7 * 24 * 3600

_FIRST: Final = (
    *("anna", "bengt", "carla", "dmitri", "elif", "farid", "greta", "hana", "ivan", "jonas"),
    *("kaisa", "lars", "mei", "nadia", "olof", "priya", "quentin", "rosa", "sven", "tomas"),
    *("ulla", "viktor", "wanda", "xin", "yusuf", "zoe"),
)
_FIELDS: Final = (
    *("chem", "bio", "phys", "astro", "climate", "cfd", "geo", "neuro", "ling", "mat", "ml"),
    *("stat", "econ", "med"),
)


class User(NamedTuple):
    """A person with an account to charge."""

    name: str
    uid: int
    account: str


def make_users(count: int, random: np.random.Generator) -> list[User]:
    """Users by their name; each account has several."""
    accounts = max(2, count // 4)
    return [
        User(
            name=f"{_FIRST[number % len(_FIRST)]}{number // len(_FIRST) or ''}",
            uid=20_000 + number,
            account=_account(int(random.integers(accounts))),
        )
        for number in range(count)
    ]


def _account(number: int) -> str:
    return f"{_FIELDS[number % len(_FIELDS)]}{2024 + number // len(_FIELDS)}"


def node_records(cluster: str) -> list[NodeInfo]:
    """The nodes of a cluster as its scheduler reports them."""
    return [
        NodeInfo(
            cluster=cluster,
            name=name,
            state="IDLE",
            address=name,
            host=name,
            architecture="x86_64",
            system="Linux",
            boards=1,
            sockets=2,
            cores=kind.cores // 2,
            threads=1,
            cpus=kind.cores,
            cpus_allocated=0,
            cpus_idle=kind.cores,
            memory=kind.memory,
            memory_allocated=0,
            partitions=(kind.partition,),
            gres={f"gpu:{kind.gpu_type}": kind.gpus} if kind.gpus else {},
            tres={"cpu": kind.cores, "mem": kind.memory, **_gpus(kind, kind.gpus)},
        )
        for kind in NODE_KINDS
        if kind.cluster == cluster
        for name in kind.node_names()
    ]


def partition_records(cluster: str) -> list[PartitionInfo]:
    """The partitions of a cluster as its scheduler reports them."""
    return [
        PartitionInfo(
            cluster=cluster,
            name=kind.partition,
            state="UP",
            nodes=kind.node_names(),
            node_count=kind.size,
            cpus=kind.size * kind.cores,
            time_limit=MAX_TIME * SECOND,
            default_time=_HOUR,
            tres={
                "cpu": kind.size * kind.cores,
                "mem": kind.size * kind.memory,
                "node": kind.size,
                **_gpus(kind, kind.size * kind.gpus),
            },
        )
        for kind in NODE_KINDS
        if kind.cluster == cluster
    ]


def _gpus(kind: NodeKind, count: int) -> dict[str, int]:
    return {"gres/gpu": count, f"gres/gpu:{kind.gpu_type}": count} if count else {}
