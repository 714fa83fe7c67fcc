"""The rules that turn the path of an executable into the name of a software.

The first rule that matches wins. All rules are asked at once: RE2 follows them together through the
path, so that a thousand of them cost little more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from jobsight.agent.processes.executables import SEPARATOR
from jobsight.software.matching import Matching
from jobsight.software.patterns import group_bytes, is_text
from jobsight.software.rule_file import TEXTS, Rewrite, Rule, RuleFile, read_rules
from jobsight.software.templates import bounded, harmless
from jobsight.text import readable_path

#: Grows when the same rules give other names than before.
_EDITION: Final = 1
#: Names whose rewritten form is kept at hand.
_REMEMBERED: Final = 4096
_READY: Final = Path(__file__).parent / "ready"


class SoftwareName(msgspec.Struct, frozen=True):
    """What a path is called. Texts may hold ``%(user)s`` and ``%(project)s``; see
    :func:`jobsight.software.templates.fill_run`."""

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
        self._matching = Matching(patterns)
        self._scripts = Matching(
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
