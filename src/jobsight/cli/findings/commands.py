"""``jobsight findings``: findings about runs, and the rules that make them."""

from __future__ import annotations

from collections.abc import Sequence

from jobsight.cli.arguments import Subcommand, run_group
from jobsight.cli.findings.rule_tests import add_test_options, try_rules

_DESCRIPTION = "Show findings about runs, and manage the rules that make them."

COMMANDS = {
    "test": Subcommand(try_rules, add_test_options),
}


def main(arguments: Sequence[str]) -> int:
    return run_group(COMMANDS, "findings", _DESCRIPTION, arguments)
