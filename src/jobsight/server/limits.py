"""Limits on ingest: the rate of each agent, and the memory of the batches in process.

:class:`RateLimiter` is a token bucket per agent. :class:`BodyBudget` shares the memory for bodies
that are being received among tokens and addresses. :class:`MemoryBudget` admits batches to the
write queue; a batch that finds no free capacity waits for a while and is then refused with 503.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeAlias

import zstandard

from jobsight.errors import StoreError
from jobsight.transport.wire import MAGIC, MAX_HEADER, MAX_UNPACKED

#: The token that a batch is sent with (None for the server's own), and the address of the agent.
Agent: TypeAlias = tuple[int | None, str]

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


class BodyBudget:
    """Shares a number of bytes for bodies in memory among tokens, and among their addresses.

    Nobody is refused below the share: when all bytes are taken, only tokens with more than an
    equal share are, and of these only addresses with more than an equal share of their token. A
    token never holds more than two shares, so all together hold at most 2 x limit x (1 + 1/2 + 1/3
    ...) bytes, with one term for each token.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._tokens: dict[int | None, int] = {}
        self._addresses: dict[int | None, dict[str, int]] = {}

    @property
    def used(self) -> int:
        return self._used

    def admits(self, agent: Agent) -> bool:
        """Whether more bytes of this agent may be read."""
        if self._used <= self._limit:
            return True
        token, address = agent
        held = self._tokens.get(token, 0)
        share = self._limit / max(1, len(self._tokens))
        if held <= share:
            return True
        addresses = self._addresses[token]
        return held <= 2 * share and addresses.get(address, 0) <= share / len(addresses)

    def add(self, agent: Agent, size: int) -> None:
        if not size:
            return
        token, address = agent
        self._used += size
        self._tokens[token] = self._tokens.get(token, 0) + size
        addresses = self._addresses.setdefault(token, {})
        addresses[address] = addresses.get(address, 0) + size

    def remove(self, agent: Agent, size: int) -> None:
        """Release bytes that were added."""
        if not size:
            return
        token, address = agent
        self._used -= size
        self._tokens[token] -= size
        addresses = self._addresses[token]
        addresses[address] -= size
        if not addresses[address]:
            del addresses[address]
        if not addresses:
            del self._tokens[token], self._addresses[token]


def unpacked_size(data: bytes) -> int:
    """The size of an encoded batch after decompression, as its frame header announces it.

    The announced size can be trusted: decompression never exceeds it.
    """
    try:
        announced = zstandard.frame_content_size(data[len(MAGIC) : len(MAGIC) + _FRAME_HEADER])
    except zstandard.ZstdError:
        announced = 0
    # A negative size means that it is not announced; such a frame is not decompressed.
    return min(max(0, announced), MAX_UNPACKED)


def estimate_memory(data: bytes) -> int:
    """The most memory in bytes that an encoded batch may need while it is decoded and written."""
    size = unpacked_size(data)
    return len(data) + size + _HEADER_GROWTH * min(size, MAX_HEADER)


class MemoryBudget:
    """Limits concurrent batches and their estimated memory; a single batch is always admitted.

    A token with less than half of an equal share is admitted beyond the limits, so that the batches
    of one cluster do not keep out those of another.
    """

    def __init__(self, memory: int, timeout: float) -> None:
        self._memory = memory
        self._timeout = timeout
        self._used = 0
        self._batches = 0
        #: By token: bytes and batches.
        self._tokens: dict[int | None, tuple[int, int]] = {}
        # A dict keeps the order of arrival; a set does not.
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def acquire(self, size: int, token: int | None = None) -> None:
        """Wait until ``size`` bytes are free; the caller must release them."""
        if not self._fits(size, token):
            try:
                async with asyncio.timeout(self._timeout):
                    while not self._fits(size, token):
                        await self._released()
            except TimeoutError:
                raise Busy("the server has reached its limit of batches; try later") from None
        self._count(size, 1, token)

    def release(self, size: int, token: int | None = None) -> None:
        self._count(-size, -1, token)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def _count(self, size: int, batches: int, token: int | None) -> None:
        self._used += size
        self._batches += batches
        held = self._tokens.get(token, (0, 0))
        self._tokens[token] = (held[0] + size, held[1] + batches)
        if not self._tokens[token][1]:
            del self._tokens[token]

    def _fits(self, size: int, token: int | None) -> bool:
        if not self._batches:
            return True
        if self._batches < MAX_BATCHES and self._used + size <= self._memory:
            return True
        held, batches = self._tokens.get(token, (0, 0))
        shares = 2 * len(self._tokens.keys() | {token})
        # With one token there is nobody to share with.
        return (
            shares > 2
            and batches < MAX_BATCHES // shares
            and (held + size <= self._memory // shares)
        )

    async def _released(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            del self._waiting[future]
