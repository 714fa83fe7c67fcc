"""The receiver: the one way of a batch into the store, over HTTP and within one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from jobsight import wire

if TYPE_CHECKING:
    from jobsight.store import Store


class Receipt(msgspec.Struct, frozen=True):
    """What became of a batch. Both answers mean: it is stored, do not send it again."""

    status: Literal["stored", "duplicate"]


class Receiver:
    """Unpacks batches and writes each to the store once, however often it comes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def accept(self, data: bytes) -> Receipt:
        """Store one batch; raises WireError, BatchError or StoreError with the reason."""
        return Receipt("stored" if self._store.write(wire.decode(data)) else "duplicate")
