"""How much each agent has sent of late, in a table that does not grow beyond its bound.

Room for batches: what is read, unpacked and written at once is bounded, the rest waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

import zstandard

from jobsight.errors import StoreError
from jobsight.transport.wire import MAGIC, MAX_HEADER, MAX_UNPACKED

#: Seconds whose share may come at once: a spool that has waited empties in bursts.
BURST = 10.0
#: Agents that are remembered; of the one that was silent longest nothing has to be.
AGENTS = 16384


class _Agent:
    __slots__ = ("requests", "seen", "size")

    def __init__(self, requests: float, size: float, seen: float) -> None:
        #: What it may still send now. Sizes are known afterwards, so that may be below zero.
        self.requests = requests
        self.size = size
        self.seen = seen


class RateLimiter:
    """Requests and bytes a second of each agent; zero sets no bound."""

    def __init__(
        self, requests: float, size: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests = requests
        self._size = size
        self._clock = clock
        self._agents: OrderedDict[Hashable, _Agent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._agents)

    def admit(self, name: Hashable) -> float:
        """Take one request of an agent; seconds after which it may come again where it may not."""
        agent = self._agent(name)
        waits = [0.0]
        if self._requests and agent.requests < 1:
            waits.append((1 - agent.requests) / self._requests)
        if self._size and agent.size < 0:
            waits.append(-agent.size / self._size)
        if max(waits) == 0:
            agent.requests -= 1
        return max(waits)

    def charge(self, name: Hashable, size: int) -> None:
        """Note how much a request brought."""
        self._agent(name).size -= size

    def _agent(self, name: Hashable) -> _Agent:
        now = self._clock()
        most_requests, most_bytes = max(1.0, self._requests * BURST), self._size * BURST
        agent = self._agents.get(name)
        if agent is None:
            agent = self._agents[name] = _Agent(most_requests, most_bytes, now)
            if len(self._agents) > AGENTS:
                self._agents.popitem(last=False)
        else:
            self._agents.move_to_end(name)
            elapsed = now - agent.seen
            agent.requests = min(most_requests, agent.requests + elapsed * self._requests)
            agent.size = min(most_bytes, agent.size + elapsed * self._size)
            agent.seen = now
        return agent


#: Batches that are in a thread at once: as many as one commit takes.
AT_ONCE = 32
#: A record of the header in memory against its bytes on the wire, at worst.
_GROWTH = 20
#: The head of a frame, which holds its unpacked size, is shorter than this.
_FRAME_HEAD = 32


class Busy(StoreError):
    """There is no room for a batch now."""


def weight(data: bytes) -> int:
    """Bytes of memory that a batch may take while it is unpacked and written, at worst.

    What the frame says of its own size is believed: more than that is never unpacked.
    """
    try:
        announced = zstandard.frame_content_size(data[len(MAGIC) : len(MAGIC) + _FRAME_HEAD])
    except zstandard.ZstdError:
        announced = 0
    # Below zero it is not announced, and then nothing is unpacked either.
    size = min(max(0, announced), MAX_UNPACKED)
    return len(data) + size + _GROWTH * min(size, MAX_HEADER)


class MemoryBudget:
    """So many batches and bytes at once; one alone has room whatever its size."""

    def __init__(self, memory: int, patience: float) -> None:
        self._memory = memory
        self._patience = patience
        self._held = 0
        self._batches = 0
        # In the order in which they came; a set has none.
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def enter(self, size: int) -> None:
        """Wait for room; who got it must leave in the end."""
        if self._fits(size):
            self._take(size)
            return
        try:
            async with asyncio.timeout(self._patience):
                await self._wait(size)
        except TimeoutError:
            raise Busy("the server has as many batches at hand as it can hold; try later") from None

    def leave(self, size: int) -> None:
        """Give the room to those who wait."""
        self._held -= size
        self._batches -= 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _fits(self, size: int) -> bool:
        if not self._batches:
            return True
        return self._batches < AT_ONCE and self._held + size <= self._memory

    def _take(self, size: int) -> None:
        self._held += size
        self._batches += 1

    async def _wait(self, size: int) -> None:
        while not self._fits(size):
            woken = asyncio.get_running_loop().create_future()
            self._waiting[woken] = None
            try:
                await woken
            finally:
                del self._waiting[woken]
        self._take(size)
