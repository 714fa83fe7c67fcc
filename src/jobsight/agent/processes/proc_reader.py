"""Reads processes in /proc without ever stopping the loop of the agent.

While a process is in an exec, the kernel holds back readers of its links, its I/O and, on recent
kernels, its ``stat``. In that exec it closes the files that are marked close-on-exec, and a close
can wait for a file system: as long as a user's FUSE server likes, or as long as a file server is
unreachable. No signal short of the end of the agent interrupts such a read.

:class:`ProcessReader` therefore reads in a thread, many processes in one go, because a hand-over
costs as much as several reads. A thread that the kernel holds back is left to itself, and the
processes of that job are not read until it has returned. What is missing then is in the exit
records of the processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from jobsight.util.signals import signals_blocked

#: Seconds for which a thread must be held back by the kernel before it is left to itself: the first
#: time, and soon after another one. All jobs wait for so long.
STALL_TIMEOUT: Final = 0.1
_SHORT_STALL_TIMEOUT: Final = 0.05
_POLL_INTERVAL: Final = 0.02
#: Seconds for which a job is not read after it was held back. Each time again it is twice as long.
_FIRST_PAUSE: Final = 1.0
PAUSE: Final = 60.0
#: Seconds in which an exec ends that waits for nothing but a CPU of a busy machine.
_LONG: Final = 5.0
#: Threads that are held back, each of another job. Beyond that no process is read.
MAX_HELD_BACK: Final = 64

Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessReader:
    """Reads processes by groups: what holds back one group does not hold back another."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        #: The groups that were held back lately.
        self._held_back: dict[Hashable, _HeldBack] = {}
        self._cpu_time = 0

    @property
    def cpu_time(self) -> int:
        """CPU time of the reads in nanoseconds."""
        return self._cpu_time + (self._worker.cpu_time if self._worker is not None else 0)

    def read(
        self, group: Hashable, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result | None]:
        """The result of ``function`` for each item; None for what could not be read.

        ``function`` must change nothing that others use: it may return at any later time, when its
        result is of no use any more.
        """
        if not items:
            return []
        missing: list[Result | None] = [None] * len(items)
        if self._held_back and not self._may_read(group):
            return missing
        worker = self._worker
        if worker is None:
            worker = self._worker = _Worker()
        results: list[Result | None] = worker.start(function, items)
        if not worker.wait(_SHORT_STALL_TIMEOUT if self._held_back else STALL_TIMEOUT):
            self._worker = None
            self._cpu_time += worker.cpu_time
            before = self._held_back.get(group)
            pause = min(PAUSE, 2 * before.pause) if before is not None else _FIRST_PAUSE
            self._held_back[group] = _HeldBack(worker, time.monotonic(), pause)
            results = results[:]
        elif worker.error is not None:
            error, worker.error = worker.error, None
            raise error
        return results + missing[len(results) :]

    def read_one(
        self, group: Hashable, function: Callable[[Item], Result], item: Item
    ) -> Result | None:
        return self.read(group, function, (item,))[0]

    def is_held_back(self, group: Hashable) -> bool:
        """Whether the group is not read, and not only because the machine is busy."""
        held_back = self._held_back.get(group)
        if held_back is None or self._may_read(group):
            return False
        return held_back.pause >= _LONG or time.monotonic() - held_back.since >= _LONG

    def _may_read(self, group: Hashable) -> bool:
        now = time.monotonic()
        for other, held_back in list(self._held_back.items()):
            if held_back.worker.has_returned and now >= held_back.since + PAUSE:
                del self._held_back[other]
        if group in self._held_back:
            held_back = self._held_back[group]
            return held_back.worker.has_returned and now >= held_back.since + held_back.pause
        waiting = [one for one in self._held_back.values() if not one.worker.has_returned]
        return len(waiting) < MAX_HELD_BACK

    def close(self) -> None:
        """End the thread. Those that the kernel holds back end when they return."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def __del__(self) -> None:
        self.close()


class _HeldBack(NamedTuple):
    """The thread of a group that the kernel held back, and for how long the group is not read."""

    worker: _Worker
    since: float
    pause: float


class _Worker:
    """A thread that reads on request."""

    def __init__(self) -> None:
        self.cpu_time = 0
        self.error: BaseException | None = None
        #: It was held back, left to itself, and has returned.
        self.has_returned = False
        self._function: Callable[[Any], Any] | None = None
        self._items: Iterable[Any] = ()
        self._results: list[Any] = []
        self._begin, self._done = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._done.acquire()
        #: Decides who comes first: a thread that returns, or its reader, who leaves it to itself.
        self._decision = threading.Lock()
        self._abandoned = self._finished = False
        self._thread = threading.Thread(target=self._run, name="process reader", daemon=True)
        with signals_blocked():
            self._thread.start()

    def start(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Begin to read; returns the list to which the results are appended."""
        self._function, self._items, self._results = function, items, []
        self._finished = False
        self._begin.release()
        return self._results

    def wait(self, patience: float) -> bool:
        """Wait for the results; False if the kernel holds back the thread for too long."""
        # Most reads end within the first interval.
        if self._done.acquire(timeout=_POLL_INTERVAL):
            return True
        held_back_since, read_before = time.monotonic(), -1
        while not self._done.acquire(timeout=_POLL_INTERVAL):
            now = time.monotonic()
            # On a busy machine a thread waits for a CPU, which the kernel gives it in time.
            if len(self._results) != read_before or not self._is_held_back():
                held_back_since, read_before = now, len(self._results)
            elif now - held_back_since >= patience and self._abandon():
                return False
        return True

    def _is_held_back(self) -> bool:
        """Whether the thread sleeps where no signal wakes it."""
        stat = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_bytes()
        return stat[stat.rindex(b")") + 2 :][:1] == b"D"

    def _abandon(self) -> bool:
        with self._decision:
            self._abandoned = not self._finished
        return self._abandoned

    def _run(self) -> None:
        while True:
            self._begin.acquire()
            if self._function is None:
                return
            before = time.thread_time_ns()
            try:
                self._read(self._function, self._results.append)
            except BaseException as error:
                self.error = error
            self.cpu_time += time.thread_time_ns() - before
            # What was read is not kept longer than needed: it may have open files.
            self._function, self._items, self._results = None, (), []
            with self._decision:
                self._finished = True
                if self._abandoned:
                    self.has_returned = True
                    return
            self._done.release()

    def _read(self, function: Callable[[Any], Any], add: Callable[[Any], None]) -> None:
        for item in self._items:
            add(function(item))

    def end(self) -> None:
        self._function = None
        self._begin.release()
