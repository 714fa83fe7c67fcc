"""Where runs are kept: tables, migrations, the codec of the series, writing and reading."""

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
