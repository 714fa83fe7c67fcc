"""The ``jobsight`` command itself.

The subcommand is found by its name before anything heavy is imported: an agent on a compute node
must not carry the libraries of the pages.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from jobsight import __version__
from jobsight.errors import JobsightError

_INTERRUPTED = 130
_USAGE = 2


class Command(NamedTuple):
    """Where a subcommand lives: a function that takes the arguments and gives an exit code."""

    target: str
    help: str


COMMANDS = {
    "run": Command("jobsight.cli.run:main", "Run any command as a job and report what it did"),
    "report": Command("jobsight.cli.report:main", "Report what a job asked for and used"),
    "serve": Command("jobsight.cli.serve:main", "Serve the pages and the API"),
    "demo": Command("jobsight.cli.demo:main", "Run four sample jobs and show their pages"),
    "agent": Command("jobsight.cli.agent:main", "Follow the jobs of this node"),
    "jobs": Command("jobsight.cli.jobs:main", "List jobs from the store"),
    "cluster": Command("jobsight.cli.cluster:main", "Show nodes, partitions and load at a glance"),
    "software": Command(
        "jobsight.cli.software.commands:main", "Report what ran, and name it by rules"
    ),
    "scrape": Command("jobsight.cli.scrape:main", "Bring what Slurm knows into the store"),
    "store": Command("jobsight.cli.store:main", "Look after the store: sizes, checks, backups"),
    "doctor": Command("jobsight.cli.doctor:main", "Say what this machine lets us measure"),
    "token": Command("jobsight.cli.token:main", "Make and revoke the tokens of agents"),
    "archive": Command(
        "jobsight.cli.archive:main", "Keep finished runs as Parquet files, and read them back"
    ),
    "import": Command(
        "jobsight.cli.import_:main", "Bring the databases of SAMS along, as often as you like"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; an error that a person can put right is one line, never a trace."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(given)
        # What a closed pipe refuses shows up here and not after the last line of Python.
        sys.stdout.flush()
        return code
    except JobsightError as error:
        print(f"jobsight: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone. The interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("--help", "-h", "help"):
        print(_usage())
        return 0 if given else _USAGE
    name, rest = given[0], given[1:]
    if name in ("--version", "-V"):
        print(f"jobsight {__version__}")
        return 0
    if name not in COMMANDS:
        raise _unknown(name)
    module_name, _, function = COMMANDS[name].target.partition(":")
    # Libraries start threads as they are imported (numpy does). A signal meant for us must not be
    # taken by one of those, and a thread begins with the mask of the one that started it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "jobsight":
            raise
        raise JobsightError(
            f"`jobsight {name}` needs the package {error.name}: "
            "install jobsight with its server parts, jobsight[server]"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return int(getattr(module, function)(rest) or 0)


def _unknown(name: str) -> JobsightError:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean `jobsight {near[0]}`?" if near else f"there are: {', '.join(COMMANDS)}"
    error = JobsightError(f"there is no command {name!r}; {hint}")
    error.exit_code = _USAGE
    return error


def _usage() -> str:
    lines = ["Usage: jobsight COMMAND [OPTIONS]", "", "What each job really did.", "", "Commands:"]
    lines += [f"  {name:<8} {command.help}" for name, command in COMMANDS.items()]
    lines += ["", "Options:", "  --version  Show the version", "  --help     Show this text"]
    lines += ["", "`jobsight COMMAND --help` explains a command."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
