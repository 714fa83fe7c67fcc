"""``jobsight import``: years that another system has kept, into this store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from jobsight.cli.compat.aggregator import progress_line
from jobsight.cli.typed import ConfigOption, StoreOption, run_typed
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.model import SECOND


def import_(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="Where the data come from: sams")],
    path: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="A database, or a folder of them")
    ],
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Their cluster [default: as their record ids say]"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and count only")] = False,
    zone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The zone of their times [default: this machine's]"),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Bring the databases of SAMS along: both of its schemas, read only, as often as you like.

    What is there already is not booked twice.
    """
    if system != "sams":
        raise ConfigError(f"there is nothing to import from {system!r}; right: sams")
    try:
        their_zone = ZoneInfo(zone) if zone else None
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"--zone: there is no zone {zone!r}; right: UTC or Europe/Stockholm"
        ) from None
    settings = load_settings(config)
    location = store or settings.store.location
    from jobsight.sams.import_database import Imported, find_databases, import_database
    from jobsight.store.store import Store

    files = [file for one in path for file in find_databases(one)]
    whole = Imported()
    with ExitStack() as stack:
        opened = None if dry_run else stack.enter_context(Store.open(location))
        for file in files:
            found = import_database(
                file,
                opened,
                cluster=cluster,
                default_cluster=settings.cluster,
                zone=their_zone,
                progress=progress_line(f"rows of {file.name}"),
            )
            whole.add(found)
    said = "would be imported" if dry_run else f"imported into {location}"
    hours = whole.cpu_time / SECOND / 3600
    print(
        f"{whole.jobs:,} jobs in {whole.records:,} records ({whole.rows:,} rows, "
        f"{hours:,.1f} CPU hours) {said}"
    )
    for reason, count in sorted(whole.problems.items()):
        print(f"{count:,} rows could not be taken as they are: {reason}")
    return 1 if whole.problems else 0


def main(arguments: Sequence[str]) -> int:
    return run_typed(import_, "import", arguments)
