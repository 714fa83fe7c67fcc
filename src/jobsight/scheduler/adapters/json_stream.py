"""Reads a JSON reply while it arrives: the entries of its long list one by one, then the rest.

A reply about hundreds of thousands of jobs is too large for memory. ijson is not used, because it
accepts neither NaN nor invalid UTF-8, both of which Slurm writes.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

from jobsight.scheduler.records import AdaptError

# Also accepts NaN and control characters in names.
_decode = json.JSONDecoder(strict=False).raw_decode


def parse_integer(text: str) -> int | float:
    """An integer; as a float if Python refuses to convert that many digits."""
    return int(text) if len(text) < 4000 else float(text)


_decode_slowly = json.JSONDecoder(strict=False, parse_int=parse_integer).raw_decode
_BLANK = " \t\r\n"
#: The error handler that decodes invalid UTF-8 as ``\\xNN``.
ESCAPE_INVALID = "jobsight.escaped"


class ReplyStream:
    """Yields the entries of the list ``key``; all other members are in ``rest`` afterwards."""

    def __init__(self, chunks: Iterable[bytes], key: str, what: str) -> None:
        self.key = key
        #: The other members that have been read so far.
        self.rest: dict[str, Any] = {}
        #: Whether the reply has the list.
        self.listed = False
        self._what = what
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8")(ESCAPE_INVALID)
        self._text = ""
        self._position = 0

    def __iter__(self) -> Iterator[Any]:
        begin = ""
        try:
            self._more()
            begin = " ".join(self._text[:60].split())
            if self._peek() != "{":
                value = self._value()
                raise AdaptError(
                    f"a reply about {self.key} is a {type(value).__name__}, not an object"
                )
            yield from self._members()
            if self._peek():
                raise ValueError("there is data after its end")
        except RecursionError:
            raise AdaptError(f"{self._what} gave JSON that is nested too deeply") from None
        except ValueError as error:
            raise AdaptError(
                f"{self._what} gave no JSON ({error}); it begins with {begin!r}"
            ) from None

    def _members(self) -> Iterator[Any]:
        self._position += 1
        if self._peek() == "}":
            self._position += 1
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
        self._position += 1
        if self._peek() == "]":
            self._position += 1
            return
        while True:
            yield self._value()
            if self._expect(",]") == "]":
                return

    def _peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position] in _BLANK:
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._more():
                return ""

    def _expect(self, allowed: str) -> str:
        found = self._peek()
        if not found or found not in allowed:
            raise ValueError(
                f"expected {' or '.join(allowed)}, found {found!r}"
                if found
                else f"expected {' or '.join(allowed)}, found the end"
            )
        self._position += 1
        return found

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decoded()
            except json.JSONDecodeError as error:
                # The rest of it may not have arrived yet.
                if not self._more():
                    raise ValueError(error.msg) from None
            else:
                # A number at the end may be incomplete: "1" may become "1e+5".
                incomplete = isinstance(value, int | float) and end + 3 > len(self._text)
                length = end - self._position
                if not incomplete or not self._more():
                    self._position += length
                    return value

    def _decoded(self) -> tuple[Any, int]:
        try:
            return _decode(self._text, self._position)
        except json.JSONDecodeError:
            raise
        except ValueError:
            # An integer of thousands of digits.
            return _decode_slowly(self._text, self._position)

    def _more(self) -> bool:
        """Read at least as much as is buffered, so that a long value is not parsed too often."""
        wanted = max(len(self._text) - self._position, 1)
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
        self._text = self._text[self._position :] + read
        self._position = 0
        return bool(read)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    invalid = error.object[error.start : error.end]
    # The backslash is doubled because it is in a JSON string.
    return "".join(f"\\\\x{byte:02x}" for byte in invalid), error.end


codecs.register_error(ESCAPE_INVALID, _escaped)
