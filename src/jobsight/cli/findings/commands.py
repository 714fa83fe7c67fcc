"""``jobsight findings``: what went wrong, what it cost, and the line to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobsight.cli.arguments import CommandParser, Subcommand, run_group
from jobsight.cli.findings.effect import add_effect_options, effect
from jobsight.cli.findings.help import add_help_options, explain_kinds
from jobsight.cli.findings.listing import (
    add_list_options,
    add_summary_options,
    list_,
    summary,
)
from jobsight.cli.findings.replies import ack, add_reply_options, not_helpful, reopen
from jobsight.cli.findings.update import add_update_options, update
from jobsight.cli.rule_tests import add_rule_options, chosen_files, report_tests
from jobsight.config.load import load_settings

_DESCRIPTION = "List findings, reply to them, and test and apply the rules that make them."


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


COMMANDS = {
    "list": Subcommand(list_, add_list_options),
    "summary": Subcommand(summary, add_summary_options),
    "ack": Subcommand(ack, add_reply_options),
    "not-helpful": Subcommand(not_helpful, add_reply_options),
    "reopen": Subcommand(reopen, add_reply_options),
    "update": Subcommand(update, add_update_options),
    "test": Subcommand(try_rules, add_test_options),
    "effect": Subcommand(effect, add_effect_options),
    "help": Subcommand(explain_kinds, add_help_options),
}


#: For the completion of shells.
SUBCOMMANDS = tuple(COMMANDS)


def main(arguments: Sequence[str]) -> int:
    given = list(arguments)
    # Without a subcommand it is a list: `jobsight findings --user anna`.
    if not given or (given[0].startswith("-") and given[0] not in ("-h", "--help")):
        given.insert(0, "list")
    return run_group(COMMANDS, "findings", _DESCRIPTION, given)
