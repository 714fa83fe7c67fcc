"""Runs one typer function as a subcommand, with our errors and exit codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import typer

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings: TOML or YAML", show_default=False),
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="PATH", help="The store's file", show_default=False),
]


def run_typed(function: Callable[..., Any], name: str, arguments: Sequence[str]) -> int:
    """Parse the arguments for a function and call it; gives the exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    command = typer.main.get_command(app)
    try:
        result = command.main(list(arguments), prog_name=f"jobsight {name}", standalone_mode=False)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    return int(result or 0)
