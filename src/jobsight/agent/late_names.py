"""Rows of files that nobody could name yet, renamed once a look at any run of them has."""

from __future__ import annotations

import weakref
from typing import Final

from jobsight.agent.images import ImageNames, Name
from jobsight.agent.usage import JobUsage

_LIMIT: Final = 1_000


class LateNames:
    """Which books hold rows under a command's name, by device and inode of the file."""

    def __init__(self, names: ImageNames) -> None:
        self._names = names
        self._waiting: dict[tuple[int, int], list[tuple[weakref.ref[JobUsage], Name]]] = {}

    def remember(self, usage: JobUsage, name: Name, executable: tuple[int, int]) -> None:
        """A row is about to be booked under a command's name alone."""
        if name in usage.executables:
            return
        self._waiting.setdefault(executable, []).append((weakref.ref(usage), name))
        if len(self._waiting) > _LIMIT:
            del self._waiting[next(iter(self._waiting))]

    def settle(self) -> None:
        """Rename what can be named by now."""
        for executable in list(self._waiting):
            path = self._names.of_inode(executable)
            if path is None:
                continue
            for book, name in self._waiting.pop(executable):
                usage = book()
                if usage is not None:
                    usage.rename(name, Name(path, known=True))
