"""The argument parser of the compatible commands: their own options in jobsight's style of help."""

from __future__ import annotations

import argparse

from jobsight import __version__
from jobsight.cli.arguments import HelpFormatter


def command_parser(program: str, description: str) -> argparse.ArgumentParser:
    """A parser with ``--help`` and ``--version``; usage errors are those of argparse."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="help", help="Show this help")
    parser.add_argument(
        "--version", action="version", version=f"jobsight {__version__}", help="Show the version"
    )
    return parser
