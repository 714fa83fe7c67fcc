"""The receiver: the one way of a batch into the store, over HTTP and within one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jobsight import wire
from jobsight.errors import JobsightError

if TYPE_CHECKING:
    from jobsight.model import Batch
    from jobsight.store import Store

#: What one batch may speak of. Each costs statements while other writers wait; a node is far below.
MOST: Final = {
    "parts": 4096,
    "jobs": 16_384,
    "metrics": 262_144,
    "executables": 131_072,
    "steps": 65_536,
}


class Receipt(msgspec.Struct, frozen=True):
    """What became of a batch. Both answers mean: it is stored, do not send it again."""

    status: Literal["stored", "duplicate"]


class ForeignCluster(JobsightError):
    """A batch of one cluster came with the token of another."""


class Receiver:
    """Unpacks batches and writes each to the store once, however often it comes."""

    def __init__(self, store: Store, copy: Callable[[bytes], None] | None = None) -> None:
        """``copy`` gets every batch that was stored for the first time, as it came."""
        self._store = store
        self._copy = copy

    def accept(self, data: bytes, cluster: str | None = None) -> Receipt:
        """Store one batch, of one cluster only where one is given.

        Raises WireError, BatchError, ForeignCluster or StoreError with the reason.
        """
        batch = wire.decode(data)
        if cluster is not None and batch.cluster != cluster:
            raise ForeignCluster(
                f"the token is one of cluster {cluster!r}, the batch is one of cluster "
                f"{batch.cluster[:255]!r}: nothing was stored"
            )
        _check_counts(batch)
        if not self._store.write(batch):
            return Receipt("duplicate")
        if self._copy is not None:
            self._copy(data)
        return Receipt("stored")


def _check_counts(batch: Batch) -> None:
    counts = {
        "parts": len(batch.parts),
        "jobs": len(batch.jobs),
        "metrics": sum(len(part.series.columns) for part in batch.parts if part.series),
        "executables": sum(len(part.executables) for part in batch.parts),
        "steps": sum(len(part.steps) for part in batch.parts),
    }
    for what, count in counts.items():
        if count > MOST[what]:
            from jobsight.store import BatchError

            raise BatchError(f"the batch has {count:,} {what}; {MOST[what]:,} are allowed")
