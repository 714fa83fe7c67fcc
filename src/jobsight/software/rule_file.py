"""One file of rules: SAMS's YAML, in a file of its own or a section of a SAMS configuration.

A site's existing file must load, so an unknown key is a warning with the nearest name. Anything
that would assign wrong names is an error with the file, the rule, the key and what is expected.

:class:`Template` fills placeholders: ``%(group)s`` with a group of the match, ``%(user)s`` and
``%(project)s`` with the owner of a run. Only the text of a rule contains placeholders; text from a
path is never interpreted, so a ``%`` in a directory name has no effect.
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
from jobsight.text import file_text, yaml_reason

SECTION: Final = "sams.software.Regexp"
TEXTS: Final = ("software", "version", "versionstr")

_FLAGS: Final = ("user_provided", "ignore")
_RULE: Final = ("match", *TEXTS, *_FLAGS)
_TEST: Final = ("path", *TEXTS, *_FLAGS, "undetermined")
_FILE: Final = ("rules", "rewrite", "stop_on_rewrite_match", "tests")


class RulesError(ConfigError):
    """A rule file is invalid."""


class Rule(msgspec.Struct, frozen=True):
    """Assigns a name to matching paths."""

    pattern: Pattern
    texts: tuple[Template, Template, Template]
    user_provided: bool
    ignore: bool


class Rewrite(msgspec.Struct, frozen=True):
    """Changes a name that a rule assigned."""

    patterns: dict[str, Pattern]
    updates: dict[str, Template]


class Expectation(msgspec.Struct, frozen=True):
    """A test in a rule file: the expected name of one path."""

    number: int
    path: str
    undetermined: bool
    expected: dict[str, str | bool]


class RuleFile(msgspec.Struct):
    """The content of one file."""

    name: str
    #: Shipped with jobsight.
    ready: bool
    rules: list[Rule]
    rewrites: list[Rewrite]
    stop_on_rewrite_match: bool
    expectations: list[Expectation]
    warnings: list[str]
    #: Everything that determines names; if it changes, paths are named again.
    source: object


def read_rules(file: Path, *, ready: bool = False) -> RuleFile:
    """Read and validate a file; a ``ready`` one is known by its bare name."""
    return _Reader(file.name if ready else str(file)).read(_tree(file), ready)


def parse_rules(file: str, section: dict[str, Any]) -> RuleFile:
    """Validate the section of a configuration that has been read."""
    return _Reader(file).read(section, False)


def _tree(file: Path) -> dict[str, Any]:
    import yaml

    text = file_text(file)
    try:
        # The C loader is ten times as fast, but not always built.
        tree = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except RecursionError:
        raise RulesError(f"{file}: is nested too deeply") from None
    except yaml.YAMLError as error:
        raise RulesError(f"{file}: {yaml_reason(error)}") from None
    section = tree.get(SECTION, tree) if isinstance(tree, dict) else tree
    if not isinstance(section, dict) or not any(key in section for key in _FILE):
        raise RulesError(
            f"{file}: contains no rules; expected a list `rules:` or a section {SECTION}"
        )
    return {str(key): value for key, value in section.items()}


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
                # SAMS ignores such an entry, and a site's file must load.
                self._warn(f"{where}: is ignored: {key} is not a mapping of software, version ...")
                return None
            self._unknown(f"{where}: {key}", entry[key], TEXTS)
        patterns = {
            key: self._pattern(f"{where}: match", key, self._text(where, entry["match"], key))
            for key in TEXTS
            if key in entry["match"]
        }
        if not patterns:
            self._warn(f"{where}: is ignored: match has none of {', '.join(TEXTS)}")
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
            raise self._error(where, f"expected one of {', '.join(TEXTS)}, or undetermined: true")
        return Expectation(number, path, undetermined, expected)

    def _text(self, where: str, entry: Mapping[str, Any], key: str) -> str:
        value = entry.get(key)
        if isinstance(value, str):
            return value
        if key not in entry:
            raise self._error(where, f"{key}: is missing")
        hint = f"'{value}'" if isinstance(value, int | float) else "''" if value is None else ""
        hint = f"; put it in quotes: {hint}" if hint else ""
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
            self._warn(f"{where}: {key}: %({name})s is not a group of match; read as %%({name})s")
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
    """The parts of a rewrite that determine names."""
    parts = (rewrite.get("match"), rewrite.get("update"))
    return [[part.get(key) for key in TEXTS] if isinstance(part, dict) else None for part in parts]


def _kind(value: object) -> str:
    return "nothing" if value is None else f"`{type(value).__name__}`"


#: Filled per run: one path is a different program for each user.
RUN_PLACEHOLDERS: Final = ("user", "project")
#: Bytes of one text. Three texts are one index key, and PostgreSQL limits it to 2,700 bytes.
MAX_TEXT: Final = 512

_PIECES: Final = re.compile(r"%%|%\((?P<name>[^()%]*)\)s|(?P<wrong>%.{0,12})|[^%]+", re.DOTALL)
_FILLED: Final = re.compile(r"%\((user|project)\)s")


class TemplateError(ValueError):
    """The text is not a valid template; the message follows the name of the key."""


class Template:
    """A text of a rule, parsed once."""

    __slots__ = ("_pieces", "_plain", "missing")

    def __init__(self, text: str, known: Mapping[str, object] | frozenset[str]) -> None:
        #: Placeholders with a single ``%`` that only a run can fill.
        self.missing: list[str] = []
        pieces: list[tuple[bool, str]] = []
        for match in _PIECES.finditer(text):
            name = match["name"]
            if match["wrong"] is not None:
                raise TemplateError(
                    f"{match['wrong']!r} is not a placeholder; expected %(name)s, or %% for %"
                )
            if name is None:
                pieces.append((False, "%" if match[0] == "%%" else match[0]))
            elif name in known:
                pieces.append((True, name))
            elif name in RUN_PLACEHOLDERS:
                self.missing.append(name)
                pieces.append((False, match[0]))
            else:
                groups = ", ".join(sorted(known)) or "none"
                raise TemplateError(f"%({name})s: match has no such group; its groups: {groups}")
        self._pieces = pieces
        self._plain = None if any(group for group, _ in pieces) else "".join(t for _, t in pieces)

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with the values of the groups."""
        if self._plain is not None:
            return self._plain
        return "".join([values[text] if group else text for group, text in self._pieces])


def escape_placeholders(text: str) -> str:
    r"""Text from a path without placeholders of a run: ``\x25(user)s`` for ``%(user)s``."""
    return _FILLED.sub(r"\\x25(\1)s", text) if "%(" in text else text


def bounded(text: str) -> str:
    """A text of at most :data:`MAX_TEXT` bytes; a longer one is cut and ends with its digest."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TEXT:
        return text
    suffix = f"...{sha256(data).hexdigest()[:12]}"
    return data[: MAX_TEXT - len(suffix)].decode("utf-8", "ignore") + suffix


def fill_run(text: str, user: str | None, project: str | None) -> str:
    """A name with the run's user and project filled in; unknown ones are empty."""
    if "%(" not in text:
        return text
    values = {"user": user or "", "project": project or ""}
    return _FILLED.sub(lambda match: values[match[1]], text)
