"""``jobs_exporter``: petricore's exporter, the metrics of this node's jobs for Prometheus."""

from __future__ import annotations

import argparse
import getpass
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from jobsight.cli.agent import job_query, sampler_plans, watcher_of
from jobsight.cli.compat.parser import command_parser
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import RemoteWriteSettings, Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.util.logging import configure_logging
from jobsight.util.service import stopping_on_signals

#: The default target of petricore's exporter.
GATEWAY = "http://localhost:9091"
DEFAULT_TIMER = 15.0
_FORMAT = "%(asctime)s %(name)s:%(levelname)s %(message)s"


def parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "jobs_exporter", "Export the metrics of this node's jobs to Prometheus."
    )
    parser.add_argument(
        "-t",
        "--timer",
        metavar="SECONDS",
        help=f"Seconds between two samples, and between two pushes (default: {DEFAULT_TIMER:g})",
    )
    parser.add_argument(
        "-b",
        "--blacklist",
        metavar="FILE",
        help="Users whose jobs are not measured: a uid or a name per line",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        help="Serve /metrics at this address instead of pushing",
    )
    parser.add_argument(
        "--push",
        metavar="URL",
        help=f"URL of the Pushgateway (default: {GATEWAY}, unless --listen is given)",
    )
    parser.add_argument("--config", metavar="FILE", help="Settings file (TOML or YAML)")
    parser.add_argument(
        "--hash-password",
        action="store_true",
        help="Read a password, print its hash for the settings, and exit",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    options = parser().parse_args(arguments)
    try:
        return _hash_password() if options.hash_password else _run(options)
    except JobsightError as error:
        print(f"jobs_exporter: {error}", file=sys.stderr)
        return error.exit_code


def _hash_password() -> int:
    from jobsight.agent.exporter.passwords import hash_password

    given = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not given:
        raise ConfigError("--hash-password: no password was given")
    print(hash_password(given))
    return 0


def _run(options: argparse.Namespace) -> int:
    from jobsight.agent.agent import Agent
    from jobsight.agent.exporter.service import ExporterService
    from jobsight.util.memory import return_free_memory

    settings = settings_of(options)
    timer = DEFAULT_TIMER if options.timer is None else parse_timer(options.timer)
    configure_logging("WARNING", pattern=_FORMAT)
    trim = return_free_memory()
    exporter = ExporterService(settings.agent, wait_for_address=False)
    agent = Agent(
        cluster=settings.own_cluster(),
        node=settings.agent.node,
        spool=None,
        samplers=exporter.plans(sampler_plans(settings.agent.samplers)),
        only_this_node=settings.agent.only_this_node,
        watcher=watcher_of(settings),
        ignore_uids=settings.agent.ignore_uids,
        intervals=((None, timer),),
        run_directory=paths.private_directory(Path(settings.agent.run_directory) / "exporter"),
        query_jobs=job_query(settings, settings.agent.node),
    )
    agent.collector.every(60.0, trim)
    with stopping_on_signals(agent.stop):
        exporter.start(agent)
        try:
            agent.run()
        finally:
            exporter.close()
    return 0


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings, with the values of the command line."""
    settings = load_settings(Path(options.config) if options.config else None)
    metrics, push = settings.agent.metrics, settings.agent.push
    # Like petricore's exporter, it pushes to the gateway of its node by default.
    metrics = msgspec.structs.replace(metrics, listen=options.listen or "")
    url = options.push or push.url or (GATEWAY if options.listen is None else None)
    push = msgspec.structs.replace(push, url=url)
    if options.timer is not None:
        # petricore has one timer for both.
        push = msgspec.structs.replace(push, interval=parse_timer(options.timer))
    ignored = list(settings.agent.ignore_uids)
    if options.blacklist is not None:
        ignored += read_blacklist(Path(options.blacklist))
    agent = msgspec.structs.replace(
        settings.agent,
        metrics=metrics,
        push=push,
        ignore_uids=ignored,
        # Remote write reads the batches of the agent's spool, which the exporter does not have.
        remote_write=RemoteWriteSettings(),
    )
    return msgspec.structs.replace(settings, agent=agent)


def parse_timer(text: str) -> float:
    try:
        seconds = float(text)
        if not 0.1 <= seconds <= 86400:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--timer: {text!r} is not a number of seconds; expected 0.1 to 86400"
        ) from None
    return seconds


def read_blacklist(file: Path) -> list[int]:
    """The uids in a file: a number (as in petricore) or a name per line; # starts a comment."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--blacklist: {file} cannot be read: {reason}") from None
    uids = []
    for number, row in enumerate(lines, 1):
        word = row.partition("#")[0].strip()
        if not word:
            continue
        if word.isascii() and word.isdigit():
            uids.append(int(word))
            continue
        try:
            uids.append(pwd.getpwnam(word).pw_uid)
        except KeyError:
            raise ConfigError(
                f"--blacklist: {file} line {number}: there is no user {word!r}; "
                "expected a uid or a user name"
            ) from None
    return uids


if __name__ == "__main__":
    sys.exit(main())
