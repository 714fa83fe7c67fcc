"""The rules that turn the path of an executable into the name of a software.

The first rule that matches wins. All rules are asked at once: RE2 follows them together through the
path, so that a thousand of them cost little more than one.

Many patterns, followed at once through a path: which is the first that matches it.

The tests that a site writes beside its rules, and where they differ from what the rules say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import re2

from jobsight.agent.processes.executables import SEPARATOR
from jobsight.software.regex import Pattern, group_bytes, is_text, options
from jobsight.software.rule_file import (
    TEXTS,
    Expectation,
    Rewrite,
    Rule,
    RuleFile,
    bounded,
    harmless,
    read_rules,
)
from jobsight.text import path_bytes, readable_path

#: Grows when the same rules give other names than before.
_EDITION: Final = 1
#: Names whose rewritten form is kept at hand.
_REMEMBERED: Final = 4096
_READY: Final = Path(__file__).parent / "ready"


class SoftwareName(msgspec.Struct, frozen=True):
    """What a path is called. Texts may hold ``%(user)s`` and ``%(project)s``; see
    :func:`jobsight.software.rule_file.fill_run`."""

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
        #: Another one means that paths may have other names.
        self.digest = sha256(msgspec.json.encode(source, order="deterministic")).hexdigest()
        self._rules = [(rule, place) for place, file in enumerate(files) for rule in file.rules]
        patterns = {number: rule.pattern for number, (rule, _) in enumerate(self._rules)}
        self._matching = RegexSet(patterns)
        self._scripts = RegexSet(
            {number: one for number, one in patterns.items() if SEPARATOR.decode() in one.text}
        )
        # What a site rewrites holds for the names of the ready rules, too, and never the other way
        # round.
        site = [file for file in files if not file.ready]
        self._rewriting = [[file, *site] if file.ready else [file] for file in files]
        # A program of a thousand parts has one name: most names were rewritten before.
        self._rewrite = lru_cache(_REMEMBERED)(self._rewritten)

    @classmethod
    def load(cls, files: Sequence[Path], *, ready: bool = False) -> RuleSet:
        """The rules of files, the first file first, and the ready ones after them if wanted."""
        return cls([*map(read_rules, files), *(_ready_files() if ready else ())])

    @classmethod
    def ready(cls) -> RuleSet:
        """The rules for layouts that many sites have."""
        return cls(_ready_files())

    def name(self, path: bytes) -> SoftwareName | None:
        """What the rules call a path; nothing where no rule knows it."""
        found = self._find(path)
        if found is None:
            return None
        number, asked, text = found
        rule, place = self._rules[number]
        software, version, local = self._rewrite(place, *_texts(rule, asked, text))
        return SoftwareName(software, version, local, rule.user_provided, rule.ignore)

    def rule_of(self, path: bytes) -> tuple[str, int] | None:
        """The file and the number in it of the rule that names a path."""
        found = self._find(path)
        if found is None:
            return None
        number = found[0]
        place = self._rules[number][1]
        return self.files[place].name, number + 1 - sum(len(f.rules) for f in self.files[:place])

    def _find(self, path: bytes) -> tuple[int, bytes, bool] | None:
        """The rule that names a path, what of the path it is asked for, and whether that is text.

        An interpreter with its script goes by the rules that have the separator in them; without
        one of these, it is an interpreter as any other.
        """
        executable, separator, _ = path.partition(SEPARATOR)
        if separator:
            text = is_text(path)
            number = self._scripts.first(path, text)
            if number is not None:
                return number, path, text
        text = is_text(executable)
        number = self._matching.first(executable, text)
        return None if number is None else (number, executable, text)

    def _rewritten(self, place: int, *texts: str) -> tuple[str, ...]:
        values = dict(zip(TEXTS, texts, strict=True))
        for file in self._rewriting[place]:
            _rewrite(file, values)
        return tuple(bounded(values[key]) for key in TEXTS)


def _texts(rule: Rule, path: bytes, text: bool) -> list[str]:
    found = rule.pattern.match(path, text)
    assert found is not None
    values = {
        name: harmless(readable_path(group_bytes(found.group(number))))
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
        found = pattern.match(texts[key].encode("utf-8", "surrogatepass"), True)
        if found is None:
            return False
        for name, number in pattern.groups.items():
            values[name] = group_bytes(found.group(number)).decode("utf-8", "replace")
    for key, template in rewrite.updates.items():
        texts[key] = template.fill(values)
    return True


def _ready_files() -> list[RuleFile]:
    return [read_rules(file, ready=True) for file in sorted(_READY.glob("*.yaml"))]


#: Bytes that RE2 may take to follow all patterns at once.
MEMORY: Final = 64 * 2**20
#: RE2 had not the memory to follow them.
_FAILED: Final = -1


class RegexSet:
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


class Outcome(msgspec.Struct, frozen=True):
    """One test, and each difference as a sentence; none where it holds."""

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
    """Run the tests of rule files, the rules of all of them together as they are used.

    With ``ready`` the ready rules come after those of the files, as the server asks them; without
    files their own tests are run.
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
        f"{key}: expected {_text(wanted)}, got {_text(given[key])}"
        for key, wanted in test.expected.items()
        if given[key] != wanted
    ]


def _shown(name: SoftwareName) -> str:
    return " ".join(_text(text) for text in (name.software, name.version, name.local_version))


def _text(value: str | bool) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower()
