"""One file of rules: SAMS's YAML, in a file of its own or inside a configuration of SAMS.

A file that a site has must load, so an unknown key is a warning with the nearest name. What would
name programs wrongly is an error that says file, rule, key and what would be right.

Texts with places to fill: ``%(group)s`` by what a rule matched, ``%(user)s`` by whose run it is.

Only what a rule itself writes is a place. What comes out of a path is text, whatever it looks like,
so nobody can stop or bend a naming with a ``%`` in a folder's name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from jobsight.errors import ConfigError
from jobsight.software.regex import SLOW_LIMIT, Pattern, PatternError
from jobsight.text import file_text

SECTION: Final = "sams.software.Regexp"
TEXTS: Final = ("software", "version", "versionstr")

_FLAGS: Final = ("user_provided", "ignore")
_RULE: Final = ("match", *TEXTS, *_FLAGS)
_TEST: Final = ("path", *TEXTS, *_FLAGS, "undetermined")
_FILE: Final = ("rules", "rewrite", "stop_on_rewrite_match", "tests")


class RulesError(ConfigError):
    """A file of rules is wrong."""


class Rule(msgspec.Struct, frozen=True):
    """Names the paths that match."""

    pattern: Pattern
    texts: tuple[Template, Template, Template]
    user_provided: bool
    ignore: bool


class Rewrite(msgspec.Struct, frozen=True):
    """Changes a name that a rule gave."""

    patterns: dict[str, Pattern]
    updates: dict[str, Template]


class Expectation(msgspec.Struct, frozen=True):
    """What a site expects of its rules for one path."""

    number: int
    path: str
    undetermined: bool
    expected: dict[str, str | bool]


class RuleFile(msgspec.Struct):
    """What one file says."""

    name: str
    #: One of those that come with jobsight.
    ready: bool
    rules: list[Rule]
    rewrites: list[Rewrite]
    stop_on_rewrite_match: bool
    expectations: list[Expectation]
    warnings: list[str]
    #: All that decides on names, to tell whether they have to be given anew.
    source: object


def read_rules(file: Path, *, ready: bool = False) -> RuleFile:
    """Read and check a file; a ``ready`` one goes by its bare name."""
    return _Reader(file.name if ready else str(file)).read(_tree(file), ready)


def _tree(file: Path) -> dict[str, Any]:
    import yaml

    text = file_text(file)
    try:
        # The loader in C is ten times as fast, where it was built.
        tree = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise RulesError(f"{file}: {' '.join(str(error).split())}") from None
    found = tree.get(SECTION, tree) if isinstance(tree, dict) else tree
    if not isinstance(found, dict) or not any(key in found for key in _FILE):
        raise RulesError(f"{file}: holds no rules; right: a list `rules:`, or a section {SECTION}")
    return {str(key): value for key, value in found.items()}


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._warnings: list[str] = []

    def read(self, tree: dict[str, Any], ready: bool) -> RuleFile:
        self._unknown("", tree, _FILE)
        rules = [self._rule(*entry) for entry in self._entries(tree, "rules", "rule")]
        rewrites = [self._rewrite(*entry) for entry in self._entries(tree, "rewrite", "rewrite")]
        tests = [self._test(*entry) for entry in self._entries(tree, "tests", "test")]
        stop = self._flag("", tree, "stop_on_rewrite_match")
        return RuleFile(
            name=self._file,
            ready=ready,
            rules=rules,
            rewrites=[rewrite for rewrite in rewrites if rewrite is not None],
            stop_on_rewrite_match=stop,
            expectations=tests,
            warnings=self._warnings,
            source=[
                ready,
                [[entry.get(key) for key in _RULE] for entry in tree.get("rules") or ()],
                [_used(entry) for entry in tree.get("rewrite") or ()],
                stop,
            ],
        )

    def _entries(self, tree: Mapping[str, Any], key: str, noun: str) -> list[tuple[int, Any]]:
        entries = tree.get(key)
        if entries is None:
            return []
        if not isinstance(entries, list):
            raise RulesError(f"{self._file}: {key}: expected a list, got {_kind(entries)}")
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, dict):
                raise self._error(
                    f"{noun} {number}", f"expected keys and values, got {_kind(entry)}"
                )
        return list(enumerate(entries, 1))

    def _rule(self, number: int, entry: dict[str, Any]) -> Rule:
        where = f"rule {number}"
        self._unknown(where, entry, _RULE)
        pattern = self._pattern(where, "match", self._text(where, entry, "match"))
        known = frozenset(pattern.groups)
        first, second, third = (
            self._template(where, key, self._text(where, entry, key), known) for key in TEXTS
        )
        return Rule(
            pattern,
            (first, second, third),
            self._flag(where, entry, "user_provided"),
            self._flag(where, entry, "ignore"),
        )

    def _rewrite(self, number: int, entry: dict[str, Any]) -> Rewrite | None:
        where = f"rewrite {number}"
        self._unknown(where, entry, ("match", "update"))
        for key in ("match", "update"):
            if not isinstance(entry.get(key), dict):
                # SAMS passes over such an entry, and a site's file must load.
                self._warn(f"{where}: is not used: {key} is no list of software, version ...")
                return None
            self._unknown(f"{where}: {key}", entry[key], TEXTS)
        patterns = {
            key: self._pattern(f"{where}: match", key, self._text(where, entry["match"], key))
            for key in TEXTS
            if key in entry["match"]
        }
        if not patterns:
            self._warn(f"{where}: is not used: match names none of {', '.join(TEXTS)}")
            return None
        known = frozenset(TEXTS).union(*(pattern.groups for pattern in patterns.values()))
        updates = {
            key: self._template(
                f"{where}: update", key, self._text(where, entry["update"], key), known
            )
            for key in TEXTS
            if key in entry["update"]
        }
        return Rewrite(patterns, updates)

    def _test(self, number: int, entry: dict[str, Any]) -> Expectation:
        where = f"test {number}"
        self._unknown(where, entry, _TEST)
        path = self._text(where, entry, "path")
        expected: dict[str, str | bool] = {
            key: self._text(where, entry, key) for key in TEXTS if key in entry
        }
        expected |= {key: self._flag(where, entry, key) for key in _FLAGS if key in entry}
        undetermined = self._flag(where, entry, "undetermined")
        if undetermined == bool(expected):
            raise self._error(
                where, f"say what is expected: {', '.join(TEXTS)}, or undetermined: true"
            )
        return Expectation(number, path, undetermined, expected)

    def _text(self, where: str, entry: Mapping[str, Any], key: str) -> str:
        value = entry.get(key)
        if isinstance(value, str):
            return value
        if key not in entry:
            raise self._error(where, f"{key}: is missing")
        hint = f"'{value}'" if isinstance(value, int | float) else "''" if value is None else ""
        hint = f"; right: a text in quotes, {hint}" if hint else ""
        raise self._error(where, f"{key}: expected a text, got {_kind(value)}{hint}")

    def _flag(self, where: str, entry: Mapping[str, Any], key: str) -> bool:
        value = entry.get(key)
        if value is None:
            return False
        try:
            return msgspec.convert(value, bool, strict=False)
        except msgspec.ValidationError:
            raise self._error(where, f"{key}: expected true or false, got {value!r}") from None

    def _pattern(self, where: str, key: str, text: str) -> Pattern:
        try:
            pattern = Pattern(text)
        except PatternError as error:
            raise self._error(where, f"{key}: {error}") from None
        if pattern.reason is not None:
            self._warn(
                f"{where}: {key}: cannot be matched in linear time ({pattern.reason}); "
                f"paths of more than {SLOW_LIMIT} bytes do not match it"
            )
        return pattern

    def _template(self, where: str, key: str, text: str, known: frozenset[str]) -> Template:
        try:
            template = Template(text, known)
        except TemplateError as error:
            raise self._error(where, f"{key}: {error}") from None
        for name in template.missing:
            self._warn(f"{where}: {key}: %({name})s is no group of match; taken as %%({name})s")
        return template

    def _unknown(self, where: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in entry:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                self._warn(f"{where}: " * bool(where) + f"unknown key {key}; {hint}")

    def _warn(self, sentence: str) -> None:
        self._warnings.append(f"{self._file}: {sentence}")

    def _error(self, where: str, sentence: str) -> RulesError:
        return RulesError(": ".join(part for part in (self._file, where, sentence) if part))


def _used(rewrite: Mapping[str, Any]) -> list[Any]:
    """What of a rewrite decides on names."""
    parts = (rewrite.get("match"), rewrite.get("update"))
    return [[part.get(key) for key in TEXTS] if isinstance(part, dict) else None for part in parts]


def _kind(value: object) -> str:
    return "nothing" if value is None else f"`{type(value).__name__}`"


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
