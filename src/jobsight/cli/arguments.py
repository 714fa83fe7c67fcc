"""The command line of all commands: argparse with one style, and the shared options.

argparse and not a larger framework: a compute node has only the agent's packages, and the import
of typer alone took longer than `jobsight report` may take. A command is a function with named
parameters. Its ``main`` builds a :class:`CommandParser`, adds the options and calls
:meth:`CommandParser.run`, which passes the parsed options to the function by name.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from jobsight.errors import JobsightError, StoreError

LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
#: What logs: a command that ends by itself, a service, or a command that starts its log itself.
LogKind: TypeAlias = Literal["command", "service", "own"]

TextType = TypeVar("TextType", bound=str)
NumberType = TypeVar("NumberType", int, float)

#: Exit code of wrong arguments, as of a wrong setting.
USAGE_ERROR: Final = 2


class UsageError(JobsightError):
    """The arguments of a command are wrong."""

    exit_code = USAGE_ERROR


#: The parsers by the name of their command, while they are collected.
_collected: dict[str, CommandParser] | None = None


@contextmanager
def collected_parsers() -> Iterator[dict[str, CommandParser]]:
    """Collect the parsers of the commands whose ``main`` is called within; nothing is executed."""
    global _collected
    _collected = {}
    try:
        yield _collected
    finally:
        _collected = None


class CommandParser(argparse.ArgumentParser):
    """A parser in the style of all commands, whose errors are one sentence."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(
            prog=f"jobsight {name}" if name else "jobsight",
            description=description or "",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="help", help="Show this help")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")

    def run(
        self,
        function: Callable[..., Any],
        arguments: Sequence[str],
        *,
        log: Callable[[Mapping[str, Any]], LogKind] = lambda options: "command",
    ) -> int:
        """Parse the arguments, start the log and call the function; returns the exit code.

        ``log`` returns what the command is with these options. A function that starts its log
        itself gets the option ``log_level``, others do not.
        """
        _add_log_options(self)
        if _collected is not None:
            _collected[self.prog] = self
            return 0
        try:
            options = self.parse_args(list(arguments))
        except SystemExit as ended:
            # After --help.
            return ended.code if isinstance(ended.code, int) else 0
        given = vars(options)
        kind = log(given)
        if kind != "own":
            # Imported here: `jobsight mail` must start within a few hundredths of a second.
            from jobsight.cli.log import start_logging

            level = given.pop("log_level")
            start_logging(level, given.get("config"), service=kind == "service")
        return int(function(**given) or 0)


