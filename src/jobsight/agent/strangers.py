"""What processes of no job have done in the last moments.

A job's first processes are at work before its folders can be looked into. When one of them is
found there, its life so far and that of its children is told from here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from jobsight.agent.netlink import EXIT, FORK, ExitRecord, ProcessEvent

#: How long a process may be at work before the agent finds it in a job's folder.
MEMORY: Final = 2_000_000_000
_LIMIT: Final = 20_000

#: Running number, event, and the record that came with an exit.
Remembered = tuple[int, ProcessEvent, ExitRecord | None]


class Strangers:
    """The latest events of processes that nobody follows, by process."""

    def __init__(self, memory: int = MEMORY, limit: int = _LIMIT) -> None:
        self._memory = memory
        self._limit = limit
        self._number = 0
        self._lives: dict[int, deque[Remembered]] = {}
        #: In order of time, for forgetting.
        self._order: deque[tuple[int, int, int]] = deque()
        self._births: dict[int, ProcessEvent] = {}

    def __len__(self) -> int:
        return len(self._order)

    def note(self, event: ProcessEvent, record: ExitRecord | None = None) -> None:
        self._number += 1
        self._lives.setdefault(event.tgid, deque()).append((self._number, event, record))
        self._order.append((event.time, self._number, event.tgid))
        if event.what == FORK:
            self._births[event.value] = event
        self._forget(event.time - self._memory)

    def _forget(self, before: int) -> None:
        order = self._order
        while order and (order[0][0] < before or len(order) > self._limit):
            _, number, tgid = order.popleft()
            life = self._lives.get(tgid)
            if life is None or life[0][0] != number:
                # It was taken out meanwhile.
                continue
            event = life.popleft()[1]
            if event.what == FORK and self._births.get(event.value) is event:
                del self._births[event.value]
            if not life:
                del self._lives[tgid]

    def birth(self, pid: int) -> ProcessEvent | None:
        """The fork that made a process, where it is remembered."""
        return self._births.get(pid)

    def take(self, pid: int, *, ended: bool = False) -> list[Remembered]:
        """What a process and its descendants did, in the kernel's order; told only once.

        The process is alive unless ``ended``, so an end of that number was its predecessor's.
        """
        taken: list[Remembered] = []
        birth = self._births.pop(pid, None)
        for item in self._lives.pop(pid, ()):
            event = item[1]
            if birth is not None and event.time < birth.time:
                continue
            if event.what == EXIT and event.pid == pid and not ended and birth is None:
                taken.clear()
                continue
            taken.append(item)
            if event.what == FORK and event.value != pid:
                taken += self.take(event.value, ended=True)
        return sorted(taken, key=_by_number)

    def clear(self) -> None:
        self._lives.clear()
        self._order.clear()
        self._births.clear()


def _by_number(item: Remembered) -> int:
    return item[0]
