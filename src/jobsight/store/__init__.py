"""Where runs are kept: tables, migrations, the codec of the series, writing and reading.

The names below are imported when somebody asks for them: who only writes needs none of what reads.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobsight.store.checks import BatchError
    from jobsight.store.frames import ChunkError
    from jobsight.store.records import (
        MetricSummary,
        RunNotFound,
        StoredExecutable,
        StoredNode,
        StoredRun,
        StoredSeries,
        StoredStep,
        StoreInfo,
    )
    from jobsight.store.store import Store

__all__ = [
    "BatchError",
    "ChunkError",
    "MetricSummary",
    "RunNotFound",
    "Store",
    "StoreInfo",
    "StoredExecutable",
    "StoredNode",
    "StoredRun",
    "StoredSeries",
    "StoredStep",
]

_ELSEWHERE = {"BatchError": "checks", "ChunkError": "frames", "Store": "store"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_ELSEWHERE.get(name, 'records')}")
    return getattr(module, name)
