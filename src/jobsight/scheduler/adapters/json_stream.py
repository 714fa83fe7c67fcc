"""A JSON reply read while it comes: the entries of its long list one by one, the rest at the end.

A reply about hundreds of thousands of jobs is more text than a server should hold, and ten times
that as documents.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

from jobsight.scheduler.records import AdaptError

# Not quite JSON is read, too: NaN, bare control characters in names.
_decode = json.JSONDecoder(strict=False).raw_decode
_BLANK = " \t\r\n"
#: How bytes in names that are no UTF-8 are read: as ``\\xNN``.
ESCAPE_INVALID = "jobsight.escaped"


class ReplyStream:
    """Yields the entries of the list named ``key``; everything else is in ``rest`` afterwards."""

    def __init__(self, chunks: Iterable[bytes], key: str, what: str) -> None:
        self.key = key
        #: The parts that have been read so far, without the list.
        self.rest: dict[str, Any] = {}
        #: Whether the list was there.
        self.listed = False
        self._what = what
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8")(ESCAPE_INVALID)
        self._text = ""
        self._place = 0

    def __iter__(self) -> Iterator[Any]:
        begin = ""
        try:
            self._more()
            begin = " ".join(self._text[:60].split())
            if self._peek() != "{":
                value = self._value()
                raise AdaptError(
                    f"a reply about {self.key} is a {type(value).__name__}, not a document"
                )
            yield from self._members()
            if self._peek():
                raise ValueError("more follows after its end")
        except ValueError as error:
            raise AdaptError(
                f"{self._what} gave no JSON ({error}); it begins with {begin!r}"
            ) from None

    def _members(self) -> Iterator[Any]:
        self._place += 1
        if self._peek() == "}":
            self._place += 1
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise ValueError("a name is missing")
            self._expect(":")
            if name == self.key and self._peek() == "[":
                self.listed = True
                yield from self._entries()
            else:
                self.rest[name] = self._value()
            if self._expect(",}") == "}":
                return

    def _entries(self) -> Iterator[Any]:
        self._place += 1
        if self._peek() == "]":
            self._place += 1
            return
        while True:
            yield self._value()
            if self._expect(",]") == "]":
                return

    def _peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in _BLANK:
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def _expect(self, allowed: str) -> str:
        found = self._peek()
        if not found or found not in allowed:
            raise ValueError(
                f"{' or '.join(allowed)} should follow, "
                + (f"not {found!r}" if found else "but it ends there")
            )
        self._place += 1
        return found

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = _decode(self._text, self._place)
            except json.JSONDecodeError as error:
                # It may only not be there whole yet.
                if not self._more():
                    raise ValueError(error.msg) from None
            else:
                # A number near the end may go on: "1" may become "1e+5".
                unsure = isinstance(value, int | float) and end + 3 > len(self._text)
                length = end - self._place
                if not unsure or not self._more():
                    self._place += length
                    return value

    def _more(self) -> bool:
        """Read on, as much again as is there, so that a long value is not tried too often."""
        wanted = max(len(self._text) - self._place, 1)
        parts: list[str] = []
        while wanted > 0:
            chunk = next(self._chunks, None)
            part = self._decoder.decode(chunk or b"", final=chunk is None)
            parts.append(part)
            wanted -= len(part)
            if chunk is None:
                self._chunks = iter(())
                break
        read = "".join(parts)
        self._text = self._text[self._place :] + read
        self._place = 0
        return bool(read)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wrong = error.object[error.start : error.end]
    # The backslash is doubled because this stands inside of a JSON string.
    return "".join(f"\\\\x{byte:02x}" for byte in wrong), error.end


codecs.register_error(ESCAPE_INVALID, _escaped)
