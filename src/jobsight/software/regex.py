"""Regular expressions over the bytes of a path, matched in time linear in the path's length.

Rules use Python's syntax, but Python's engine can take exponential time on a path that a user
chooses. RE2 matches the same syntax in linear time, except look-around, back-references and a few
rarer constructs. A pattern with one of those is matched by Python, for short paths only, and is
refused if even these could take too long.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final, Protocol

try:
    import re2
except ModuleNotFoundError:
    # A compute node has only the packages of the agent; Python then matches all patterns.
    re2 = None

#: Longest path in bytes that Python's engine matches.
SLOW_LIMIT: Final = 512
#: Repeats in one pattern for Python's engine that multiply the time, each by the path's length.
_MAX_REPEATS: Final = 2
#: Ways in which the optional parts and the alternatives of such a pattern may be combined.
_MAX_WAYS: Final = 64
#: Tokens of a pattern: a repeat across slashes, a repeat within one path component, a repeat inside
#: a repeat, and a slash.
_WIDE, _WITHIN, _NESTED, _SLASH = "w", "p", "n", "/"
#: Python's end of the text, which RE2 writes in lower case.
_END: Final = re.compile(r"((?:\\\\)*)\\Z")


class PatternError(ValueError):
    """The expression is invalid or could take too long."""


class Match(Protocol):
    """A match of RE2 or Python."""

    def group(self, index: int, /) -> Any: ...


class Pattern:
    """An expression, matched at the start of a path."""

    def __init__(self, text: str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(f"{text!r} is not a regular expression: {error}") from None
        self.text = text
        #: Numbers of the named groups.
        self.groups: dict[str, int] = dict(plain.groupindex)
        #: In RE2's syntax; None if RE2 does not support it.
        self.linear: bytes | None = _END.sub(r"\1\\z", text).encode()
        #: Why Python matches it.
        self.reason: str | None = None
        if re2 is None:
            self.linear = None
            _refuse_slow(text)
        else:
            self._check_linear(text)
        self._plain = plain
        self._compiled: dict[bool, Any] = {}

    def _check_linear(self, text: str) -> None:
        try:
            re2.compile(self.linear, options(text=True))
        except re2.error as error:
            self.linear = None
            self.reason = error.args[0].decode("utf-8", "replace")
            _refuse_slow(text)

    def match(self, path: bytes, text: bool) -> Match | None:
        """Match a path that is ``text`` (UTF-8) or not."""
        if self.linear is None:
            if len(path) > SLOW_LIMIT:
                return None
            return self._plain.match(path.decode("utf-8", "surrogateescape"))
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = self._compiled[text] = re2.compile(self.linear, options(text=text))
        match: Match | None = compiled.match(path)
        return match


def options(*, text: bool, memory: int | None = None) -> Any:
    """RE2's options. A path that is not UTF-8 is matched byte by byte."""
    chosen = re2.Options()
    chosen.log_errors = False
    if not text:
        chosen.encoding = re2.Options.Encoding.LATIN1
    if memory is not None:
        chosen.max_mem = memory
    return chosen


def group_bytes(value: Any) -> bytes:
    """The bytes that a group matched; empty for a group without a match."""
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
    """Refuse patterns on which Python's backtracking engine could take too long."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The engine's own parser, under its name since Python 3.11.
        from re import _parser  # type: ignore[attr-defined]

        parsed = _parser.parse(text)
        repeats = list(_repeats(parsed))
        ways = _ways(parsed)
    if _NESTED in repeats:
        raise PatternError(
            f"{text!r} has a repeat or alternatives inside a repeat together with look-around or "
            "a back-reference, which can take exponential time; expected only one of the two"
        )
    if ways > _MAX_WAYS:
        raise PatternError(
            f"{text!r} has too many optional parts or alternatives together with look-around or "
            f"a back-reference, which can take exponential time; expected {_MAX_WAYS} combinations"
        )
    # Repeats within one path component multiply only with others of the same component.
    within = max(len(component) for component in "".join(repeats).replace(_WIDE, "").split(_SLASH))
    if repeats.count(_WIDE) + max(0, within - 1) > _MAX_REPEATS:
        raise PatternError(
            f"{text!r} has too many repeats together with look-around or a back-reference, which "
            "can take too long; expected [^/]* instead of .*, once per path component"
        )


def _repeats(parsed: Any) -> Iterator[str]:
    """The unbounded repeats in a pattern and the slashes between them, in order."""
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL" and argument == ord("/"):
            yield _SLASH
        elif name.endswith("REPEAT"):
            low, high, body = argument
            inner = "".join(_repeats(body))
            if high - low <= 1 and high <= 64:
                # Each of the repetitions backtracks by itself.
                yield from (inner if low else inner.replace(_SLASH, "")) * min(
                    high, _MAX_REPEATS + 2
                )
            elif _ways(body) > 1:
                yield _NESTED
            elif not inner.strip(_SLASH):
                yield _WIDE if _SLASH in inner or _crosses(body) else _WITHIN
            else:
                # Each repetition matches one path component and its slash, in only one way.
                yield _WIDE if inner in (_WITHIN + _SLASH, _SLASH + _WITHIN) else _NESTED
        else:
            tokens = "".join("".join(_repeats(inner)) for inner in _subpatterns(argument))
            # Only a slash that is always matched separates components.
            yield from tokens if name == "SUBPATTERN" else tokens.replace(_SLASH, "")


def _ways(parsed: Any) -> int:
    """In how many ways optional parts and alternatives combine, at most just above the limit."""
    ways = 1
    for operation, argument in parsed:
        name = str(operation)
        if name.endswith("REPEAT"):
            low, high, body = argument
            inner = _ways(body)
            if high - low <= 1 and high <= 64:
                inner = min(inner**high, _MAX_WAYS + 1) * (1 + high - low)
        elif name == "BRANCH":
            inner = sum(map(_ways, _subpatterns(argument)))
        else:
            inner = math.prod(map(_ways, _subpatterns(argument)))
        ways = min(ways * inner, _MAX_WAYS + 1)
    return ways


def _subpatterns(argument: Any) -> Iterator[Any]:
    """The patterns inside one operation, wherever the parser puts them."""
    if hasattr(argument, "getwidth"):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _subpatterns(part)


def _crosses(body: Any) -> bool:
    """Whether a repeated pattern is anything but one character class without the slash."""
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
    contains_slash = any(
        (str(kind) == "LITERAL" and value == ord("/"))
        or (str(kind) == "RANGE" and value[0] <= ord("/") <= value[1])
        or (str(kind) == "CATEGORY" and "NOT" in str(value))
        for kind, value in argument
    )
    return contains_slash != negated
