"""The ``jobsight`` command.

Only the module of the chosen subcommand is imported: an agent on a compute node must not load the
libraries of the server.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from jobsight import __version__
from jobsight.cli.arguments import USAGE_ERROR, group_help, unknown_command
from jobsight.errors import JobsightError
from jobsight.util.signals import signals_blocked


class Command(NamedTuple):
    """A subcommand: the module whose ``main`` takes the arguments and returns the exit code."""

    module: str
    help: str


COMMANDS = {
    "run": Command("jobsight.cli.run", "Run a command as a job and report what it used"),
    "report": Command("jobsight.cli.report", "Report what a job requested and used"),
    "serve": Command("jobsight.cli.serve", "Serve the pages, the API and the ingest endpoint"),
    "demo": Command("jobsight.cli.demo", "Run four sample jobs and show their pages"),
    "agent": Command("jobsight.cli.agent", "Measure the jobs of this node"),
    "fit": Command("jobsight.cli.fit", "Show what would have fitted, from earlier runs"),
    "top": Command("jobsight.cli.top.commands", "Show what running jobs use now"),
    "jobs": Command("jobsight.cli.jobs", "List the jobs of the store"),
    "open": Command("jobsight.cli.open", "Print the address of a job's page, and show the page"),
    "findings": Command(
        "jobsight.cli.findings.commands", "List what went wrong in jobs, what it cost and the cure"
    ),
    "explain": Command("jobsight.cli.findings.explain", "Show what every rule says about a job"),
    "cluster": Command("jobsight.cli.cluster", "Show nodes, partitions and the queue"),
    "software": Command("jobsight.cli.software.commands", "Report software usage, manage rules"),
    "scrape": Command("jobsight.cli.scrape", "Copy jobs and nodes from Slurm to the store"),
    "store": Command("jobsight.cli.store", "Inspect, check, prune, back up and move the store"),
    "doctor": Command("jobsight.cli.doctor", "Check this machine and its connection to the server"),
    "setup": Command("jobsight.cli.setup", "Write the settings of a server or of a node"),
    "ca": Command("jobsight.cli.ca", "A small certificate authority for server and nodes"),
    "support-bundle": Command(
        "jobsight.cli.support_bundle", "Collect what a report of a problem needs, without secrets"
    ),
    "token": Command("jobsight.cli.token", "Create and revoke the tokens of agents and users"),
    "user": Command("jobsight.cli.user", "Create and change the accounts of people"),
    "login": Command("jobsight.cli.login", "Use a server with the token of a user"),
    "mail": Command("jobsight.cli.mail", "Queue a mail about a job, as Slurm's MailProg"),
    "slurmdb": Command(
        "jobsight.cli.slurmdb", "Set up a restricted view on Slurm's accounting database"
    ),
    "archive": Command("jobsight.cli.archive", "Write finished runs to Parquet files, and restore"),
    "simulate": Command("jobsight.cli.simulate", "Make up a site, or simulate agents"),
    "completion": Command("jobsight.cli.completion", "Print the completion script of a shell"),
    "import": Command("jobsight.cli.import_", "Import SAMS databases (idempotent)"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; an error that the user can correct is one line without a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(given)
        # A closed pipe is reported here and not after the last line of Python.
        sys.stdout.flush()
        return code
    except JobsightError as error:
        print(f"jobsight: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has exited. The interpreter would report the error again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("--help", "-h", "help"):
        print(_help())
        return 0 if given else USAGE_ERROR
    name, rest = given[0], given[1:]
    if name in ("--version", "-V"):
        print(f"jobsight {__version__}")
        return 0
    if name not in COMMANDS:
        raise unknown_command(name, "jobsight", COMMANDS)
    try:
        # Libraries start threads as they are imported (numpy does).
        with signals_blocked():
            module = importlib.import_module(COMMANDS[name].module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "jobsight":
            raise
        raise JobsightError(
            f"`jobsight {name}` needs the package {error.name}; "
            "install jobsight with its server packages, jobsight[server]"
        ) from None
    return int(module.main(rest) or 0)


def _help() -> str:
    helps = {name: command.help for name, command in COMMANDS.items()}
    options = "\noptions:\n  -h, --help     Show this help\n  -V, --version  Show the version"
    return f"{group_help('jobsight', 'Accounting and monitoring of Slurm jobs.', helps)}\n{options}"


if __name__ == "__main__":
    sys.exit(main())
