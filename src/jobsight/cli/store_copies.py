"""``jobsight store backup``, ``restore`` and ``move``: a store as a file, and in another place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobsight.cli.progress import shown_progress
from jobsight.cli.typed import ConfigOption, StoreOption, existing_store
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError, StoreError
from jobsight.reports.units import format_bytes, format_time


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Write the whole store into one file, while the server goes on writing.

    The file holds all rows as they were at one moment, compressed, with a digest over all of them.
    It is the same for SQLite and PostgreSQL, and either can be made of it again. It is there whole
    or not at all, and only its owner can read it: it holds who ran what.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.maintenance.dump import back_up
    from jobsight.store.store import Store

    with Store.open(location) as opened, shown_progress() as progress:
        made = back_up(opened.database, file, progress, replace=force)
    rows = sum(made.counts.values())
    print(
        f"{rows:,} rows, {made.counts['runs']:,} runs, {format_bytes(file.stat().st_size)}: {file}"
    )


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of jobsight store backup")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Into a store that is not empty; with --yes")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="What the store holds now may be lost")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the file to its end, and change nothing")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a store of a backup: a new one, or in place of what a store holds.

    The file is read to its end first. One that is damaged or cut short is refused, and nothing is
    changed. The rows then go into the store in one transaction and are counted before it ends: the
    store is made whole or stays as it was, also when this command is killed. A backup of an older
    jobsight is brought up to date. Stop the server before; agents keep their batches meanwhile.
    """
    location = store or load_settings(config).store.location
    from jobsight.store.maintenance import dump as files

    with shown_progress() as progress:
        if dry_run:
            made = files.verify(file, progress)
        else:
            _confirm(replace, yes)
            made = files.restore(location, file, progress, replace=replace)
    rows = sum(made.counts.values())
    said = "would be restored" if dry_run else "restored"
    print(
        f"{rows:,} rows, {made.counts.get('runs', 0):,} runs of {format_time(made.created, None)} "
        f"({made.engine}, jobsight {made.jobsight}) {said}"
    )


def _confirm(replace: bool, yes: bool) -> None:
    if replace and not yes:
        raise ConfigError(
            "--replace: what the store holds now would be lost; back it up, then say --replace "
            "--yes"
        )
    if yes and not replace:
        raise ConfigError("--yes: is said with --replace")


def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A store: a file or an address")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Where to: a new file or an address")],
) -> None:
    """Bring a whole store to another place, SQLite to PostgreSQL or the other way.

    Stop the server before: what comes after the first row was read stays behind. The rows go over
    one by one in bounded memory and in one transaction, and are counted at the end: TO is filled
    whole or stays empty, also when this command is killed; then start it again. A store TO that is
    not empty is refused. FROM stays as it is; one of an older jobsight is brought up to date first.

    Then set store.location to the new place and start the server. The token of the pages and what
    the scraper has reached lie in files beside an SQLite store; they are made anew.
    """
    existing_store(source)
    if Path(source).absolute() == Path(target).absolute():
        raise StoreError(f"{source} and {target} are the same place")
    from jobsight.store.maintenance import dump

    with shown_progress() as progress:
        made = dump.copy_store(source, target, progress)
    rows = sum(made.counts.values())
    print(f"{rows:,} rows, {made.counts['runs']:,} runs moved; the first store is as it was")
