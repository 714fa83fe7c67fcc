"""The tests in rule files: figures of a run, and what the rule must decide about it.

A rule is tested by itself, so that its tests do not change with other rules; only the outcome
``covered`` is decided together with the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from jobsight.findings.costs import cost_of
from jobsight.findings.engine import RuleSet, Selection, shipped_files
from jobsight.findings.finding import Cost, Verdict
from jobsight.findings.rule_file import Rule, RuleTest, read_rules
from jobsight.findings.vocabulary import FigureSet


class TestResult(msgspec.Struct, frozen=True):
    """The result of one test; ``differences`` is empty if it passed."""

    file: str
    line: int
    rule: str
    differences: list[str]

    def __str__(self) -> str:
        result = "; ".join(self.differences) or "as expected"
        return f"{self.file}:{self.line}: rule {self.rule}: {result}"


class TestRun(msgspec.Struct, frozen=True):
    """The results of all tests, and the rules that have too few of them."""

    outcomes: list[TestResult]
    #: Rules without a test that fires, or without one that does not, as FILE:LINE: sentence.
    untested: list[str]

    @property
    def failed(self) -> list[TestResult]:
        return [outcome for outcome in self.outcomes if outcome.differences]


def run_tests(files: Sequence[Path], *, shipped: bool = True) -> TestRun:
    """Run the tests of rule files; without files, those of the shipped rules.

    The rules of all files are loaded together with the shipped ones, as the server loads them.
    """
    ready = shipped_files() if shipped or not files else []
    given = {file.resolve() for file in files}
    own = {file.resolve() for file in ready}
    read = [read_rules(file, shipped=True) for file in ready]
    added = [read_rules(file) for file in files if file.resolve() not in own]
    rules = RuleSet([*read, *added])
    tested = added + [
        each for file, each in zip(ready, read, strict=True) if not files or file.resolve() in given
    ]
    outcomes = [
        TestResult(file.name, test.line, rule.name, _differences(rules, rule, test))
        for file in tested
        for rule in file.rules
        for test in rule.tests
    ]
    return TestRun(outcomes, [line for file in tested for r in file.rules for line in _lacks(r)])


def figures_of(test: RuleTest) -> FigureSet:
    """The figures of a test."""
    figures = FigureSet()
    for name, value in test.figures.items():
        figures.set(name, value)
    figures.unknown.update(test.unknown)
    figures.coverage.update(test.coverage)
    return figures


def _differences(rules: RuleSet, rule: Rule, test: RuleTest) -> list[str]:
    verdict = next(
        each
        for each in rules.judge(figures_of(test), Selection(*test.selection))
        if each.kind == rule.name
    )
    outcome = verdict.outcome
    if outcome == "covered" and test.outcome == "fired":
        outcome = "fired"
    if outcome != test.outcome:
        return [f"expected {test.outcome}, got {_described(verdict)}"]
    return [] if verdict.finding is None else list(_wrong_parts(test, verdict))


def _described(verdict: Verdict) -> str:
    if verdict.reason:
        return f"{verdict.outcome} because {verdict.reason}"
    figures = ", ".join(f"{name} {value}" for name, value in verdict.figures.items())
    return f"{verdict.outcome} with {figures}"


def _wrong_parts(test: RuleTest, verdict: Verdict) -> Iterator[str]:
    finding = verdict.finding
    assert finding is not None
    for key in ("severity", "text", "change"):
        expected, given = getattr(test, key), getattr(finding, key)
        if expected is not None and expected.strip() != given:
            yield f"{key}: expected {expected.strip()!r}, got {given!r}"
    expected_cost = cost_of(**test.cost)
    for name in Cost.__struct_fields__:
        wanted, cost = getattr(expected_cost, name), getattr(finding.cost, name)
        if wanted is not None and (cost is None or not math.isclose(wanted, cost, rel_tol=1e-6)):
            yield f"{name}: expected {wanted:g}, got {'nothing' if cost is None else f'{cost:g}'}"


def _lacks(rule: Rule) -> Iterator[str]:
    fired = [test.outcome == "fired" for test in rule.tests]
    for missing, word in ((True not in fired, "fires"), (False not in fired, "does not fire")):
        if missing:
            yield f"{rule.file}:{rule.line}: rule {rule.name}: has no test in which it {word}"
