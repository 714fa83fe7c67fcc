"""``jobsight scrape``: what Slurm knows of its jobs, into the store."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Annotated

import typer

from jobsight import places
from jobsight.cli.typed import ConfigOption, StoreOption, run_typed
from jobsight.config import load_settings
from jobsight.errors import ConfigError

_SOURCES = ("auto", "rest", "json", "text", "pyslurm", "onsite", "recorded")


def scrape(
    once: Annotated[bool, typer.Option("--once", help="One round, then end")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=1, max=86400, metavar="SECONDS", help="A round so often, until Ctrl-C"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{', '.join(_SOURCES)} [default: auto]"),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> int:
    """Bring what Slurm knows of its jobs into the store: who, where, when, and how they ended."""
    settings = load_settings(config)
    if source is not None:
        if source not in _SOURCES:
            raise ConfigError(f"--source {source!r}: right would be one of {', '.join(_SOURCES)}")
        settings.scheduler.source = source  # type: ignore[assignment]
    if store is not None:
        settings.store.location = store
    if once == (every is not None):
        raise ConfigError("say either --once or --every SECONDS")
    from jobsight.scheduler.scrape import Scraper
    from jobsight.scheduler.thread import scrape_regularly
    from jobsight.store import Store

    location = settings.store.location
    if "://" not in location:
        places.private_folder(places.folder_of_store(location))
    with Store.open(location) as opened:
        scraper = Scraper(opened, settings)
        if every is not None:
            stopped = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stopped.set())
            scrape_regularly(scraper, every, stopped, functools.partial(print, file=sys.stderr))
            return 0
        state = scraper.once()
    if state.source:
        print(f"asked    {state.source}")
    print(f"runs     {state.seen} seen, {state.changed} new or changed")
    if state.problems:
        print(f"unclear  {state.problems} fields were not understood")
    if state.reason:
        print(f"jobsight: {state.reason}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str]) -> int:
    return run_typed(scrape, "scrape", arguments)
