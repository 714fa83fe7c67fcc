"""``sams-aggregator.py``: stores incoming SAMS records; run by cron, as with SAMS."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from jobsight.cli.compat.common import common_parser, default_config, run_on_store
from jobsight.cli.output import progress_line
from jobsight.sams.inbox import Inbox
from jobsight.sams.settings import AggregatorSettings, LoaderSettings, load_aggregator
from jobsight.util.locks import LockFile
from jobsight.util.memory import collect_rarely

logger = logging.getLogger(__name__)

PROGRAM: Final = "sams-aggregator"
#: The objects of some ten groups of records.
_NEW_OBJECTS: Final = 100_000


def parser() -> argparse.ArgumentParser:
    return common_parser(PROGRAM, "Store SAMS records.", needs_config=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    return run_on_store(
        PROGRAM,
        parser().parse_args(arguments),
        lambda file: load_aggregator(file or default_config(PROGRAM)),
        lambda options, settings: aggregate(settings),
    )


def aggregate(settings: AggregatorSettings) -> int:
    """Store the waiting records of each loader."""
    from jobsight.sams.aggregator import Aggregator
    from jobsight.sams.reader import Fallback, Reader
    from jobsight.scheduler.state import cluster_of_records
    from jobsight.store.write.intake import Intake

    for sentence in settings.notes:
        logger.info("%s", sentence)
    inboxes = [Inbox(loader) for loader in settings.loaders]
    collect_rarely(_NEW_OBJECTS)

    def reader(loader: LoaderSettings, inbox: Inbox) -> Reader:
        fallback = (lambda: Fallback.by_sacct(loader, cluster)) if loader.sacct else None
        return Reader(inbox, cluster, fallback=fallback, zone=loader.zone)

    with ExitStack() as stack:
        for lock in dict.fromkeys(inbox.lock for inbox in inboxes):
            stack.callback(LockFile(lock, f"an aggregator of {lock.parent}").close)
        store = stack.enter_context(Intake.open(settings.store))
        cluster = settings.cluster or cluster_of_records(store.database, settings.own)
        aggregator = Aggregator(store, cluster)
        for loader, inbox in zip(settings.loaders, inboxes, strict=True):
            done = aggregator.run(reader(loader, inbox), progress_line("records"))
            logger.info("%s: %d records stored, %d refused", loader.name, done.stored, done.refused)
    return 0


if __name__ == "__main__":
    sys.exit(main())
