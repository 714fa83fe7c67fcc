"""``sgas-sa-registrant``: sends exported records to accounting services; run by cron."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jobsight.cli.compat.common import exit_code, warn
from jobsight.cli.compat.parser import command_parser
from jobsight.errors import JobsightError
from jobsight.export.registrant import RegistrantSettings, load_registrant
from jobsight.util.locks import LockFile
from jobsight.util.logging import configure_logging

logger = logging.getLogger(__name__)

PROGRAM: Final = "sgas-sa-registrant"
DEFAULT_CONFIG: Final = "/etc/sams/sgas-sa-registrant.conf"
_FORMAT: Final = "%(asctime)s [%(levelname)s] %(message)s"


def parser() -> argparse.ArgumentParser:
    parser = command_parser(PROGRAM, "Send records to accounting services.")
    parser.add_argument(
        "-c", "--config", "--config-file", metavar="FILE", type=Path, default=DEFAULT_CONFIG,
        help=f"Settings file (default: {DEFAULT_CONFIG})",
    )  # fmt: skip
    parser.add_argument("-l", "--log-file", metavar="FILE", help="Log to FILE")
    parser.add_argument("-d", "--debug", action="store_true", help="Log at level DEBUG")
    parser.add_argument("-s", "--stdout", action="store_true", help="Log to standard output")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    options = parser().parse_args(arguments)
    return exit_code(PROGRAM, lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    settings = load_registrant(options.config)
    configure_logging(
        "DEBUG" if options.debug else settings.loglevel,
        file=None if options.stdout else options.log_file or settings.logfile,
        stream="stdout" if options.stdout else "none",
        pattern=_FORMAT,
    )
    warn(PROGRAM, settings.warnings)
    return _register(settings)


def _register(settings: RegistrantSettings) -> int:
    from jobsight.export.registrant import Registrant

    if not settings.directory.is_dir():
        raise JobsightError(f"log_dir: the directory {settings.directory} does not exist")
    owner = f"a registrant of {settings.directory}"
    with LockFile(settings.directory / ".registrant.lock", owner):
        done = Registrant(settings).run()
    logger.info(
        "%d files sent, %d archived, %d old ones removed, %d left",
        done.sent, done.archived, done.removed, done.left,
    )  # fmt: skip
    return 1 if done.left or done.unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
