"""One regular expression over the bytes of a path, in time that grows with the path's length alone.

Rules are written in Python's language, whose own engine can take for ever on a path that a user
chose. RE2 matches the same language in linear time, but for look-around, back-references and a few
rarer things. A pattern with one of those is matched by Python, over short paths only, and is
refused where even these could take long.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any, Final, Protocol

import re2

#: Bytes of a path that Python's own engine is given at most.
SLOW_LIMIT: Final = 512
#: Repeats in one pattern for Python's engine whose ways multiply, each by the path's length.
_MOST_REPEATS: Final = 2
#: In the order of a pattern: a repeat that runs across slashes, one that does not, a repeat inside
#: of a repeat, and a slash.
_WIDE, _WITHIN, _NESTED, _SLASH = "w", "p", "n", "/"
#: Python's end of the text, which RE2 writes in small.
_END: Final = re.compile(r"((?:\\\\)*)\\Z")


class PatternError(ValueError):
    """The expression cannot be used."""


class Found(Protocol):
    """What a pattern found: RE2's or Python's."""

    def group(self, index: int, /) -> Any: ...


class Pattern:
    """An expression that is asked from the start of the path on."""

    def __init__(self, text: str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"{text!r} is no regular expression: {error}") from None
        self.text = text
        #: Numbers of the named groups.
        self.groups: dict[str, int] = dict(plain.groupindex)
        #: As RE2 takes it; none where it does not.
        self.linear: bytes | None = _END.sub(r"\1\\z", text).encode()
        #: Why it is matched by Python.
        self.reason: str | None = None
        try:
            re2.compile(self.linear, options(text=True))
        except re2.error as error:
            self.linear = None
            self.reason = error.args[0].decode("utf-8", "replace")
            _refuse_slow(text)
        self._plain = plain
        self._compiled: dict[bool, Any] = {}

    def match(self, path: bytes, text: bool) -> Found | None:
        """Match a path that is ``text`` (UTF-8) or not."""
        if self.linear is None:
            if len(path) > SLOW_LIMIT:
                return None
            return self._plain.match(path.decode("utf-8", "surrogateescape"))
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = self._compiled[text] = re2.compile(self.linear, options(text=text))
        found: Found | None = compiled.match(path)
        return found


def options(*, text: bool, memory: int | None = None) -> Any:
    """RE2's options. A path that is no UTF-8 is matched byte by byte."""
    chosen = re2.Options()
    chosen.log_errors = False
    if not text:
        chosen.encoding = re2.Options.Encoding.LATIN1
    if memory is not None:
        chosen.max_mem = memory
    return chosen


def group_bytes(value: Any) -> bytes:
    """What a group matched, as bytes; a group that took no part is empty."""
    if value is None:
        return b""
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def is_text(path: bytes) -> bool:
    if path.isascii():
        return True
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse_slow(text: str) -> None:
    """Python's engine tries every way; only patterns with few ways are given to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The parser of the engine itself, under the name that Python 3.11 gave it.
        from re import _parser  # type: ignore[attr-defined]

        repeats = list(_repeats(_parser.parse(text)))
    if _NESTED in repeats:
        raise PatternError(
            f"{text!r} has a repeat inside of a repeat together with look-around or a "
            "back-reference, which can take for ever; right: one of the two without the other"
        )
    # Those that stay within one part of a path multiply only with others of the same part.
    within = max(len(part) for part in "".join(repeats).replace(_WIDE, "").split(_SLASH))
    if repeats.count(_WIDE) + max(0, within - 1) > _MOST_REPEATS:
        raise PatternError(
            f"{text!r} has too many repeats together with look-around or a back-reference, which "
            "can take for ever; right: [^/]* in place of .*, and one for each part of a path"
        )


def _repeats(parsed: Any) -> Iterator[str]:
    """The repeats of any length in a pattern, and the slashes between them, in their order."""
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL" and argument == ord("/"):
            yield _SLASH
        elif name.endswith("REPEAT"):
            low, high, body = argument
            inner = "".join(_repeats(body))
            if high - low <= 1 and high <= 64:
                yield from inner if low else inner.replace(_SLASH, "")
            elif not inner.strip(_SLASH):
                yield _WIDE if _SLASH in inner or _crosses(body) else _WITHIN
            else:
                # Each turn takes one part of the path up to its slash: there is one way to do it.
                yield _WIDE if inner in (_WITHIN + _SLASH, _SLASH + _WITHIN) else _NESTED
        else:
            found = "".join("".join(_repeats(inner)) for inner in _inner(argument))
            # Only a slash that is always there parts what is before it from what follows.
            yield from found if name == "SUBPATTERN" else found.replace(_SLASH, "")


def _inner(argument: Any) -> Iterator[Any]:
    """The parts of a pattern below one operation, wherever the parser has put them."""
    if hasattr(argument, "getwidth"):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _inner(part)


def _crosses(body: Any) -> bool:
    """Whether a repeated part is anything but one class of characters without the slash."""
    if len(body) != 1:
        return True
    name, argument = str(body[0][0]), body[0][1]
    if name == "LITERAL":
        return False
    if name == "NOT_LITERAL":
        return bool(argument != ord("/"))
    if name != "IN":
        return True
    negated = str(argument[0][0]) == "NEGATE"
    holds = any(
        (str(kind) == "LITERAL" and value == ord("/"))
        or (str(kind) == "RANGE" and value[0] <= ord("/") <= value[1])
        or (str(kind) == "CATEGORY" and "NOT" in str(value))
        for kind, value in argument
    )
    return holds != negated
