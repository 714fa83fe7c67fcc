"""How much each agent has sent of late, in a table that does not grow beyond its bound."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

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


class Rates:
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
