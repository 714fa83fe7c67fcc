"""``sams-aggregator.py``: the records that came in, into the store; for cron, as SAMS has it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from jobsight.cli.compat.common import common_parser, default_config, run_on_store
from jobsight.sams.inbox import Inbox
from jobsight.sams.reader import Fallback, Reader
from jobsight.sams.reader_process import NEW_OBJECTS, ReaderProcess
from jobsight.sams.settings import AggregatorSettings, LoaderSettings, load_aggregator
from jobsight.util.locks import LockFile
from jobsight.util.memory import collect_rarely

logger = logging.getLogger("jobsight.sams")

PROGRAM: Final = "sams-aggregator"


def parser() -> argparse.ArgumentParser:
    return common_parser(PROGRAM, "Book SAMS records into the store.", needs_config=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's entry; errors are one line."""
    return run_on_store(
        PROGRAM,
        parser().parse_args(arguments),
        lambda file: load_aggregator(file or default_config(PROGRAM)),
        lambda options, settings: aggregate(settings),
    )


def aggregate(settings: AggregatorSettings) -> int:
    """Book what waits for each loader, one after the other."""
    for sentence in settings.notes:
        logger.info("%s", sentence)
    inboxes = [Inbox(loader) for loader in settings.loaders]
    with ExitStack() as stack:
        for lock in dict.fromkeys(inbox.lock for inbox in inboxes):
            stack.callback(LockFile(lock, f"an aggregator of {lock.parent}").close)
        # All of them before the store is imported: it has threads, which a fork would lose.
        remotes = [
            stack.enter_context(ReaderProcess(_reader(settings, loader, inbox)))
            for loader, inbox in zip(settings.loaders, inboxes, strict=True)
        ]
        remotes[0].start()
        from jobsight.sams.aggregator import Aggregator
        from jobsight.store.write.intake import Intake

        collect_rarely(NEW_OBJECTS)
        aggregator = Aggregator(stack.enter_context(Intake.open(settings.store)), settings.cluster)
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
