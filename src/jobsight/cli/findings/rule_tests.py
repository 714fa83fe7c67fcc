"""``jobsight findings test``: the tests in rule files."""

from __future__ import annotations

from pathlib import Path

from jobsight.cli.arguments import CommandParser
from jobsight.cli.rule_tests import add_rule_options, chosen_files, report_tests
from jobsight.config.load import load_settings


def try_rules(*, files: list[Path] | None, shipped: bool, json: bool, config: str | None) -> int:
    """Check rule files and run the tests in them.

    Prints the file and line of each test whose outcome differs, and the rules that lack a test.
    Without rule files in arguments and settings, the tests of the shipped rules are run. The exit
    code is 1 if a test fails, 2 if a file is invalid.
    """
    # Imported here: it loads CEL.
    from jobsight.findings.rule_tests import run_tests

    done = run_tests(chosen_files(files, load_settings(config).findings.rules), shipped=shipped)
    return report_tests(done.outcomes, json=done if json else None, before=done.untested)


def add_test_options(parser: CommandParser) -> None:
    add_rule_options(parser, "--shipped", "Load the shipped rules as well")
