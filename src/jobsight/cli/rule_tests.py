"""The two commands that run the tests in rule files: of software names and of findings."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from jobsight.cli.arguments import CommandParser, add_config_option, add_json_option
from jobsight.cli.output import write_json


class Outcome(Protocol):
    """The result of one test; ``differences`` is empty if it passed."""

    @property
    def differences(self) -> Sequence[str]: ...


def report_tests(
    outcomes: Sequence[Outcome], *, json: object = None, before: Iterable[str] = ()
) -> int:
    """Print ``json`` if there is one, else the lines ``before`` and the tests that fail; returns
    the exit code, which is 1 if one fails."""
    failed = [outcome for outcome in outcomes if outcome.differences]
    if json is not None:
        write_json(json)
    else:
        for line in (*before, *failed):
            print(line)
        print(f"{len(outcomes):,} tests, {len(failed):,} of them fail")
    return 1 if failed else 0


def chosen_files(files: list[Path] | None, settings: Sequence[str]) -> list[Path]:
    """The rule files of the arguments, else those of the settings."""
    return files or [Path(file).expanduser() for file in settings]


def add_rule_options(parser: CommandParser, flag: str, help: str) -> None:
    """The rule files, and a ``flag`` for the rules that come with jobsight."""
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="Rule files (default: those of the settings)",
    )
    parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=True, help=help)
    add_json_option(parser)
    add_config_option(parser)
