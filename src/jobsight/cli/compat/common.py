"""The common part of SAMS's server commands: options, settings, log, errors."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from jobsight.cli.compat.parser import command_parser
from jobsight.errors import JobsightError
from jobsight.sams.settings import LogSettings
from jobsight.util.logging import configure_logging, parse_level

logger = logging.getLogger(__name__)


class CompatSettings(Protocol):
    log: LogSettings
    warnings: list[str]


class StoreSettings(CompatSettings, Protocol):
    store: str


_Settings = TypeVar("_Settings", bound=CompatSettings)
_StoreSettings = TypeVar("_StoreSettings", bound=StoreSettings)


def common_parser(
    program: str, description: str, *, store: bool = True, needs_config: bool = False
) -> argparse.ArgumentParser:
    """A parser with the options of all commands."""
    parser = command_parser(program, description)
    default = str(default_config(program))
    if not needs_config:
        default += ", or jobsight's own settings"
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"Settings file of SAMS (default: {default})",
    )
    if store:
        parser.add_argument(
            "--store",
            metavar="PATH",
            help="SQLite file or URL of the store (default: from the settings)",
        )
    parser.add_argument("--logfile", metavar="FILE", help="Log to FILE")
    parser.add_argument(
        "--loglevel", metavar="LEVEL", help="Log level, CRITICAL to DEBUG (default: ERROR)"
    )
    return parser


def default_config(program: str) -> Path:
    return Path(f"/etc/sams/{program}.yaml")


def run_command(
    program: str,
    options: argparse.Namespace,
    load: Callable[[Path | None], _Settings],
    work: Callable[[argparse.Namespace, _Settings], int],
) -> int:
    """Read the settings, start logging and call ``work``; an error is printed as one line."""

    def run() -> int:
        file = options.config
        if file is None and default_config(program).exists():
            file = default_config(program)
        settings = load(file)
        level = parse_level("--loglevel", options.loglevel) if options.loglevel else None
        configure_logging(
            level or settings.log.level,
            file=options.logfile or settings.log.file,
            pattern=settings.log.format,
        )
        warn(program, settings.warnings)
        return work(options, settings)

    return exit_code(program, run)


def exit_code(program: str, run: Callable[[], int]) -> int:
    """The result of ``run``; an error is printed as one line and has the code of its kind."""
    try:
        return run()
    except JobsightError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{program}: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def run_on_store(
    program: str,
    options: argparse.Namespace,
    load: Callable[[Path | None], _StoreSettings],
    work: Callable[[argparse.Namespace, _StoreSettings], int],
) -> int:
    """Like :func:`run_command`, with the option ``--store``."""

    def loaded(file: Path | None) -> _StoreSettings:
        settings = load(file)
        if options.store:
            settings.store = options.store
        return settings

    return run_command(program, options, loaded, work)


def warn(program: str, sentences: list[str]) -> None:
    for sentence in sentences:
        print(f"{program}: warning: {sentence}", file=sys.stderr)
        logger.warning("%s", sentence)