class HelpFormatter(argparse.HelpFormatter):
    """Keeps the paragraphs of a description and the width of 80 to 100 columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(
            textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent)
            for paragraph in paragraphs
        )


class Subcommand(NamedTuple):
    """A command of a group: its function and what adds its options to a parser."""

    function: Callable[..., Any]
    add_options: Callable[[CommandParser], None]


def run_group(
    commands: Mapping[str, Subcommand], name: str, description: str, arguments: Sequence[str]
) -> int:
    """Run one command of a group by its name; without a name, list the commands."""
    chosen = arguments[0] if arguments else ""
    if _collected is not None and not chosen:
        for key in commands:
            run_group(commands, name, description, [key])
        return 0
    if chosen in ("", "--help", "-h"):
        helps = {key: _first_sentence(each.function) for key, each in commands.items()}
        print(group_help(f"jobsight {name}", description, helps))
        return 0 if chosen else USAGE_ERROR
    if chosen not in commands:
        raise unknown_command(chosen, f"jobsight {name}", commands)
    command = commands[chosen]
    parser = CommandParser(f"{name} {chosen}", command.function.__doc__)
    command.add_options(parser)
    return parser.run(command.function, arguments[1:])


def group_help(prog: str, description: str, helps: Mapping[str, str]) -> str:
    """The help of a command that only has subcommands."""
    width = max(8, *map(len, helps))
    lines = [f"usage: {prog} COMMAND [OPTIONS]", "", description, "", "commands:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in helps.items()]
    return "\n".join([*lines, "", f"See `{prog} COMMAND --help` for the options of a command."])


def unknown_command(name: str, prog: str, names: Iterable[str]) -> UsageError:
    """The error about a command that does not exist, with the nearest that does."""
    import difflib

    known = list(names)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{prog} {near[0]}`?" if near else f"expected one of {', '.join(known)}"
    return UsageError(f"unknown command {name!r}; {hint}")


def add_config_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="Settings file (TOML or YAML)")


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """--store and --config, which every command on a store has."""
    parser.add_argument("--store", metavar="PATH", help="SQLite file or URL of the store")
    add_config_option(parser)


def _add_log_options(parser: argparse.ArgumentParser) -> None:
    """--log-level and -v, both stored as ``log_level``."""
    parser.add_argument(
        "--log-level",
        type=log_level,
        metavar="LEVEL",
        help=f"Least severe level to log: {', '.join(LOG_LEVELS)}",
    )
    parser.add_argument(
        "--verbose",
        "-v",
        dest="log_level",
        action="store_const",
        const="debug",
        help="Same as --log-level debug",
    )


def add_run_argument(
    parser: argparse.ArgumentParser, default: str = "the job of this shell"
) -> None:
    """The reference of one run, which may be left out."""
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help=f"12, 62_3, 88+1 or cluster:12:start (default: {default})",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON")


def add_limit_option(
    parser: argparse.ArgumentParser,
    default: int,
    what: str = "rows",
    *,
    most: int | None = None,
) -> None:
    parser.add_argument(
        "--limit",
        "-n",
        type=bounded_int(1, most),
        metavar="N",
        default=default,
        help=f"Maximum number of {what} (default: {default})",
    )


def add_since_option(
    parser: argparse.ArgumentParser, help: str, default: str | None = None
) -> None:
    """``help`` says what of the time is meant; the default is added."""
    note = f" (default: {default})" if default else ""
    metavar = "TIME" if default else "DATE"
    parser.add_argument("--since", "-S", metavar=metavar, default=default, help=f"{help}{note}")


def add_csv_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", action="store_true", help="Print CSV")


def bounded_int(least: int, most: int | None = None) -> Callable[[str], int]:
    """A type of argparse: an integer within bounds."""
    return _bounded(int, "an integer", least, most)


def bounded_float(least: float, most: float | None = None) -> Callable[[str], float]:
    """A type of argparse: a number within bounds."""
    return _bounded(float, "a number", least, most)


def one_of(values: Iterable[TextType]) -> Callable[[str], TextType]:
    """A type of argparse: one of these texts, or of the members of a StrEnum."""

    def parse(text: str) -> TextType:
        for value in values:
            if value == text:
                return value
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(values)}, got {text!r}")

    # For the completion of shells.
    parse.values = tuple(values)  # type: ignore[attr-defined]
    return parse


def log_level(text: str) -> str:
    """A type of argparse: a log level, in any case, as SAMS writes them in upper case."""
    return one_of(LOG_LEVELS)(text.lower())


# For the completion of shells.
log_level.values = LOG_LEVELS  # type: ignore[attr-defined]


def _bounded(
    kind: Callable[[str], NumberType], name: str, least: NumberType, most: NumberType | None
) -> Callable[[str], NumberType]:
    def parse(text: str) -> NumberType:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {name}, got {text!r}") from None
        # Not written as "outside": NaN is neither above nor below.
        if not (least <= value and (most is None or value <= most)):
            bounds = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
            raise argparse.ArgumentTypeError(f"expected {bounds}, got {value:g}")
        return value

    return parse


def _first_sentence(function: Callable[..., Any]) -> str:
    text = (function.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).rstrip(".")


def existing_store(location: str) -> str:
    """The location if a store exists there: a wrong path must not create a new store."""
    if "://" not in location and not os.access(location, os.R_OK):
        raise StoreError(f"there is no store at {location} that may be read; see --store")
    return location
