"""The tests that a site writes beside its rules, and where they differ from what the rules say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from jobsight.software.rule_file import Expectation
from jobsight.software.rules import RuleSet, SoftwareName
from jobsight.text import path_bytes


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
