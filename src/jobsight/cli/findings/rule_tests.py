"""``jobsight findings test``: the tests in rule files."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobsight.cli.arguments import CommandParser, add_config_option, add_json_option
from jobsight.cli.output import write_json
from jobsight.config.load import load_settings


def try_rules(*, files: list[Path] | None, shipped: bool, json: bool, config: str | None) -> int:
    """Check rule files and run the tests in them.

    Prints the file and line of each test whose outcome differs, and the rules that lack a test.
    Without rule files in arguments and settings, the tests of the shipped rules are run. The exit
    code is 1 if a test fails, 2 if a file is invalid.
    """
    if not files:
        files = [Path(file).expanduser() for file in load_settings(config).findings.rules]
    # Imported here: it loads CEL.
    from jobsight.findings.rule_tests import run_tests

    done = run_tests(files, shipped=shipped)
    if json:
        write_json(done)
        return 1 if done.failed else 0
    for line in done.untested:
        print(line)
    for result in done.failed:
        print(result)
    print(f"{len(done.outcomes):,} tests, {len(done.failed):,} of them fail")
    return 1 if done.failed else 0


def add_test_options(parser: CommandParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="Rule files (default: those of the settings)",
    )
    parser.add_argument(
        "--shipped",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Load the shipped rules as well",
    )
    add_json_option(parser)
    add_config_option(parser)
