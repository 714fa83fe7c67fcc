"""``jobsight software report``: who used what, when and how much."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobsight.cli.jobs import parse_since
from jobsight.cli.output import (
    CsvOption,
    JsonOption,
    add_row,
    new_table,
    print_table,
    write_csv,
    write_json,
    write_parquet,
)
from jobsight.cli.typed import ConfigOption, StoreOption, existing_store
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.reports.terminal import bar, spark_line
from jobsight.reports.units import UNKNOWN, format_count, format_share
from jobsight.text import readable_text

if TYPE_CHECKING:
    from rich.table import Table
    from sqlalchemy import Connection

    from jobsight.software.queries import Trend
    from jobsight.store.rollups.usage import Question, UsageRow

SinceOption = Annotated[
    str | None,
    typer.Option("--since", "-S", metavar="DAY", help="From this day on (UTC): 90d, 2026-11-15"),
]

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_BAR, _TREND = 12, 20


def report(
    by: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Of: software, version, local_version, user, account, partition, cluster, node, "
            "day, week, month",
        ),
    ] = "software",
    since: Annotated[
        str,
        typer.Option("--since", "-S", metavar="DAY", help="From this day on (UTC); all is all"),
    ] = "30d",
    until: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="Up to the day before this one", show_default="now"),
    ] = None,
    software: Annotated[str | None, typer.Option(help="Only this software")] = None,
    version: Annotated[str | None, typer.Option(help="Only this version")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Of this user")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Of this account")] = None,
    partition: Annotated[str | None, typer.Option(help="In this partition")] = None,
    cluster: Annotated[str | None, typer.Option(help="On this cluster")] = None,
    ignored: Annotated[
        bool, typer.Option("--ignored", help="With software that the rules ignore")
    ] = False,
    movers: Annotated[
        bool, typer.Option("--movers", help="What grew and shrank against as many days before")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many rows")] = 50,
    json: JsonOption = False,
    csv: CsvOption = False,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Into a Parquet file", show_default=False)
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Report use by software, version, user, account, partition, node and time.

    Core and GPU hours are shares of what was allocated, by CPU time. Undetermined is what no rule
    knows; not attributed is CPU time that no program accounts for. By node the programs themselves
    are read: whole runs by their start, without core and GPU hours. CSV, JSON and Parquet hold
    all rows.
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


def hours(value: float | None) -> str:
    """Hours to three digits or whole: 0.0012, 1.23, 12.3, 1,234."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 99.95:
        return format_count(round(value))
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.3g}"


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
            f"Left out: {hours(out.core_hours)} core hours of software that the rules ignore; "
            "--ignored shows it."
        )
    waiting = count_waiting(connection)
    if waiting:
        print(f"{waiting:,} runs wait to be summed up: jobsight software update")


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
    whole = sum(_size(row) for row in rows)
    gpus = any(row.gpu_hours for row in rows)
    figures = ([] if by_node else ["core hours"]) + ["CPU hours"] + ["GPU hours"] * gpus
    counts = ["jobs", "users", "executions"]
    table = new_table(
        *keys, *figures, "share", "", *counts, *(["trend"] if trends else []),
        right=[*figures, "share", *counts],
    )  # fmt: skip
    for row in rows[:limit]:
        share = _size(row) / whole if whole else None
        values = ([] if by_node else [row.core_hours]) + [row.cpu_hours]
        values += [row.gpu_hours] * gpus
        trend = trends.get(tuple(getattr(row, name) for name in key_fields(question)))
        add_row(
            table,
            *_names(row, keys),
            *map(hours, values),
            format_share(None if share is None else round(share, 4)),
            bar(share or 0.0, _BAR),
            *map(format_count, (row.jobs, row.users, row.executions)),
            *([spark_line(trend)] if trend else []),
            style="yellow" if row.kind not in (None, "software") else None,
        )
    return table


def _movers(keys: Sequence[str], rows: Sequence[Trend]) -> Table:
    figures = ("before", "after", "change")
    table = new_table(*keys, *figures, "", right=figures)
    most = max(abs(row.change) for row in rows) or 1.0
    for row in rows:
        sign = "+" if row.change > 0 else "-" if row.change < 0 else ""
        add_row(
            table,
            *_names(row, keys),
            hours(row.before),
            hours(row.after),
            f"{sign}{hours(abs(row.change))}",
            bar(abs(row.change) / most, _BAR),
            style="green" if row.change > 0 else "red",
        )
    return table


def _names(row: UsageRow | Trend, keys: Sequence[str]) -> list[str]:
    names = []
    for name in keys:
        text = getattr(row, name)
        # What has no name says in the first column of names what it is.
        if text is None and name in ("software", "version") and row.kind not in names:
            text = row.kind
        names.append(readable_text(text) if text else UNKNOWN)
    return names


def _size(row: UsageRow) -> float:
    return row.cpu_hours if row.core_hours is None else row.core_hours
