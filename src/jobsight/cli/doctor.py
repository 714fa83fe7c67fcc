"""``jobsight doctor``: what this machine gives, and what will therefore be exact."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobsight.cli.typed import run_typed
from jobsight.doctor import Check, examine, summary

_MARKS = {"good": ("yes", "green"), "partly": ("part", "yellow"), "missing": ("no", "red")}
#: Without these a machine is not the worse.
_OPTIONAL = ("Slurm", "GPU")


def doctor(
    json: Annotated[bool, typer.Option("--json", help="The same as JSON")] = False,
) -> None:
    """Say what this machine lets us measure: what will be exact, polled or missing, and why."""
    checks = examine()
    if json:
        reply = {"checks": checks, "therefore": summary(checks)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(reply)).decode() + "\n")
        return
    console = Console(highlight=False)
    console.print(_table(checks))
    console.print("\nTherefore, for jobs on this machine:")
    for sentence in summary(checks):
        title, _, rest = sentence.partition(":")
        console.print(Text.assemble("  ", (title, "bold"), ":", rest))


def _table(checks: list[Check]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for check in checks:
        word, colour = _MARKS[check.verdict]
        if check.verdict == "missing" and check.name in _OPTIONAL:
            colour = "dim"
        table.add_row(
            Text(check.name, "bold"),
            Text(word, colour),
            Text.assemble(check.found, ("\n" + check.therefore, "dim")),
        )
    return table


def main(arguments: Sequence[str]) -> int:
    return run_typed(doctor, "doctor", arguments)
