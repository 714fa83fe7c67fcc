"""A small rule file that tests vary."""

from __future__ import annotations

import textwrap
from pathlib import Path

from jobsight.findings.engine import RuleSet
from jobsight.findings.rule_file import parse_rules
from jobsight.findings.units import Value
from jobsight.findings.vocabulary import FigureSet

RULE = """
rules:
  - name: site-idle
    title: CPUs were idle
    severity: warning
    parameters:
      low: 40 %
      floor: 50 core h
    condition: "cpu.share < low && cpu.idle > floor"
    text: "{cpu.share} was used"
"""
#: Figures for which the rule fires.
FIRES: dict[str, Value] = {
    "run.elapsed": 36_000.0,
    "cpu.share": 0.1,
    "cpu.idle": 360_000.0,
    "cpu.cores": 16.0,
}


def rules(*texts: str, **minimum: float) -> RuleSet:
    """The rules of texts, each a file ``N.yaml``."""
    files = [
        parse_rules(f"{number}.yaml", textwrap.dedent(text)) for number, text in enumerate(texts, 1)
    ]
    return RuleSet(files, **minimum)


def with_lines(*lines: str) -> str:
    """The rule with more keys."""
    return RULE + "".join(f"    {line}\n" for line in lines)


def figures(**changes: Value | None) -> FigureSet:
    """Figures for which the rule fires, with changes; __ is a dot, None is not known."""
    made = FigureSet()
    for name, value in FIRES.items():
        made.set(name, value)
    for name, value in changes.items():
        name = name.replace("__", ".")
        made.values.pop(name, None)
        made.set(name, value)
    return made


def write(directory: Path, text: str, name: str = "site.yaml") -> Path:
    file = directory / name
    file.write_text(textwrap.dedent(text))
    return file
