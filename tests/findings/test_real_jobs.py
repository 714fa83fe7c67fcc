"""What docs/findings.md says of the jobs of a real Slurm agrees with tests/slurm/cases.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobsight.findings.engine import RuleSet
from jobsight.findings.rule_file import read_rules
from tests.slurm.cases import CASES, RULES, RUNNING, TESTED

DOCUMENT = Path(__file__).parents[2] / "docs" / "findings.md"
SHIPPED = RuleSet.load().rules
#: Units of what a rule asks a run to cost.
COSTS = ("core time", "memory time")


def rows() -> list[tuple[set[str], str, str]]:
    """Kinds, what they are tested with, and why not by real jobs."""
    section = DOCUMENT.read_text().partition("## What the kinds are tested with\n")[2]
    section = section.partition("\n## ")[0]
    table = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return [
        (set(re.findall("`(.*?)`", kinds)), by.strip(), why.strip()) for kinds, by, why in table
    ]


def test_the_table_has_every_kind_once() -> None:
    listed = [kind for kinds, _, _ in rows() for kind in kinds]
    assert sorted(listed) == sorted(SHIPPED)


def test_the_table_says_which_kinds_real_jobs_have() -> None:
    said = {kind for kinds, by, _ in rows() for kind in kinds if by == "real jobs"}
    assert said == TESTED


def test_the_table_says_why_others_have_none() -> None:
    assert all(bool(why) == (by != "real jobs") for _, by, why in rows())


@pytest.mark.parametrize("kind", [kind for kind in SHIPPED if not kind.startswith("gpu-")])
def test_real_jobs_reach_what_each_rule_asks_for(kind: str, tmp_path: Path) -> None:
    """Silence says nothing of a rule that a job of seconds cannot reach."""
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    lowered = {
        name: each.value
        for adjustment in read_rules(file).adjustments
        if kind in adjustment.rules and adjustment.partitions is None
        for name, each in adjustment.parameters.items()
    }
    floors = {
        name: each.value
        for name, each in SHIPPED[kind].parameters.items()
        if each.unit in COSTS and name == "floor"
    }
    assert floors.keys() <= lowered.keys()
    for name, value in floors.items():
        assert lowered[name] < value


@pytest.mark.parametrize("partition", ["main", "wide", "phases"])
def test_jobs_that_behave_are_beside_those_that_misbehave(partition: str) -> None:
    def of(options: tuple[str, ...]) -> str:
        chosen = [each for each in options if each.startswith("--partition=")]
        return chosen[0].partition("=")[2] if chosen else "main"

    behaving = [case for case in CASES.values() if of(case.options) == partition]
    assert any(case.expected for case in behaving)
    assert sum(not case.expected for case in behaving) >= 2
    assert any(not each.before for each in RUNNING.values())
