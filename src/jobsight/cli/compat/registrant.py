"""``sgas-sa-registrant``: sends exported records to accounting services; run by cron."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jobsight.cli.compat.parser import command_parser
from jobsight.errors import JobsightError
from jobsight.export.registrant import RegistrantSettings, load_registrant
from jobsight.util.locks import LockFile
from jobsight.util.logging import start_logging

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
    try:
        settings = load_registrant(options.config)
        _start_logging(options, settings)
        for sentence in settings.warnings:
            print(f"{PROGRAM}: warning: {sentence}", file=sys.stderr)
            logger.warning("%s", sentence)
        return _register(settings)
    except JobsightError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{PROGRAM}: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _start_logging(options: argparse.Namespace, settings: RegistrantSettings) -> None:
    level = "DEBUG" if options.debug else settings.loglevel
    if options.stdout:
        logging.basicConfig(stream=sys.stdout, format=_FORMAT, level=level, force=True)
    else:
        start_logging(options.log_file or settings.logfile, level, _FORMAT, stderr=False)


def _register(settings: RegistrantSettings) -> int:
    from jobsight.export.registrant import Registrant

    if not settings.directory.is_dir():
        raise JobsightError(f"log_dir: the directory {settings.directory} does not exist")
    lock = LockFile(
        settings.directory / ".registrant.lock", f"a registrant of {settings.directory}"
    )
    try:
        done = Registrant(settings).run()
    finally:
        lock.close()
    logger.info(
        "%d files sent, %d archived, %d old ones removed, %d left",
        done.sent, done.archived, done.removed, done.left,
    )  # fmt: skip
    return 1 if done.left or done.unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
