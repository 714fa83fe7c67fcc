"""The machine as its samplers see it: roots, clocks, and readings that all jobs share."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from jobsight.agent.processes.proc_reader import ProcessReader
from jobsight.agent.samplers.readings import Errors
from jobsight.model import SECOND

T = TypeVar("T")

#: A reading of the node is shared by all jobs whose round is within this time.
FRESHNESS: Final = 0.5
_READ_SIZE: Final = 65536
#: seq_file returns at most a page per read; a shorter result is complete.
_COMPLETE_BELOW: Final = 2048


class Reading(NamedTuple, Generic[T]):
    """A value and the monotonic time at which it was read."""

    time: int
    value: T


class Node:
    """One machine, shared by the samplers of all its jobs."""

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        environment: Mapping[str, str] = os.environ,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
        freshness: float = FRESHNESS,
    ) -> None:
        self.proc = proc
        self.sys = sys
        self.dev = dev
        self.environment = environment
        self.clock = clock
        self.wall = wall
        self.freshness = round(freshness * SECOND)
        self.files = OpenFiles()
        #: Reads whatever of a process the kernel may hold back, for each job by its account.
        self.processes = ProcessReader()
        #: Failures of the machine as opposed to one job.
        self.errors = Errors()
        self._readings: dict[Hashable, Reading[Any]] = {}
        self._shared: dict[Hashable, Any] = {}

    def reading(
        self, key: Hashable, read: Callable[[], T], freshness: int | None = None
    ) -> Reading[T]:
        """The result of ``read``, cached for all jobs of a round. Exceptions are not cached."""
        now = self.clock()
        cached: Reading[T] | None = self._readings.get(key)
        limit = self.freshness if freshness is None else freshness
        if cached is not None and 0 <= now - cached.time < limit:
            return cached
        reading = Reading(now, read())
        self._readings[key] = reading
        return reading

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """One object for all jobs of the node, created on first use."""
        if key not in self._shared:
            self._shared[key] = make()
        instance: T = self._shared[key]
        return instance

    def close(self) -> None:
        for instance in self._shared.values():
            close = getattr(instance, "close", None)
            if close is not None:
                close()
        self._shared.clear()
        self._readings.clear()
        self.files.close()
        self.processes.close()


@cache
def this_node() -> Node:
    """The machine that the agent runs on."""
    return Node()


class OpenFiles:
    """Files of /proc and /sys that are kept open, and reopened when they were replaced."""

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._descriptors: dict[str, int] = {}

    def read(self, path: str | Path) -> bytes:
        """The complete content of a file."""
        name = str(path)
        descriptor = self._descriptors.get(name)
        if descriptor is not None:
            try:
                return _read_all(descriptor)
            except OSError as error:
                self._close(name)
                if error.errno not in (errno.ENODEV, errno.ESTALE, errno.ENOENT):
                    raise
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        if len(self._descriptors) >= self._limit:
            self._close(next(iter(self._descriptors)))
        self._descriptors[name] = descriptor
        return _read_all(descriptor)

    def _close(self, name: str) -> None:
        os.close(self._descriptors.pop(name))

    def close(self) -> None:
        for name in list(self._descriptors):
            self._close(name)


def _read_all(descriptor: int) -> bytes:
    data = os.pread(descriptor, _READ_SIZE, 0)
    if len(data) < _COMPLETE_BELOW:
        return data
    parts = [data]
    offset = len(data)
    while data:
        data = os.pread(descriptor, _READ_SIZE, offset)
        parts.append(data)
        offset += len(data)
    return b"".join(parts)
