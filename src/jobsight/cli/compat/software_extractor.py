"""``sams-software-extractor.py``: exports records for national accounting; run by cron."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from jobsight.cli.compat.common import common_parser, run_on_store
from jobsight.sams.settings import ExtractorSettings, load_extractor
from jobsight.util.locks import LockFile

logger = logging.getLogger(__name__)

PROGRAM: Final = "sams-software-extractor"


def parser() -> argparse.ArgumentParser:
    parser = common_parser(PROGRAM, "Export the use of software as XML, since the last call.")
    parser.add_argument(
        "--skip",
        action="store_true",
        help="Write nothing: another program has reported all current runs",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    return run_on_store(PROGRAM, parser().parse_args(arguments), load_extractor, extract)


def extract(options: argparse.Namespace, settings: ExtractorSettings) -> int:
    """Update the rollups and export the changed runs."""
    from jobsight.cli.arguments import existing_store
    from jobsight.export.extract import Extractor
    from jobsight.store.rollups.rollups import sum_up_all
    from jobsight.store.store import Store

    location = existing_store(settings.store)
    directory = Path(settings.export.output_path).expanduser()
    directory.mkdir(parents=True, exist_ok=True)
    lock = LockFile(directory / ".lock", f"an export to {directory}")
    try:
        with Store.open(location) as store:
            sum_up_all(store.database)
            done = Extractor(store, settings.export).run(_progress(), write=not options.skip)
    finally:
        lock.close()
    logger.info("%d records in %d files", done.records, len(done.files))
    if done.emptied:
        logger.warning(
            "%d reported jobs have no named software any more; no record can express that",
            done.emptied,
        )
    return 0


def _progress() -> Callable[[int], None]:
    if not sys.stderr.isatty():
        return lambda records: None
    return lambda records: print(f"\r{records:,} records", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
