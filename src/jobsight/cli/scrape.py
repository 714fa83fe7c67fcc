"""``jobsight scrape``: copies jobs, nodes and partitions of Slurm to the store."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    add_store_options,
    bounded_float,
    one_of,
)
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import ConfigError

if TYPE_CHECKING:
    from jobsight.store.store import Store

_SOURCES = ("auto", "rest", "json", "text", "pyslurm", "onsite", "recorded")


def scrape(
    *,
    once: bool,
    every: float | None,
    source: str | None,
    store: str | None,
    config: str | None,
) -> int:
    """Copy jobs and nodes from Slurm to the store.

    Each cluster of the settings is queried, and changes are sent to the configured sinks (MongoDB,
    OpenSearch).
    """
    settings = load_settings(config)
    if source is not None:
        for each in (settings.scheduler, *settings.clusters.values()):
            each.source = source  # type: ignore[assignment]
    if store is not None:
        settings.store.location = store
    if once == (every is not None):
        raise ConfigError("expected either --once or --every SECONDS")
    location = settings.store.location
    if "://" not in location:
        paths.private_directory(
            paths.store_directory(location), "the directory of the store", own=False
        )
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        if every is not None:
            _regularly(settings, opened, every)
            return 0
        several = len(settings.clusters) > 1
        healthy = [_once(each, opened, several) for each in settings.each_cluster()]
        healthy += _feed_once(settings, opened)
    return 0 if all(healthy) else 1


def _regularly(settings: Settings, store: Store, every: float) -> None:
    """Every cluster in a thread of its own, and so every sink, until a signal."""
    from jobsight.scheduler.scraper import scraping

    for each in (settings.scheduler, *settings.clusters.values()):
        each.interval = every
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with scraping(settings, store):
        stopped.wait()


def _once(settings: Settings, store: Store, several: bool) -> bool:
    from jobsight.scheduler.cluster_name import with_cluster_name
    from jobsight.scheduler.scraper import Scraper

    state = Scraper(store, with_cluster_name(settings, store.database)).once()
    if several:
        print(f"cluster  {state.cluster}")
    if state.source:
        print(f"asked    {state.source}")
    print(f"runs     {state.seen} seen, {state.changed} new or changed")
    if state.problems:
        print(f"unclear  {state.problems} fields were not understood")
    if state.reason:
        where = f"{state.cluster}: " if several else ""
        print(f"jobsight: {where}{state.reason}", file=sys.stderr)
    return not state.reason


def _feed_once(settings: Settings, store: Store) -> list[bool]:
    """Send the changes to each sink, and print the result."""
    from jobsight.scheduler.sinks.feeder import Feeder, open_sinks

    fed = []
    for sink in open_sinks(settings.sinks):
        feeder = Feeder(store, sink, settings.sinks.interval)
        fed.append(feeder.feed_once())
        if fed[-1]:
            print(f"{sink.name:<8} {feeder.written} documents written")
        sink.close()
    return fed


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("scrape", scrape.__doc__)
    parser.add_argument("--once", action="store_true", help="Scrape once and exit")
    parser.add_argument(
        "--every",
        type=bounded_float(1, 86400),
        metavar="SECONDS",
        help="Scrape at this interval until interrupted",
    )
    parser.add_argument(
        "--source",
        type=one_of(_SOURCES),
        metavar="NAME",
        help=f"Source: {', '.join(_SOURCES)} (default: auto)",
    )
    add_store_options(parser)
    return parser.run(
        scrape,
        arguments,
        log=lambda options: "command" if options["every"] is None else "service",
    )
