"""Texts with places to fill: ``%(group)s`` by what a rule matched, ``%(user)s`` by whose run it is.

Only what a rule itself writes is a place. What comes out of a path is text, whatever it looks like,
so nobody can stop or bend a naming with a ``%`` in a folder's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

#: Filled for each run, because one path is another program for each user.
RUN_PLACES: Final = ("user", "project")
#: Bytes of one text. Three of them are one key of a table, and PostgreSQL takes 2,700 bytes.
MAX_TEXT: Final = 512

_PIECES: Final = re.compile(r"%%|%\((?P<name>[^()%]*)\)s|(?P<wrong>%.{0,12})|[^%]+", re.DOTALL)
_FILLED: Final = re.compile(r"%\((user|project)\)s")


class TemplateError(ValueError):
    """The text cannot be used; what it says comes after the name of the key."""


class Template:
    """A text of a rule, taken apart once."""

    __slots__ = ("_pieces", "_plain", "missing")

    def __init__(self, text: str, known: Mapping[str, object] | frozenset[str]) -> None:
        #: Places that stand with one ``%`` although only a run can fill them.
        self.missing: list[str] = []
        pieces: list[tuple[bool, str]] = []
        for found in _PIECES.finditer(text):
            name = found["name"]
            if found["wrong"] is not None:
                raise TemplateError(
                    f"{found['wrong']!r} is no place to fill; right: %(name)s, or %% for the sign"
                )
            if name is None:
                pieces.append((False, "%" if found[0] == "%%" else found[0]))
            elif name in known:
                pieces.append((True, name))
            elif name in RUN_PLACES:
                self.missing.append(name)
                pieces.append((False, found[0]))
            else:
                there = ", ".join(sorted(known)) or "none"
                raise TemplateError(f"%({name})s: match has no such group; its groups: {there}")
        self._pieces = pieces
        self._plain = None if any(place for place, _ in pieces) else "".join(t for _, t in pieces)

    def fill(self, values: Mapping[str, str]) -> str:
        """The text, with the value of each group in its place."""
        if self._plain is not None:
            return self._plain
        return "".join([values[text] if place else text for place, text in self._pieces])


def harmless(text: str) -> str:
    r"""What came out of a path, so that no place for the run can stand in it: ``\x25(user)s``."""
    return _FILLED.sub(r"\\x25(\1)s", text) if "%(" in text else text


def bounded(text: str) -> str:
    """A text of at most :data:`MAX_TEXT` bytes; one that is cut ends with its digest."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT:
        return text
    mark = f"...{sha256(data).hexdigest()[:12]}"
    return data[: MAX_TEXT - len(mark)].decode("utf-8", "ignore") + mark


def fill_run(text: str, user: str | None, project: str | None) -> str:
    """A name with the run's user and project in their places; unknown ones are empty."""
    if "%(" not in text:
        return text
    values = {"user": user or "", "project": project or ""}
    return _FILLED.sub(lambda found: values[found[1]], text)
