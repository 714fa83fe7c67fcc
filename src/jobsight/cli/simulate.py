"""``jobsight simulate``: a made-up site, to try out pages, rules and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jobsight.cli.arguments import (
    CommandParser,
    Subcommand,
    bounded_int,
    run_group,
)
from jobsight.cli.output import shown_progress

_DESCRIPTION = "A made-up site, to try out pages, rules and sizes."
#: More runs have not been tried.
_MOST_RUNS = 100_000_000


def fill(
    *,
    store: str,
    runs: int,
    days: int,
    seed: int,
    running: int | None,
    truth: Path | None,
    append: bool,
) -> None:
    """Fill a store with a made-up year of runs.

    Users, scripts, requests, failures and time series follow from a random seed: the same one gives
    the same runs. Some scripts misbehave in known ways; --truth writes for each run what was
    planted, as JSON lines. The records go through the writers that agents and scraper use.

    A store that has runs is refused without --append. An interrupted command can be repeated with
    --append: runs that are stored already are not stored twice.
    """
    from jobsight.simulation.fill import fill as fill_store
    from jobsight.simulation.fill import write_truth
    from jobsight.simulation.year import Year
    from jobsight.store.store import Store

    year = Year(runs, days=days, seed=seed, running=running)
    with Store.open(store) as opened, shown_progress() as progress:
        truths = fill_store(opened, year, append=append, progress=progress)
    if truth is not None:
        write_truth(truth, truths)
    kinds = Counter(label for each in truths for label in each.labels)
    planted = sum(bool(each.labels) for each in truths)
    print(
        f"{len(truths):,} runs of {len(year.users):,} users and {len(year.works):,} scripts; "
        f"{planted:,} misbehave, in {len(kinds)} ways"
    )


def _fill_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--store", metavar="PATH", required=True, help="SQLite file or URL of the store to fill"
    )
    parser.add_argument(
        "--runs",
        type=bounded_int(1, _MOST_RUNS),
        default=100_000,
        metavar="N",
        help="How many runs (default: 100000)",
    )
    parser.add_argument(
        "--days",
        type=bounded_int(1, 365),
        default=365,
        metavar="N",
        help="How many days (default: 365)",
    )
    parser.add_argument(
        "--seed",
        type=bounded_int(0, 2**32 - 1),
        default=1,
        metavar="N",
        help="The random seed (default: 1)",
    )
    parser.add_argument(
        "--running",
        type=bounded_int(0, _MOST_RUNS),
        metavar="N",
        help="Runs that have not ended (default: a fiftieth, at most 2000)",
    )
    parser.add_argument("--truth", type=Path, metavar="FILE", help="Write what was planted")
    parser.add_argument(
        "--append", action="store_true", help="Fill a store that has runs, or go on with one"
    )


def main(arguments: Sequence[str]) -> int:
    return run_group({"fill": Subcommand(fill, _fill_options)}, "simulate", _DESCRIPTION, arguments)
