"""The machine as its samplers see it: roots, clocks, and readings that all jobs share."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from jobsight.agent.samplers.readings import Errors
from jobsight.model import SECOND

T = TypeVar("T")

#: A reading of the node serves every job whose round comes within this time.
FRESHNESS: Final = 0.5
_CHUNK: Final = 65536
#: One read of the kernel's files gives at most a page of a longer list.
_SHORT: Final = 4096


class Reading(NamedTuple, Generic[T]):
    """Something that was read, and when on the monotonic clock."""

    time: int
    value: T


class KeptFiles:
    """Descriptors by path, kept open and reopened when what they stood for was replaced."""

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._descriptors: dict[str, int] = {}

    def read(self, path: str | Path) -> bytes:
        """The whole content of a file of /proc or /sys."""
        name = str(path)
        descriptor = self._descriptors.get(name)
        if descriptor is not None:
            try:
                return _read_all(descriptor)
            except OSError as error:
                self.forget(name)
                if error.errno not in (errno.ENODEV, errno.ESTALE, errno.ENOENT):
                    raise
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        if len(self._descriptors) >= self._limit:
            self.forget(next(iter(self._descriptors)))
        self._descriptors[name] = descriptor
        return _read_all(descriptor)

    def forget(self, name: str) -> None:
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        for name in list(self._descriptors):
            self.forget(name)


def _read_all(descriptor: int) -> bytes:
    data = os.pread(descriptor, _CHUNK, 0)
    if len(data) < _SHORT // 2:
        return data
    parts = [data]
    place = len(data)
    while data:
        data = os.pread(descriptor, _CHUNK, place)
        parts.append(data)
        place += len(data)
    return b"".join(parts)


class Node:
    """One machine. Samplers of all its jobs share one of these."""

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
        self.files = KeptFiles()
        #: What is wrong with the machine and not with one job.
        self.errors = Errors()
        self._readings: dict[Hashable, Reading[Any]] = {}
        self._shared: dict[Hashable, Any] = {}

    def reading(
        self, key: Hashable, read: Callable[[], T], freshness: int | None = None
    ) -> Reading[T]:
        """What ``read`` gives, read once for all jobs of a round; what it raises is not kept."""
        now = self.clock()
        known: Reading[T] | None = self._readings.get(key)
        limit = self.freshness if freshness is None else freshness
        if known is not None and 0 <= now - known.time < limit:
            return known
        made = Reading(now, read())
        self._readings[key] = made
        return made

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """One object for all jobs of the node, made when the first one asks."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def close(self) -> None:
        for thing in self._shared.values():
            close = getattr(thing, "close", None)
            if close is not None:
                close()
        self._shared.clear()
        self._readings.clear()
        self.files.close()


@cache
def this_node() -> Node:
    """The machine that the agent runs on."""
    return Node()
