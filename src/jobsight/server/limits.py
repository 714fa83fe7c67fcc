"""Limits on ingest: the rate of each agent, and the memory of the batches in process.

:class:`RateLimiter` is a token bucket per agent. :class:`MemoryBudget` admits batches to the write
queue; a batch that finds no free capacity waits for a while and is then refused with 503.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import zstandard

from jobsight.errors import StoreError
from jobsight.transport.wire import MAGIC, MAX_HEADER, MAX_UNPACKED

#: Capacity of a bucket in seconds: a spool that has filled up is emptied in bursts.
BURST = 10.0
#: Buckets in memory; the least recently used one is discarded, by then it is full again.
MAX_AGENTS = 16384
#: Batches admitted at once: as many as share one commit.
MAX_BATCHES = 32

#: Ratio of a decoded header to its encoded size, at worst.
_HEADER_GROWTH = 20
#: The zstd frame header, which contains the uncompressed size, is shorter than this.
_FRAME_HEADER = 32


class _Bucket:
    __slots__ = ("bytes", "requests", "updated")

    def __init__(self, requests: float, size: float, updated: float) -> None:
        #: What the agent may send now. A size is known afterwards, so ``bytes`` may be negative.
        self.requests = requests
        self.bytes = size
        self.updated = updated


class RateLimiter:
    """Limits the requests and bytes per second of each agent; 0 means no limit."""

    def __init__(
        self, requests: float, size: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = requests
        self._bytes = size
        self._clock = clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def admit(self, agent: Hashable) -> float:
        """Count one request of an agent; the seconds to wait if it is over the limit, else 0."""
        bucket = self._refilled(agent)
        waits = [0.0]
        if self._requests and bucket.requests < 1:
            waits.append((1 - bucket.requests) / self._requests)
        if self._bytes and bucket.bytes < 0:
            waits.append(-bucket.bytes / self._bytes)
        if max(waits) == 0:
            bucket.requests -= 1
        return max(waits)

    def charge(self, agent: Hashable, size: int) -> None:
        """Count the bytes of an admitted request."""
        self._refilled(agent).bytes -= size

    def _refilled(self, agent: Hashable) -> _Bucket:
        now = self._clock()
        max_requests, max_bytes = max(1.0, self._requests * BURST), self._bytes * BURST
        bucket = self._buckets.get(agent)
        if bucket is None:
            bucket = self._buckets[agent] = _Bucket(max_requests, max_bytes, now)
            if len(self._buckets) > MAX_AGENTS:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(agent)
            elapsed = now - bucket.updated
            bucket.requests = min(max_requests, bucket.requests + elapsed * self._requests)
            bucket.bytes = min(max_bytes, bucket.bytes + elapsed * self._bytes)
            bucket.updated = now
        return bucket


class Busy(StoreError):
    """The server cannot process a batch now."""


def estimate_memory(data: bytes) -> int:
    """The most memory in bytes that an encoded batch may need while it is decoded and written.

    The size in the frame header can be trusted: decoding never exceeds it.
    """
    try:
        announced = zstandard.frame_content_size(data[len(MAGIC) : len(MAGIC) + _FRAME_HEADER])
    except zstandard.ZstdError:
        announced = 0
    # A negative size means that it is not announced; such a frame is not decompressed.
    size = min(max(0, announced), MAX_UNPACKED)
    return len(data) + size + _HEADER_GROWTH * min(size, MAX_HEADER)


class MemoryBudget:
    """Limits concurrent batches and their estimated memory; a single batch is always admitted."""

    def __init__(self, memory: int, timeout: float) -> None:
        self._memory = memory
        self._timeout = timeout
        self._used = 0
        self._batches = 0
        # A dict keeps the order of arrival; a set does not.
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def acquire(self, size: int) -> None:
        """Wait until ``size`` bytes are free; the caller must release them."""
        if not self._fits(size):
            try:
                async with asyncio.timeout(self._timeout):
                    while not self._fits(size):
                        await self._released()
            except TimeoutError:
                raise Busy("the server has reached its limit of batches; try later") from None
        self._used += size
        self._batches += 1

    def release(self, size: int) -> None:
        self._used -= size
        self._batches -= 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _fits(self, size: int) -> bool:
        if not self._batches:
            return True
        return self._batches < MAX_BATCHES and self._used + size <= self._memory

    async def _released(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            del self._waiting[future]
