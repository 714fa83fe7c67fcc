"""``jobsight import``: years that another system has kept, into this store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from zoneinfo import ZoneInfo

from jobsight.cli.arguments import CommandParser, add_store_options
from jobsight.cli.output import progress_line
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.util.urls import without_credentials


def import_(
    *,
    system: str,
    path: list[str],
    cluster: str | None,
    dry_run: bool,
    zone: str | None,
    store: str | None,
    config: str | None,
) -> int:
    """Import SAMS databases of both schemas; the databases are only read.

    Records that are already stored are skipped.
    """
    if system != "sams":
        raise ConfigError(f"unknown system {system!r}; expected sams")
    try:
        their_zone = ZoneInfo(zone) if zone else None
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"--zone: there is no zone {zone!r}; expected UTC or Europe/Stockholm"
        ) from None
    settings = load_settings(config)
    location = store or settings.store.location
    from jobsight.sams.import_database import (
        Imported,
        database_name,
        find_databases,
        import_database,
    )
    from jobsight.scheduler.state import cluster_of_records
    from jobsight.store.store import Store

    files = [file for one in path for file in find_databases(one)]
    total = Imported()
    with ExitStack() as stack:
        opened = None if dry_run else stack.enter_context(Store.open(location))
        own_cluster = (
            cluster_of_records(opened.database, settings) if opened else settings.own_cluster()
        )
        for file in files:
            found = import_database(
                file,
                opened,
                cluster=cluster,
                default_cluster=own_cluster,
                zone=their_zone,
                progress=progress_line(f"rows of {database_name(file)}"),
            )
            total.add(found)
    verb = "would be imported" if dry_run else f"imported into {without_credentials(location)}"
    hours = total.cpu_time / SECOND / 3600
    print(
        f"{total.jobs:,} jobs in {total.records:,} records ({total.rows:,} rows, "
        f"{hours:,.1f} CPU hours) {verb}"
    )
    for reason, count in sorted(total.problems.items()):
        print(f"{count:,} rows could not be imported unchanged: {reason}")
    return 1 if total.problems else 0


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("import", import_.__doc__)
    parser.add_argument("system", metavar="SYSTEM", help="System to import from: sams")
    parser.add_argument(
        "path",
        nargs="+",
        metavar="PATH",
        help="Database file, a directory of them, or a postgresql:// or mysql:// URL",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help="Cluster of the records (default: the prefix of the record ids)",
    )
    parser.add_argument("--dry-run", action="store_true", help="Only read and count")
    parser.add_argument(
        "--zone", metavar="NAME", help="Time zone of the records (default: that of this machine)"
    )
    add_store_options(parser)
    return parser.run(import_, arguments)
