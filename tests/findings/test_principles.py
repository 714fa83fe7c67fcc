"""What every shipped rule keeps: a share and a cost, a line to change, and numbers of the site."""

from __future__ import annotations

from pathlib import Path

import pytest

import jobsight.findings
from jobsight.findings.rule_file import Rule, read_rules

FILES = sorted((Path(jobsight.findings.__file__).parent / "rules").glob("*.yaml"))
RULES = {rule.name: rule for file in FILES for rule in read_rules(file, shipped=True).rules}
#: One of them is one too many: there is no amount below which they do not matter.
EVENTS = {"out-of-memory", "gpu-errors"}
#: Time that is requested and not used is not lost; the finding gives the wait of a shorter request.
WITHOUT_COST = {"time-request-unused"}


@pytest.fixture(params=sorted(RULES))
def rule(request: pytest.FixtureRequest) -> Rule:
    return RULES[request.param]


def test_a_finding_has_a_cost_and_a_floor_that_a_site_sets(rule: Rule) -> None:
    assert bool(rule.cost) == (rule.name not in WITHOUT_COST)
    assert ("floor" in rule.parameters) == (rule.name not in EVENTS)


def test_a_finding_ends_in_a_line_to_change_and_has_a_page(rule: Rule) -> None:
    assert rule.change
    assert rule.help.strip()


def test_one_run_triggers_it_and_another_does_not(rule: Rule) -> None:
    outcomes = {test.outcome for test in rule.tests}
    assert "fired" in outcomes
    assert outcomes - {"fired"}


def test_no_rule_depends_on_a_name(rule: Rule) -> None:
    """Shapes come from the scheduler, and what is intended from evidence, never from a name."""
    expressions = [rule.condition, *(excuse for excuse, _ in rule.excuses)]
    if rule.requires is not None:
        expressions.append(rule.requires)
    used = {figure for expression in expressions for figure in expression.figures}
    assert used
    assert not used & {"run.name", "run.partition", "run.user", "run.account", "run.submit_line"}
