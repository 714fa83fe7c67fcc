"""Many patterns, followed at once through a path: which is the first that matches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import re2

from jobsight.software.patterns import Pattern, options

#: Bytes that RE2 may take to follow all patterns at once.
MEMORY: Final = 64 * 2**20
#: RE2 had not the memory to follow them.
_FAILED: Final = -1


class Matching:
    """Patterns by their numbers; the lowest number wins."""

    def __init__(self, patterns: Mapping[int, Pattern]) -> None:
        self._fast = {n: one for n, one in patterns.items() if one.linear is not None}
        #: Those that Python has to match, one by one.
        self._slow = {n: one for n, one in patterns.items() if one.linear is None}
        self._together: dict[bool, _Together] = {}

    def first(self, path: bytes, text: bool) -> int | None:
        """The number of the first that matches a path, which is ``text`` (UTF-8) or not."""
        best = self.ask_together(path, text)
        if best is _FAILED:
            best = next((n for n, one in self._fast.items() if one.match(path, text)), None)
        for number, pattern in self._slow.items():
            if best is not None and number > best:
                break
            if pattern.match(path, text):
                return number
        return best

    def ask_together(self, path: bytes, text: bool) -> int | None:
        """What RE2 says to the patterns that it takes; -1 where it gave up."""
        together = self._together.get(text)
        if together is None:
            together = self._together[text] = _Together(self._fast, text)
        return together.first(path)


class _Together:
    def __init__(self, patterns: Mapping[int, Pattern], text: bool) -> None:
        self._set: Any = re2.Set.MatchSet(options(text=text, memory=MEMORY))
        # Matches everything. Where it is not among the matches, RE2 gave up, which it says in no
        # other way.
        self._set.Add(b"")
        self._numbers = [_FAILED, *patterns]
        for pattern in patterns.values():
            self._set.Add(pattern.linear)
        try:
            self._set.Compile()
        except re2.error:
            self._set = None

    def first(self, path: bytes) -> int | None:
        found = sorted(self._set.Match(path)) if self._set else []
        if not found or found[0] != 0:
            return _FAILED
        return self._numbers[found[1]] if len(found) > 1 else None
