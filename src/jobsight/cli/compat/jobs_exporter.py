"""``jobs_exporter``: the series of this node's jobs for Prometheus, in place of petricore's.

argparse and not typer: this runs on every compute node, where memory counts.
"""

from __future__ import annotations

import argparse
import getpass
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from jobsight import __version__
from jobsight.cli.agent import job_query, sampler_plans, watcher_of
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import RemoteWriteSettings, Settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.util.logging import start_logging
from jobsight.util.service import stopping_on_signals

#: Where petricore's exporter pushes to.
GATEWAY = "http://localhost:9091"
_FORMAT = "%(asctime)s %(name)s:%(levelname)s %(message)s"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="jobs_exporter",
        description="Offer the series of the jobs of this node to Prometheus.",
        allow_abbrev=False,
    )
    made.add_argument(
        "-t", "--timer", metavar="SECONDS", default="15", help="seconds between two samples (15)"
    )
    made.add_argument(
        "-b",
        "--blacklist",
        metavar="FILE",
        help="users whose jobs are left alone: a uid or a name a line",
    )
    made.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        help="answer /metrics there, instead of pushing",
    )
    made.add_argument(
        "--push",
        metavar="URL",
        help=f"push to this Pushgateway (default: {GATEWAY}, unless there is --listen)",
    )
    made.add_argument("--config", metavar="FILE", help="settings: TOML or YAML")
    made.add_argument(
        "--hash-password",
        action="store_true",
        help="ask for a password, print its hash for the settings, and exit",
    )
    made.add_argument("--version", action="version", version=f"jobsight {__version__}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's entry; errors are one line."""
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
    timer = parse_timer(options.timer)
    start_logging(None, "WARNING", _FORMAT, stderr=True)
    trim = return_free_memory()
    exporter = ExporterService(settings.agent, wait_for_address=False)
    agent = Agent(
        cluster=settings.cluster,
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
    """The settings, with what was said on the command line in its place."""
    settings = load_settings(Path(options.config) if options.config else None)
    metrics, push = settings.agent.metrics, settings.agent.push
    # Without options it does as petricore's: it pushes to the gateway of its node.
    metrics = msgspec.structs.replace(metrics, listen=options.listen or "")
    url = options.push or push.url or (GATEWAY if options.listen is None else None)
    push = msgspec.structs.replace(push, url=url)
    ignored = list(settings.agent.ignore_uids)
    if options.blacklist is not None:
        ignored += read_blacklist(Path(options.blacklist))
    agent = msgspec.structs.replace(
        settings.agent,
        metrics=metrics,
        push=push,
        ignore_uids=ignored,
        # It is made from the batches of a spool, which is the agent's.
        remote_write=RemoteWriteSettings(),
    )
    return msgspec.structs.replace(settings, agent=agent)


def parse_timer(text: str) -> float:
    try:
        seconds = float(text)
        if not 0.1 <= seconds <= 86400:
            raise ValueError
    except ValueError:
        raise ConfigError(f"--timer: {text!r} is not a number of seconds from 0.1 on") from None
    return seconds


def read_blacklist(file: Path) -> list[int]:
    """The uids of a file: one a line, a number (petricore's way) or a name; # begins a remark."""
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
                "right would be a uid or the name of a user"
            ) from None
    return uids


if __name__ == "__main__":
    sys.exit(main())
