"""``jobsight software report``: who used what, when and how much."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    add_csv_option,
    add_json_option,
    add_limit_option,
    add_store_options,
    existing_store,
)
from jobsight.cli.jobs import parse_since
from jobsight.cli.output import (
    Table,
    print_table,
    write_csv,
    write_json,
    write_parquet,
)
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.reports.terminal import bar, spark_line
from jobsight.text import readable_text
from jobsight.util.units import UNKNOWN, format_count, format_energy, format_hours, format_share

if TYPE_CHECKING:
    from jobsight.software.queries import Trend
    from jobsight.store.database import Connection
    from jobsight.store.rollups.usage import Question, UsageRow

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_BAR, _TREND = 12, 20


def report(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    by: str,
    since: str,
    until: str | None,
    software: str | None,
    version: str | None,
    user: str | None,
    account: str | None,
    partition: str | None,
    cluster: str | None,
    ignored: bool,
    movers: bool,
    limit: int,
    json: bool,
    csv: bool,
    parquet: Path | None,
    store: str | None,
    config: str | None,
) -> None:
    """Report usage by software, version, user, account, partition, node and time.

    Core and GPU hours are shares of the allocation, by CPU time, those of GPUs by GPU time if it is
    known. GPU hours used are those of the multiprocessors, or the utilization where only that is
    known. Undetermined are the paths that no rule matches; not attributed is CPU time of no known
    executable. By node, complete runs are counted by their start, without core hours. CSV, JSON and
    Parquet contain all rows.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.software import queries
    from jobsight.software.queries import Trend
    from jobsight.store.rollups.usage import Question, UsageRow
    from jobsight.store.store import Store

    question = Question(
        by=tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip())),
        since=first_day(since),
        until=first_day(until, "--until"),
        software=software,
        version=version,
        user=user,
        account=account,
        partition=partition,
        cluster=cluster,
        ignored=ignored,
    )
    rows: Sequence[UsageRow | Trend]
    with Store.open(location) as opened, opened.database.read() as connection:
        if movers:
            rows = queries.trends_since(connection, question)
        else:
            rows = queries.read_usage(connection, question)
        if not (json or csv or parquet):
            _show(connection, question, rows, limit)
            return
    kind = Trend if movers else UsageRow
    figures = [name for name in kind.__struct_fields__ if name not in queries.KEYS]
    names = [*queries.key_fields(question), *figures]
    if json:
        write_json(rows)
    elif csv:
        write_csv(rows, names)
    elif parquet is not None:
        write_parquet(rows, kind, names, parquet)
        print(f"{len(rows):,} rows are in {parquet}")


def first_day(text: str | None, option: str = "--since") -> int | None:
    """The day (UTC) that 90d or 2026-11-15 means; ``all`` is no bound."""
    from jobsight.store.rollups.usage import day_of, number_of

    if text is None or text == "all":
        return None
    if _DATE.fullmatch(text.strip()):
        try:
            return number_of(date.fromisoformat(text.strip()))
        except ValueError:
            raise ConfigError(f"{option} {text!r}: there is no such day") from None
    return day_of(parse_since(text, time.time_ns(), option))


def _show(
    connection: Connection, question: Question, rows: Sequence[UsageRow | Trend], limit: int
) -> None:
    from jobsight.software.queries import Trend, key_fields
    from jobsight.store.rollups.usage import count_waiting, left_out

    keys = [name for name in key_fields(question) if name != "kind"]
    if not rows:
        print("nobody like that used anything like that in that time", file=sys.stderr)
    elif isinstance(rows[0], Trend):
        print_table(_movers(keys, rows[:limit]))  # type: ignore[arg-type]
    else:
        print_table(_usage(connection, question, keys, rows, limit))  # type: ignore[arg-type]
    if len(rows) > limit:
        print(f"and {len(rows) - limit:,} rows more: --limit {len(rows)}")
    out = left_out(connection, question)
    if out.core_hours or out.cpu_hours:
        print(
            f"Left out: {format_hours(out.core_hours)} core hours of software that the rules "
            "ignore; --ignored shows it."
        )
    waiting = count_waiting(connection, question.cluster)
    if waiting.pending:
        print(f"{waiting.pending:,} runs wait to be summed up: jobsight software update")
    if waiting.set_aside:
        print(f"{waiting.set_aside:,} runs are set aside: jobsight store dead-letters")


