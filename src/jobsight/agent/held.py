"""Exit records that wait for the exit event of their thread."""

from __future__ import annotations

from collections import deque
from typing import Final

from jobsight.agent.netlink import ExitRecord

LIMIT: Final = 200_000


class HeldRecords:
    """Records by thread, in the order of their coming: a number may be given twice."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[ExitRecord]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, record: ExitRecord) -> None:
        waiting = self._waiting.get(record.pid)
        if waiting is None:
            waiting = self._waiting[record.pid] = deque()
        waiting.append(record)
        self._count += 1
        if self._count > LIMIT:
            # Their exit events were lost in an overrun; the processes are found missing later.
            self._waiting.clear()
            self._count = 0

    def take(self, tid: int) -> ExitRecord | None:
        waiting = self._waiting.get(tid)
        if waiting is None:
            return None
        record = waiting.popleft()
        self._count -= 1
        if not waiting:
            del self._waiting[tid]
        return record
