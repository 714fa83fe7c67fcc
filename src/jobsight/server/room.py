"""Room for batches: what is read, unpacked and written at once is bounded, the rest waits."""

from __future__ import annotations

import asyncio

import zstandard

from jobsight.errors import StoreError
from jobsight.transport.wire import MAGIC, MAX_HEADER, MAX_UNPACKED

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


class Room:
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
