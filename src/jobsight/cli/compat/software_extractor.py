"""``sams-software-extractor.py``: exports records for national accounting; run by cron."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from jobsight.cli.compat.common import common_parser, run_on_store
from jobsight.model import SECOND
from jobsight.sams.settings import ExtractorSettings, load_extractor
from jobsight.util.locks import LockFile

if TYPE_CHECKING:
    from jobsight.store.write.exports import ExportedRun

logger = logging.getLogger(__name__)

PROGRAM: Final = "sams-software-extractor"


def parser() -> argparse.ArgumentParser:
    parser = common_parser(PROGRAM, "Export the use of software as XML, since the last call.")
    parser.add_argument(
        "--skip",
        action="store_true",
        help="Write nothing: SAMS has reported all current runs up to its last export",
    )
    parser.add_argument(
        "--database",
        action="append",
        metavar="PATH",
        help="SAMS's database for --skip: file, directory or URL (default: that of the settings)",
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
            extractor = Extractor(store, settings.export)
            if options.skip:
                unreported = _unreported(options.database or settings.databases, settings)
                done = extractor.run(_progress(), write=False, unreported=unreported)
                logger.info("%d runs that SAMS has not reported are left to export", done.left)
            else:
                done = extractor.run(_progress())
    finally:
        lock.close()
    logger.info("%d records in %d files", done.records, len(done.files))
    if done.emptied:
        logger.warning(
            "%d reported jobs have no named software any more; no record can express that",
            done.emptied,
        )
    return 0


def _unreported(
    locations: Sequence[str], settings: ExtractorSettings
) -> Callable[[ExportedRun], bool]:
    """Whether SAMS has not reported a run, by the ``last_sent`` of its databases."""
    from jobsight.sams.import_database import SamsDatabase, find_databases

    zone = ZoneInfo(settings.export.timezone) if settings.export.timezone else None
    keys: set[tuple[int, int]] = set()
    databases = [found for location in locations for found in find_databases(location)]
    for found in databases:
        with closing(SamsDatabase(found, zone)) as database:
            keys |= set(database.unreported())
    if not databases:
        print(
            f"{PROGRAM}: warning: no database of SAMS is known (--database): "
            "all runs are recorded as reported",
            file=sys.stderr,
        )

    def unreported(run: ExportedRun) -> bool:
        return run.start is not None and (run.job_id, run.start // SECOND) in keys

    return unreported


def _progress() -> Callable[[int], None]:
    if not sys.stderr.isatty():
        return lambda records: None
    return lambda records: print(f"\r{records:,} records", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
