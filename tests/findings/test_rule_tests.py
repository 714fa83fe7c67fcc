"""The tests in rule files, and the command that runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jobsight.cli.main import main
from jobsight.findings.engine import shipped_files
from jobsight.findings.rule_file import parse_rules
from jobsight.findings.rule_tests import run_tests
from tests.findings.rule_texts import with_lines, write

TESTS = """\
tests:
      - figures: {run.elapsed: 2 h, cpu.share: 10 %, cpu.idle: 100 core h}
        outcome: fired
        severity: warning
        text: 10 % was used
      - figures: {run.elapsed: 2 h, cpu.share: 90 %, cpu.idle: 100 core h}
        outcome: not fired
      - figures: {run.elapsed: 2 h}
        unknown: {cpu: nothing was measured}
        outcome: withheld"""


def test_the_shipped_rules_pass_and_have_both_kinds_of_tests() -> None:
    done = run_tests([])
    assert [str(each) for each in done.failed] == []
    assert done.untested == []
    assert done.outcomes


def test_a_file_whose_tests_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["findings", "test", str(write(tmp_path, with_lines(TESTS)))]) == 0
    assert capsys.readouterr().out == "3 tests, 0 of them fail\n"


def test_failures_are_listed_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = TESTS.replace("cpu.share: 90 %", "cpu.share: 9 %").replace("text: 10 %", "text: 11 %")
    file = write(tmp_path, with_lines(wrong, "cost: {core_time: cpu.idle}"))
    assert main(["findings", "test", str(file)]) == 1
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        f"{file}:12: rule site-idle: text: expected '11 % was used', got '10 % was used'"
    )
    assert second.startswith(f"{file}:16: rule site-idle: expected not fired, got fired with cpu.")
    assert rest == ["3 tests, 2 of them fail"]


def test_a_wrong_cost_is_a_failure(tmp_path: Path) -> None:
    tests = TESTS.replace("severity: warning", "cost: {core_time: 99 core h, energy: 1 kWh}")
    (failed,) = run_tests(
        [write(tmp_path, with_lines(tests, "cost: {core_time: cpu.idle}"))]
    ).failed
    assert failed.differences == [
        "core_hours: expected 99, got 100",
        "energy_kwh: expected 1, got nothing",
    ]


def test_a_rule_without_tests_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, with_lines())
    assert main(["findings", "test", str(file), "--no-shipped"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file}:3: rule site-idle: has no test in which it fires",
        f"{file}:3: rule site-idle: has no test in which it does not fire",
        "0 tests, 0 of them fail",
    ]


def test_an_invalid_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, with_lines("hepl: x"))
    assert main(["findings", "test", str(file)]) == 2
    error = capsys.readouterr().err
    assert error == f"jobsight: {file}:11: rule site-idle: unknown key 'hepl'; did you mean help?\n"


def test_files_of_the_settings_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, with_lines(TESTS))
    config = write(tmp_path, f"findings: {{rules: ['{file}']}}", "jobsight.yaml")
    assert main(["findings", "test", "--json", "--config", str(config)]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [each["line"] for each in done["outcomes"]] == [12, 16, 18]


def test_a_shipped_file_can_be_tested_by_its_path() -> None:
    file = shipped_files()[0]
    done = run_tests([file])
    assert done.outcomes
    assert {each.file for each in done.outcomes} == {file.name}


def test_the_examples_of_the_document_hold(tmp_path: Path) -> None:
    text = Path(__file__).parents[2].joinpath("docs", "findings-rules.md").read_text()
    first, second = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    rule = "\n".join(line for line in first.splitlines() if "explains:" not in line)
    done = run_tests([write(tmp_path, rule)], shipped=False)
    assert len(done.outcomes) == 2
    assert done.failed == []
    assert done.untested == []
    assert len(parse_rules("second.yaml", second).adjustments) == 3
