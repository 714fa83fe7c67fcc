"""The receiver: the one way of a batch into the store, over HTTP and within one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jobsight.errors import JobsightError
from jobsight.transport import wire

if TYPE_CHECKING:
    from jobsight.model import Batch
    from jobsight.store.store import Store

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


_STORED: Final = Receipt("stored")
_DUPLICATE: Final = Receipt("duplicate")


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
        (outcome,) = self.accept_all([(data, cluster)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def accept_all(self, arrived: Sequence[tuple[bytes, str | None]]) -> list[Receipt | Exception]:
        """The same for several, which share the wait for the disk; each has its own outcome."""
        outcomes: list[Receipt | Exception] = [_DUPLICATE] * len(arrived)
        batches: dict[int, Batch] = {}
        for place, (data, cluster) in enumerate(arrived):
            try:
                batches[place] = _unpacked(data, cluster)
            except Exception as error:
                outcomes[place] = error
        written = self._store.write_all(list(batches.values()))
        for place, outcome in zip(batches, written, strict=True):
            if isinstance(outcome, Exception):
                outcomes[place] = outcome
            elif outcome:
                outcomes[place] = self._copied(arrived[place][0])
        return outcomes

    def _copied(self, data: bytes) -> Receipt | Exception:
        """Give a copy away; where that fails, only its own sender hears of it."""
        if self._copy is not None:
            try:
                self._copy(data)
            except Exception as error:
                return error
        return _STORED


def _unpacked(data: bytes, cluster: str | None) -> Batch:
    batch = wire.decode(data)
    if cluster is not None and batch.cluster != cluster:
        raise ForeignCluster(
            f"the token is one of cluster {cluster!r}, the batch is one of cluster "
            f"{batch.cluster[:255]!r}: nothing was stored"
        )
    _check_counts(batch)
    return batch


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
            from jobsight.store.write.validation import BatchError

            raise BatchError(f"the batch has {count:,} {what}; {MOST[what]:,} are allowed")