def _usage(
    connection: Connection,
    question: Question,
    keys: Sequence[str],
    rows: Sequence[UsageRow],
    limit: int,
) -> Table:
    from jobsight.software.queries import key_fields, read_trends

    by_node = "node" in keys
    trends = read_trends(connection, question, _TREND)
    total = sum(_size(row) for row in rows)
    gpus = any(row.gpu_hours for row in rows)
    on_gpus = ["GPU hours", "GPU hours used", "GPU energy"]
    figures = ([] if by_node else ["core hours"]) + ["CPU hours"] + on_gpus * gpus
    counts = ["jobs", "users", "executions"]
    table = Table(
        *keys, *figures, "share", "", *counts, *(["trend"] if trends else []),
        right=[*figures, "share", *counts], cut=keys,
        optional=["trend", "", "executions", "users", "GPU energy", *on_gpus[:2]],
    )  # fmt: skip
    for row in rows[:limit]:
        share = _size(row) / total if total else None
        values = ([] if by_node else [row.core_hours]) + [row.cpu_hours]
        cells = [format_hours(value) for value in values]
        if gpus:
            used = row.gpu_used_hours if row.gpu_measured_hours else None
            cells += [format_hours(row.gpu_hours), format_hours(used)]
            cells.append(format_energy(row.gpu_energy_joules or None))
        trend = trends.get(tuple(getattr(row, name) for name in key_fields(question)))
        table.add(
            *_names(row, keys),
            *cells,
            format_share(None if share is None else round(share, 4)),
            bar(share or 0.0, _BAR),
            *map(format_count, (row.jobs, row.users, row.executions)),
            *([spark_line(trend)] if trend else []),
            style="yellow" if row.kind not in (None, "software") else None,
        )
    return table


def _movers(keys: Sequence[str], rows: Sequence[Trend]) -> Table:
    figures = ("before", "after", "change")
    table = Table(*keys, *figures, "", right=figures, cut=keys, optional=[""])
    most = max(abs(row.change) for row in rows) or 1.0
    for row in rows:
        sign = "+" if row.change > 0 else "-" if row.change < 0 else ""
        table.add(
            *_names(row, keys),
            format_hours(row.before),
            format_hours(row.after),
            f"{sign}{format_hours(abs(row.change))}",
            bar(abs(row.change) / most, _BAR),
            style="green" if row.change > 0 else "red",
        )
    return table


def _names(row: UsageRow | Trend, keys: Sequence[str]) -> list[str]:
    names = []
    for name in keys:
        text = getattr(row, name)
        # A row without a name has its kind in the first column of names.
        if text is None and name in ("software", "version") and row.kind not in names:
            text = row.kind
        names.append(readable_text(text) if text else UNKNOWN)
    return names


def _size(row: UsageRow) -> float:
    return row.cpu_hours if row.core_hours is None else row.core_hours


def add_report_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--by",
        metavar="A,B,C",
        default="software",
        help="Columns, of: software, version, local_version, user, account, partition, cluster, "
        "node, day, week, month (default: software)",
    )
    parser.add_argument(
        "--since",
        "-S",
        metavar="DATE",
        default="30d",
        help='Start date (UTC), e.g. 2026-01-01 or 30d; "all" for no limit (default: 30d)',
    )
    parser.add_argument("--until", metavar="DAY", help="End date (UTC), exclusive (default: now)")
    parser.add_argument("--software", metavar="NAME", help="Only this software")
    parser.add_argument("--version", metavar="NAME", help="Only this version")
    parser.add_argument("--user", "-u", metavar="NAME", help="Only this user")
    parser.add_argument("--account", "-A", metavar="NAME", help="Only this account")
    parser.add_argument("--partition", metavar="NAME", help="Only this partition")
    parser.add_argument("--cluster", metavar="NAME", help="Only this cluster")
    parser.add_argument(
        "--ignored", action="store_true", help="Include software that the rules ignore"
    )
    parser.add_argument(
        "--movers", action="store_true", help="Compare with the same number of days before"
    )
    add_limit_option(parser, 50)
    add_json_option(parser)
    add_csv_option(parser)
    parser.add_argument("--parquet", type=Path, metavar="FILE", help="Write a Parquet file")
    add_store_options(parser)


#: What --since is the start of.
SINCE = "Start date (UTC), e.g. 2026-01-01 or 90d"
