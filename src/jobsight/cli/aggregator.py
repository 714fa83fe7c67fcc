"""``sams-aggregator.py``: the records that came in, into the store; for cron, as SAMS has it."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from jobsight import __version__
from jobsight.agent.seeds import parse_level
from jobsight.agent.service import LockFile, start_logging
from jobsight.errors import JobsightError
from jobsight.sams.fallback import Fallback
from jobsight.sams.loader import Inbox
from jobsight.sams.reader import Reader
from jobsight.sams.remote import RemoteReader
from jobsight.sams.settings import AggregatorSettings, LoaderSettings, load_aggregator

logger = logging.getLogger("jobsight.sams")

PROGRAM: Final = "sams-aggregator"
DEFAULT_CONFIG: Final = "/etc/sams/sams-aggregator.yaml"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Book SAMS records into the store.", allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=DEFAULT_CONFIG,
        help=f"settings as SAMS has them (default: {DEFAULT_CONFIG})",
    )
    parser.add_argument("--store", metavar="PATH", help="the store (default: as the settings say)")
    parser.add_argument("--logfile", metavar="FILE", help="log into FILE")
    parser.add_argument("--loglevel", metavar="LEVEL", help="CRITICAL to DEBUG (default: ERROR)")
    parser.add_argument("--version", action="version", version=f"jobsight {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's entry; errors are one line."""
    options = parser().parse_args(arguments)
    try:
        settings = load_aggregator(options.config)
        level = parse_level("--loglevel", options.loglevel) if options.loglevel else None
        start_logging(
            options.logfile or settings.log.file,
            level or settings.log.level,
            settings.log.format,
            stderr=True,
        )
        for sentence in settings.warnings:
            print(f"{PROGRAM}: warning: {sentence}", file=sys.stderr)
            logger.warning("%s", sentence)
        for sentence in settings.notes:
            logger.info("%s", sentence)
        if options.store:
            settings.store = options.store
        return aggregate(settings)
    except JobsightError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{PROGRAM}: {error.filename or ''}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def aggregate(settings: AggregatorSettings) -> int:
    """Book what waits for each loader, one after the other."""
    inboxes = [Inbox(loader) for loader in settings.loaders]
    with ExitStack() as stack:
        for lock in dict.fromkeys(inbox.lock for inbox in inboxes):
            stack.callback(LockFile(lock, f"an aggregator of {lock.parent}").close)
        # All of them before the store is imported: it has threads, which a fork would lose.
        remotes = [
            stack.enter_context(RemoteReader(_reader(settings, loader, inbox)))
            for loader, inbox in zip(settings.loaders, inboxes, strict=True)
        ]
        remotes[0].start()
        from jobsight.sams.aggregator import Aggregator
        from jobsight.store import Store

        # What was imported stays to the end; looking through it for each thousand records is waste.
        gc.freeze()
        aggregator = Aggregator(stack.enter_context(Store.open(settings.store)), settings.cluster)
        for loader, remote in zip(settings.loaders, remotes, strict=True):
            done = aggregator.run(remote, progress_line("records"))
            logger.info("%s: %d records booked, %d refused", loader.name, done.booked, done.refused)
    return 0


def _reader(settings: AggregatorSettings, loader: LoaderSettings, inbox: Inbox) -> Reader:
    return Reader(
        inbox,
        settings.cluster,
        fallback=(lambda: Fallback.by_sacct(loader, settings.cluster)) if loader.sacct else None,
        zone=loader.zone,
    )


def progress_line(what: str) -> Callable[[int, int], None]:
    """A line that counts up on a terminal, and nothing elsewhere."""

    def show(done: int, whole: int) -> None:
        end = "\n" if done == whole else ""
        print(f"\r{done:,} of {whole:,} {what}", end=end, file=sys.stderr, flush=True)

    return show if sys.stderr.isatty() else lambda done, whole: None


if __name__ == "__main__":
    sys.exit(main())
