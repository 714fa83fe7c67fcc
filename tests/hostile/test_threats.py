"""The table of threats in docs/security.md: every number once, and no test that does not exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LAST = 30
_ROW = re.compile(r"^\| (S-\d\d) \| ([^|]*) \| (.*) \| ([^|]*) \| ?([^|]*) ?\|$", re.MULTILINE)
_TEST = re.compile(r"`([^`]+)`")

ROWS = _ROW.findall((ROOT / "docs" / "security.md").read_text())


def test_every_threat_has_one_line_in_order() -> None:
    assert [row[0] for row in ROWS] == [f"S-{number:02}" for number in range(1, LAST + 1)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_line_is_open_or_names_tests_that_exist(row: tuple[str, ...]) -> None:
    _, attacker, attempt, defence, tests = row
    assert attacker
    assert attempt
    named = _TEST.findall(tests)
    assert bool(named) != defence.startswith("open"), row
    for node in named:
        file, _, name = node.partition("::")
        text = (ROOT / file).read_text()
        # A file of the plugin's tests in C has no Python name.
        assert not name or f"def {name.partition('[')[0]}(" in text, f"{node} does not exist"


def test_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    model = text.partition("## Threat model")[2].partition("\n## ")[0]
    rows = [line for line in model.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) == 5
    for row in rows:
        named = [node for node in _TEST.findall(row) if node.startswith("tests/")]
        assert named, row
        for node in named:
            file, _, name = node.partition("::")
            assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{node} does not exist"
            assert (ROOT / file).exists(), f"{node} does not exist"
