"""``jobsight simulate``: a made-up site and simulated agents, to try out pages, rules and sizes."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    Subcommand,
    add_json_option,
    add_store_options,
    bounded_float,
    bounded_int,
    existing_store,
    run_group,
)
from jobsight.cli.output import Table, print_table, shown_progress, write_json
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.errors import JobsightError
from jobsight.transport.running_server import read_running_server
from jobsight.util.units import UNKNOWN, format_bytes

if TYPE_CHECKING:
    from jobsight.simulation.agents import Result
    from jobsight.simulation.check import Checked

_DESCRIPTION = "A made-up site and simulated agents, to try out pages, rules and sizes."
#: Seconds between two lines of progress.
_PROGRESS = 10.0
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


def agents(  # noqa: PLR0913 -- one for each option
    *,
    nodes: int,
    jobs: int,
    every: float,
    minutes: float,
    server: str | None,
    token_file: Path | None,
    directory: Path | None,
    processes: int,
    seed: int,
    restarts: float,
    storms: float,
    outages: float,
    drain: float,
    remote: bool,
    json: bool,
    store: str | None,
    config: str | None,
) -> int:
    """Send the batches of simulated agents to a running server.

    Each node has a spool and sequence numbers of its own, and sends by the real client: jobs come
    and go, there are storms of short jobs, jobs on many nodes, GPU nodes, wrong clocks, agents that
    restart and nodes that reach the server only after some time. At the end the spools are
    delivered, and what was written is compared with the store of the server, if it is readable
    here. The exit code is 1 if something was lost or doubled.
    """
    from jobsight.simulation.agents import Counts, Where, check_server, simulate
    from jobsight.simulation.nodes import Load

    settings = load_settings(config)
    location = store or settings.store.location
    url, token = _server_of(server, token_file, location)
    check_server(url, remote=remote)
    load = Load(
        nodes=nodes,
        jobs=jobs,
        every=every,
        duration=minutes * 60,
        seed=seed,
        restarts=restarts,
        storms=storms,
        outages=outages,
    )
    shown = 0.0

    def progress(elapsed: float, counts: Counts) -> None:
        nonlocal shown
        if elapsed - shown >= _PROGRESS:
            shown = elapsed
            print(
                f"{elapsed:5.0f} s: {counts.written:,} written, {counts.accepted:,} accepted, "
                f"{counts.retried:,} retried, {counts.refused:,} refused, "
                f"{counts.pending:,} pending",
                file=sys.stderr,
            )

    kept = directory if directory is not None else Path(tempfile.mkdtemp(prefix="jobsight-agents-"))
    where = Where(url=url, token_file=str(token), directory=str(kept))
    result = simulate(load, where, processes=processes, drain=drain, progress=progress)
    checked = _check_store(kept, location) if _is_readable(location) else None
    if directory is None and result.counts.pending == 0:
        shutil.rmtree(kept)
    if json:
        write_json({"result": result, "check": checked})
    else:
        _print_result(result, checked, kept if kept.exists() else None)
    return 1 if result.counts.pending or (checked is not None and checked.differences) else 0


def check(*, directory: Path, json: bool, store: str | None, config: str | None) -> int:
    """Compare what simulated agents have written with a store.

    DIRECTORY is that of `jobsight simulate agents --directory`. Sequence numbers, samples, CPU time
    and executions must be equal at both ends. The exit code is 1 if something was lost or doubled.
    """
    checked = _check_store(directory, existing_store(store or load_settings(config).store.location))
    if json:
        write_json(checked)
    else:
        _print_check(checked)
    return 1 if checked.differences else 0


def _server_of(server: str | None, token_file: Path | None, location: str) -> tuple[str, Path]:
    """The URL and the token file: of the options, else of the running server of the store."""
    record = read_running_server(paths.server_file(location))
    if server is None and record is None:
        raise JobsightError(
            "no server is running for this store; expected --server URL, or `jobsight serve` first"
        )
    url = server or (record.url if record else "")
    if token_file is not None:
        return url, token_file
    return url, Path(record.token_file) if record else paths.token_file(location)


def _is_readable(location: str) -> bool:
    return "://" in location or Path(location).exists()


def _check_store(directory: Path, location: str) -> Checked:
    from jobsight.simulation.check import check as compare
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        return compare(directory, opened)


def _print_result(result: Result, checked: Checked | None, kept: Path | None) -> None:
    from jobsight.simulation.agents import reasons_of

    counts = result.counts

    def milliseconds(value: float | None) -> str:
        return UNKNOWN if value is None else f"{value * 1000:,.0f} ms"

    table = Table("figure", "value", right=("value",))
    table.add("elapsed", f"{result.elapsed_s:,.0f} s")
    table.add("jobs", f"{result.jobs:,}")
    table.add("batches written", f"{counts.written:,}")
    table.add("accepted", f"{counts.accepted:,}")
    table.add("refused", f"{counts.refused:,}")
    table.add("retried", f"{counts.retried:,}")
    table.add("pending at the end", f"{counts.pending:,}")
    table.add("restarts of agents", f"{counts.restarts:,}")
    table.add("latency, median", milliseconds(result.median_s))
    table.add("latency, 99 %", milliseconds(result.p99_s))
    table.add("latency, maximum", milliseconds(result.max_s))
    each = result.cpu_s / max(counts.written, 1)
    table.add("CPU time of the simulation", f"{result.cpu_s:,.1f} s, {each * 1000:.2f} ms a batch")
    table.add("memory of the simulation", format_bytes(result.peak_memory_bytes))
    print_table(table)
    for reason, count in reasons_of(counts):
        print(f"{count:,} x {reason}")
    if checked is not None:
        print()
        _print_check(checked)
    if kept is not None:
        print(f"The spools and what was written are in {kept}")


def _print_check(checked: Checked) -> None:
    for sentence in checked.listed:
        print(sentence)
    known = {"dropped": checked.dropped, "refused": checked.refused, "pending": checked.pending}
    counted = ", ".join(f"{count:,} {name}" for name, count in known.items() if count)
    print(
        f"{checked.batches:,} batches with {checked.samples:,} samples of {checked.jobs:,} jobs "
        "are stored" + (f"; the spools count {counted}" if counted else "")
    )
    if checked.differences:
        print("; ".join(f"{count:,} {kind}" for kind, count in checked.differences.items()))
    else:
        print("nothing is lost, nothing is doubled")


def _agents_options(parser: CommandParser) -> None:
    def number(name: str, kind: Callable[[str], float], default: float, help: str) -> None:
        parser.add_argument(
            name, type=kind, default=default, metavar="N", help=f"{help} (default: {default:g})"
        )

    number("--nodes", bounded_int(1, 20_000), 20, "How many nodes")
    number("--jobs", bounded_int(1, 200), 5, "Jobs at a time on each node")
    number("--every", bounded_float(0.1, 3600), 30, "Seconds between two batches of a node")
    number("--minutes", bounded_float(0.01, 1440), 1, "How long")
    parser.add_argument(
        "--server", metavar="URL", help="The server (default: that of the store, if it runs)"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="The token (default: that of the server)"
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIRECTORY",
        help="A new directory for the spools (default: a temporary one)",
    )
    number("--processes", bounded_int(1, 64), 2, "How many processes")
    number("--seed", bounded_int(0, 2**32 - 1), 1, "The random seed")
    number("--restarts", bounded_float(0, 1), 0.002, "Share of batches after which agents restart")
    number("--storms", bounded_float(0, 1), 0.005, "Share of batches with a storm of short jobs")
    number("--outages", bounded_float(0, 1), 0.02, "Share of nodes that are cut off at first")
    number("--drain", bounded_float(0, 3600), 120, "Seconds to deliver what is pending at the end")
    parser.add_argument(
        "--remote", action="store_true", help="Send to a server that is not on loopback"
    )
    add_json_option(parser)
    add_store_options(parser)


def _check_options(parser: CommandParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="The spools")
    add_json_option(parser)
    add_store_options(parser)


_COMMANDS = {
    "fill": Subcommand(fill, _fill_options),
    "agents": Subcommand(agents, _agents_options),
    "check": Subcommand(check, _check_options),
}


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0].startswith("--") and arguments[0] not in ("--help", "--"):
        # `jobsight simulate --nodes 100` is short for `simulate agents`.
        arguments = ["agents", *arguments]
    return run_group(_COMMANDS, "simulate", _DESCRIPTION, arguments)
