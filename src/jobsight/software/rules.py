"""Rules that map the path of an executable to the name of a software.

:class:`RuleSet` is the entry point: the first matching rule wins. :class:`RegexSet` matches all
patterns in one pass of RE2, so that a thousand rules cost little more than one.
:func:`run_expectations` runs the tests that rule files contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from jobsight.model import SCRIPT_SEPARATOR
from jobsight.software.regex import Pattern, group_bytes, is_text, options
from jobsight.software.rule_file import (
    TEXTS,
    Expectation,
    Rewrite,
    Rule,
    RuleFile,
    bounded,
    escape_placeholders,
    read_rules,
)
from jobsight.text import path_bytes, readable_path

#: Incremented when the same rules produce other names than before.
_EDITION: Final = 1
#: Names whose rewritten form is cached.
_CACHE_SIZE: Final = 4096
_READY: Final = Path(__file__).parent / "ready"


class SoftwareName(msgspec.Struct, frozen=True):
    """The name of a path. Texts may contain ``%(user)s`` and ``%(project)s``, which
    :func:`jobsight.software.rule_file.fill_run` fills."""

    software: str
    version: str
    local_version: str
    user_provided: bool = False
    ignored: bool = False


class RuleSet:
    """The rules of several files, in their order."""

    def __init__(self, files: Sequence[RuleFile]) -> None:
        self.files = list(files)
        self.warnings = [sentence for file in files for sentence in file.warnings]
        source = [_EDITION, *(file.source for file in files)]
        #: If it differs, paths may have other names.
        self.digest = sha256(msgspec.json.encode(source, order="deterministic")).hexdigest()
        self._rules = [(rule, index) for index, file in enumerate(files) for rule in file.rules]
        patterns = {number: rule.pattern for number, (rule, _) in enumerate(self._rules)}
        self._matching = RegexSet(patterns)
        self._scripts = RegexSet(
            {
                number: pattern
                for number, pattern in patterns.items()
                if SCRIPT_SEPARATOR.decode() in pattern.text
            }
        )
        # A site's rewrites apply to the names of the ready rules as well, never the reverse.
        site = [file for file in files if not file.ready]
        self._rewriting = [[file, *site] if file.ready else [file] for file in files]
        # A program of a thousand executables has one name, so most names are in the cache.
        self._rewrite = lru_cache(_CACHE_SIZE)(self._rewritten)

    @classmethod
    def load(cls, files: Sequence[Path], *, ready: bool = False) -> RuleSet:
        """The rules of files in their order, followed by the ready rules with ``ready``."""
        return cls([*map(read_rules, files), *(_ready_files() if ready else ())])

    @classmethod
    def ready(cls) -> RuleSet:
        """The rules shipped with jobsight, for common installation layouts."""
        return cls(_ready_files())

    def name(self, path: bytes) -> SoftwareName | None:
        """The name of a path; None if no rule matches."""
        match = self._find(path)
        if match is None:
            return None
        number, matched, text = match
        rule, index = self._rules[number]
        software, version, local = self._rewrite(index, *_texts(rule, matched, text))
        return SoftwareName(software, version, local, rule.user_provided, rule.ignore)

    def rule_of(self, path: bytes) -> tuple[str, int] | None:
        """The file of the rule that names a path, and its number in the file."""
        match = self._find(path)
        if match is None:
            return None
        number = match[0]
        index = self._rules[number][1]
        return self.files[index].name, number + 1 - sum(len(f.rules) for f in self.files[:index])

    def _find(self, path: bytes) -> tuple[int, bytes, bool] | None:
        """The rule that names a path, the part of the path it matches, and whether that is text.

        An interpreter with its script is matched by rules that contain the separator. If none
        matches, the interpreter is matched alone.
        """
        executable, separator, _ = path.partition(SCRIPT_SEPARATOR)
        if separator:
            text = is_text(path)
            number = self._scripts.first(path, text)
            if number is not None:
                return number, path, text
        text = is_text(executable)
        number = self._matching.first(executable, text)
        return None if number is None else (number, executable, text)

    def _rewritten(self, index: int, *texts: str) -> tuple[str, ...]:
        values = dict(zip(TEXTS, texts, strict=True))
        for file in self._rewriting[index]:
            _rewrite(file, values)
        return tuple(bounded(values[key]) for key in TEXTS)


def _texts(rule: Rule, path: bytes, text: bool) -> list[str]:
    match = rule.pattern.match(path, text)
    assert match is not None
    values = {
        name: escape_placeholders(readable_path(group_bytes(match.group(number))))
        for name, number in rule.pattern.groups.items()
    }
    return [template.fill(values) for template in rule.texts]


def _rewrite(file: RuleFile, texts: dict[str, str]) -> None:
    for rewrite in file.rewrites:
        if _rewritten(rewrite, texts) and file.stop_on_rewrite_match:
            return


def _rewritten(rewrite: Rewrite, texts: dict[str, str]) -> bool:
    values = dict(texts)
    for key, pattern in rewrite.patterns.items():
        match = pattern.match(texts[key].encode("utf-8", "surrogatepass"), True)
        if match is None:
            return False
        for name, number in pattern.groups.items():
            values[name] = group_bytes(match.group(number)).decode("utf-8", "replace")
    for key, template in rewrite.updates.items():
        texts[key] = template.fill(values)
    return True


def _ready_files() -> list[RuleFile]:
    return [read_rules(file, ready=True) for file in sorted(_READY.glob("*.yaml"))]


#: Bytes of memory that RE2 may use to match all patterns.
MAX_MEMORY: Final = 64 * 2**20
#: RE2 ran out of that memory.
_FAILED: Final = -1


class RegexSet:
    """Patterns by number; of several matches the lowest number wins."""

    def __init__(self, patterns: Mapping[int, Pattern]) -> None:
        self._fast = {n: pattern for n, pattern in patterns.items() if pattern.linear is not None}
        #: Patterns that only Python can match, one by one.
        self._slow = {n: pattern for n, pattern in patterns.items() if pattern.linear is None}
        self._sets: dict[bool, _Re2Set] = {}

    def first(self, path: bytes, text: bool) -> int | None:
        """The number of the first match of a path, which is ``text`` (UTF-8) or not."""
        best = self.first_by_re2(path, text)
        if best is _FAILED:
            best = next((n for n, each in self._fast.items() if each.match(path, text)), None)
        for number, pattern in self._slow.items():
            if best is not None and number > best:
                break
            if pattern.match(path, text):
                return number
        return best

    def first_by_re2(self, path: bytes, text: bool) -> int | None:
        """The first match of the patterns that RE2 supports; -1 if RE2 ran out of memory."""
        if not self._fast:
            return None
        compiled = self._sets.get(text)
        if compiled is None:
            compiled = self._sets[text] = _Re2Set(self._fast, text)
        return compiled.first(path)


class _Re2Set:
    def __init__(self, patterns: Mapping[int, Pattern], text: bool) -> None:
        # Imported here: there are no such patterns where it is not installed.
        import re2

        self._set: Any = re2.Set.MatchSet(options(text=text, memory=MAX_MEMORY))
        # Matches everything. If it is not among the matches, RE2 ran out of memory, which it
        # reports in no other way.
        self._set.Add(b"")
        self._numbers = [_FAILED, *patterns]
        for pattern in patterns.values():
            self._set.Add(pattern.linear)
        try:
            self._set.Compile()
        except re2.error:
            self._set = None

    def first(self, path: bytes) -> int | None:
        matches = sorted(self._set.Match(path)) if self._set else []
        if not matches or matches[0] != 0:
            return _FAILED
        return self._numbers[matches[1]] if len(matches) > 1 else None


class Outcome(msgspec.Struct, frozen=True):
    """The result of one test; ``differences`` is empty if it passed."""

    file: str
    number: int
    path: str
    differences: list[str]
    #: File and number of the rule that named the path.
    rule: tuple[str, int] | None

    def __str__(self) -> str:
        head = f"{self.file}: test {self.number}: {self.path}"
        if not self.differences:
            return f"{head}: as expected"
        by = f" (rule {self.rule[1]} of {self.rule[0]})" if self.rule else ""
        return f"{head}: {'; '.join(self.differences)}{by}"


def run_expectations(files: Sequence[Path], *, ready: bool = True) -> list[Outcome]:
    """Run the tests of rule files against the rules of all files together.

    With ``ready`` the ready rules follow those of the files, as in the server; without files the
    tests of the ready rules are run.
    """
    rules = RuleSet.load(files, ready=ready)
    tested = rules.files[: len(files)] if files else rules.files
    return [outcome(rules, file.name, test) for file in tested for test in file.expectations]


def outcome(rules: RuleSet, file: str, test: Expectation) -> Outcome:
    path = path_bytes(test.path)
    return Outcome(
        file, test.number, test.path, _differences(test, rules.name(path)), rules.rule_of(path)
    )


def _differences(test: Expectation, name: SoftwareName | None) -> list[str]:
    if test.undetermined:
        return [] if name is None else [f"expected no name, got {_shown(name)}"]
    if name is None:
        return ["expected a name, but no rule matches"]
    given: dict[str, str | bool] = {
        "software": name.software,
        "version": name.version,
        "versionstr": name.local_version,
        "user_provided": name.user_provided,
        "ignore": name.ignored,
    }
    return [
        f"{key}: expected {_text(expected)}, got {_text(given[key])}"
        for key, expected in test.expected.items()
        if given[key] != expected
    ]


def _shown(name: SoftwareName) -> str:
    return " ".join(_text(text) for text in (name.software, name.version, name.local_version))


def _text(value: str | bool) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower()
