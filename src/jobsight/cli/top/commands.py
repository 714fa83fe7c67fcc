"""``jobsight top``: the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jobsight.cli.arguments import (
    CommandParser,
    UsageError,
    add_json_option,
    add_store_options,
    bounded_float,
    one_of,
)
from jobsight.cli.output import Table, print_table, write_json
from jobsight.cli.report import is_readable, no_store_error
from jobsight.cli.top.readings import BY_NAME, COLUMNS, RateTable, Row, select, summary
from jobsight.cli.top.sources import NodeSource, ServerSource, Source, StoreSource
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.transport.running_server import read_running_server

_LISTEN = "127.0.0.1:9306"


def top(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    node: str | None,
    user: str | None,
    sort: str,
    match: str,
    interval: float,
    once: bool,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Show running jobs with the cores, memory, I/O and GPUs that they use now.

    With --node the jobs of a node, by the metrics of its agent; otherwise those of the store, or of
    the running server if the store cannot be read. A rate is that between the last two samples;
    until there are two it is the mean since the start, and dimmed. Keys: s sort, r reverse,
    / filter, p pause, d details, q quit.
    """
    settings = load_settings(config)
    source = _source(settings, store, node, user)
    try:
        if once or json:
            rows = select(RateTable().update(source.read()), text=match, sort=sort, reverse=False)
            if user is not None:
                rows = [row for row in rows if row.reading.user == user]
            _print_json(rows) if json else _print_table(rows)
            return
        if not sys.stdout.isatty():
            raise UsageError("this is not a terminal; expected --once")
        from jobsight.cli.top.app import TopApp

        TopApp(source, interval=interval, sort=sort, text=match).run()
    finally:
        source.close()


def _source(settings: Settings, store: str | None, node: str | None, user: str | None) -> Source:
    if node is not None:
        return NodeSource(node or settings.agent.metrics.listen or _LISTEN)
    location = store or settings.store.location
    if is_readable(location):
        from jobsight.store.store import Store

        return StoreSource(Store.open(location), user)
    record = read_running_server(paths.server_file(location))
    if record is None:
        raise no_store_error(location)
    return ServerSource(record, user)


def _print_table(rows: list[Row]) -> None:
    table = Table(
        *(column.name for column in COLUMNS),
        right=[column.name for column in COLUMNS if column.right],
    )
    for row in rows:
        cells = (column.cell(row) for column in COLUMNS)
        # On paper nothing is dimmed.
        table.add(*(f"~{cell.text}" if cell.dim and cell.text else cell.text for cell in cells))
    print(summary(rows))
    if rows:
        print_table(table)
        if any(column.cell(row).dim for row in rows for column in COLUMNS):
            print("~ a mean since the start of the job, or a peak of memory")


def _print_json(rows: list[Row]) -> None:
    write_json(
        [
            {
                "job": row.reading.job,
                "run": row.reading.key,
                "user": row.reading.user,
                "name": row.reading.name,
                "cpus": row.reading.cpus,
                "cores_used": row.cores.value,
                "is_mean": row.cores.is_mean,
                "memory_bytes": row.reading.memory,
                "memory_is_peak": row.reading.memory_is_peak,
                "memory_requested_bytes": row.reading.memory_requested,
                "read_bytes_per_second": row.read.value,
                "written_bytes_per_second": row.written.value,
                "gpus": row.reading.gpus,
                "gpus_used": row.gpus.value,
                "elapsed_seconds": None
                if row.reading.elapsed is None
                else row.reading.elapsed / 10**9,
            }
            for row in rows
        ]
    )


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("top", top.__doc__)
    parser.add_argument(
        "--node",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="Jobs of a node, by its agent's metrics (default: agent.metrics.listen)",
    )
    parser.add_argument("--user", "-u", metavar="NAME", help="Jobs of this user")
    parser.add_argument(
        "--sort",
        type=one_of(tuple(BY_NAME)),
        default="cores",
        metavar="COLUMN",
        help=f"Sort by {', '.join(BY_NAME)} (default: cores)",
    )
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="Jobs with this text in id, user or name"
    )
    parser.add_argument(
        "--interval",
        type=bounded_float(1, 3600),
        default=5.0,
        metavar="SECONDS",
        help="Seconds between two readings (default: 5)",
    )
    parser.add_argument("--once", action="store_true", help="Print a table once, as plain text")
    add_json_option(parser)
    add_store_options(parser)
    return parser.run(top, arguments)
