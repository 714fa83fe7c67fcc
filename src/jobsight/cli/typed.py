"""Runs one typer function as a subcommand, with our errors and exit codes."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from jobsight.errors import ConfigError, JobsightError, StoreError

ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Settings: TOML or YAML", show_default=False),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="PATH", help="The store: a file or an address", show_default=False
    ),
]


def run_typed(
    function: Callable[..., Any],
    name: str,
    arguments: Sequence[str],
    *,
    takes_command: bool = False,
) -> int:
    """Parse the arguments for a function and call it; gives the exit code.

    Where the arguments are a command, what follows its first word belongs to the command.
    """
    code = 0
    caught: BaseException | None = None

    # typer has answers of its own to these errors; ours are given in one place, for all commands.
    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> None:
        nonlocal code, caught
        try:
            code = int(function(*positional, **named) or 0)
        except (JobsightError, KeyboardInterrupt, BrokenPipeError) as error:
            caught = error

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(context_settings={"allow_interspersed_args": not takes_command})(call)
    try:
        app(list(arguments), prog_name=f"jobsight {name}")
    except SystemExit as ended:
        # Wrong options and --help end here as well, with a code that is not the function's.
        if ended.code:
            return ended.code if isinstance(ended.code, int) else 1
    if caught is not None:
        raise caught
    return code


def run_group(
    functions: Mapping[str, Callable[..., Any]], name: str, about: str, arguments: Sequence[str]
) -> int:
    """Run one of several functions, by its name; without one, say which there are."""
    chosen = arguments[0] if arguments else ""
    if chosen in ("", "--help", "-h"):
        lines = [f"Usage: jobsight {name} COMMAND [OPTIONS]", "", f"  {about}", "", "Commands:"]
        width = max(8, *map(len, functions))
        for known, function in functions.items():
            first = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0]
            lines.append(f"  {known:<{width}} {' '.join(first.split()).rstrip('.')}")
        lines += ["", f"`jobsight {name} COMMAND --help` explains a command."]
        print("\n".join(lines))
        return 0 if chosen else 2
    if chosen not in functions:
        raise ConfigError(
            f"`jobsight {name}` has no command {chosen!r}; there are {', '.join(functions)}"
        )
    return run_typed(functions[chosen], f"{name} {chosen}", arguments[1:])


def existing_store(location: str) -> str:
    """The location, where there is a store: a wrong path must not become a new one."""
    if "://" not in location and not os.access(location, os.R_OK):
        raise StoreError(f"there is no store at {location} that may be read; see --store")
    return location
