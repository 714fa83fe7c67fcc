"""The receiver: decodes batches and stores each of them exactly once.

:class:`Receiver` is used by the ingest route and, through :class:`EmbeddedTarget`, by agents that
write to a store in their own process. The module is part of the agent's memory there, so it imports
neither the store nor an HTTP framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from jobsight.errors import JobsightError, StoreError
from jobsight.model import NODE_SOURCES
from jobsight.transport import wire
from jobsight.transport.delivery import Answer

if TYPE_CHECKING:
    from jobsight.model import Batch
    from jobsight.store.store import Store

#: Most items of each kind in one batch. Each item costs statements while other writers wait; a
#: node's batches are far below these limits.
MAX_ITEMS: Final = {
    "parts": 4096,
    "jobs": 16_384,
    "metrics": 262_144,
    "executables": 131_072,
    "steps": 65_536,
    "gpus": 65_536,
}


#: Sentences about values that were left out in one receipt.
_MAX_SENTENCES: Final = 8


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The acknowledgement of a batch. Both statuses mean: stored, do not send it again."""

    status: Literal["stored", "duplicate"]
    #: How many values were out of bounds and are not stored, and the first of them.
    left_out: int = 0
    reasons: tuple[str, ...] = ()


_STORED: Final = Receipt("stored")
_DUPLICATE: Final = Receipt("duplicate")


class ForeignCluster(JobsightError):
    """A batch was sent with the token of another cluster."""


class Receiver:
    """Decodes batches and writes each to the store once, however often it is sent."""

    def __init__(self, store: Store, copy: Callable[[bytes], None] | None = None) -> None:
        """``copy`` receives every newly stored batch in its encoded form."""
        self._store = store
        self._copy = copy

    def accept(self, data: bytes, cluster: str | None = None) -> Receipt:
        """Store one batch; ``cluster`` is the only cluster that it may belong to.

        Raises WireError, BatchError, ForeignCluster or StoreError.
        """
        (outcome,) = self.accept_all([(data, cluster)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def accept_all(
        self,
        arrived: Sequence[tuple[bytes, str | None]],
        names: Sequence[frozenset[str] | None] | None = None,
    ) -> list[Receipt | Exception]:
        """Store several batches in one commit; the outcomes are those of :meth:`accept`.

        ``names`` has for each the names in the certificate of its sender, None without one.
        """
        outcomes: list[Receipt | Exception] = [_DUPLICATE] * len(arrived)
        batches: dict[int, Batch] = {}
        foreign: dict[int, str] = {}
        for index, (data, cluster) in enumerate(arrived):
            try:
                batches[index] = batch = _decode(data, cluster)
            except Exception as error:
                outcomes[index] = error
                continue
            own = names[index] if names is not None else None
            if batch.node_series is not None and not _is_named(batch.node, own):
                batch.node_series = None
                foreign[index] = (
                    f"series of node {batch.node[:255]!r}: the certificate of the sender is for "
                    f"{', '.join(sorted(own or ()))[:255]!r}"
                )
        written = self._store.write_all(list(batches.values()))
        for index, outcome in zip(batches, written, strict=True):
            if isinstance(outcome, Exception):
                outcomes[index] = outcome
            elif outcome.new:
                left_out = outcome.left_out
                if index in foreign:
                    left_out = (*left_out, foreign[index])
                outcomes[index] = self._forward(arrived[index][0], left_out)
        return outcomes

    def _forward(self, data: bytes, left_out: Sequence[str]) -> Receipt | Exception:
        """Pass a copy on; a failure is reported to the sender of this batch only."""
        if self._copy is not None:
            try:
                self._copy(data)
            except Exception as error:
                return error
        if not left_out:
            return _STORED
        return Receipt("stored", len(left_out), tuple(left_out[:_MAX_SENTENCES]))


class EmbeddedTarget:
    """Delivers batches to a receiver in the same process."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def send(self, data: bytes) -> Answer:
        try:
            receipt = self._receiver.accept(data)
        except StoreError as error:
            return Answer(stored=False, reason=str(error))
        except (wire.WireError, JobsightError) as error:
            return Answer(stored=False, refused=True, reason=str(error))
        return Answer(stored=True, left_out=receipt.left_out, reason="; ".join(receipt.reasons))


def _is_named(node: str, names: frozenset[str] | None) -> bool:
    """Whether a certificate with these names may be that of the node, which may be called by the
    first part of the name of its host. Without a certificate nothing says so."""
    return names is None or node in names or node in {name.partition(".")[0] for name in names}


def _decode(data: bytes, cluster: str | None) -> Batch:
    batch = wire.decode(data)
    if cluster is not None and batch.cluster != cluster:
        raise ForeignCluster(
            f"the token belongs to cluster {cluster!r}, the batch to cluster "
            f"{batch.cluster[:255]!r}: nothing was stored"
        )
    for info in batch.jobs:
        if info.source not in NODE_SOURCES:
            from jobsight.store.write.validation import BatchError

            raise BatchError(
                f"the record of job {info.job_id} has the source {info.source[:255]!r}; a node "
                f"reports as {', '.join(sorted(NODE_SOURCES))}"
            )
    counts = dict.fromkeys(MAX_ITEMS, 0) | {"parts": len(batch.parts), "jobs": len(batch.jobs)}
    for part in batch.parts:
        if part.series:
            counts["metrics"] += len(part.series.columns)
        counts["executables"] += len(part.executables)
        counts["steps"] += len(part.steps)
        counts["gpus"] += len(part.gpus)
    for kind, count in counts.items():
        if count > MAX_ITEMS[kind]:
            from jobsight.store.write.validation import BatchError

            raise BatchError(f"the batch has {count:,} {kind}; at most {MAX_ITEMS[kind]:,} allowed")
    return batch
