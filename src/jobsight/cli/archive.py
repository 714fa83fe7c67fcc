"""``jobsight archive``: writes finished runs to Parquet files and restores them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    add_store_options,
    bounded_float,
    existing_store,
    one_of,
)
from jobsight.cli.output import progress_line
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError, JobsightError
from jobsight.model import SECOND, RunReference
from jobsight.text import readable_text

if TYPE_CHECKING:
    from jobsight.archive.reader import Reader
    from jobsight.archive.storage import Storage
    from jobsight.archive.writer import Archived
    from jobsight.config.settings import Settings
    from jobsight.store.read.external import ArchivedRun
    from jobsight.store.store import Store

_DAY = 86400 * SECOND


class Action(StrEnum):
    WRITE = "write"
    LIST = "list"
    CHECK = "check"
    READ = "read"
    SQL = "sql"


#: The actions that accept an option.
_OPTIONS = {
    "RUN": {Action.READ},
    "--before": {Action.WRITE},
    "--older-than": {Action.WRITE},
    "--month": {Action.READ},
    "--cluster": {Action.READ},
    "--dry-run": {Action.WRITE, Action.READ},
    "--new-archive": {Action.WRITE},
    "--json": {Action.WRITE, Action.LIST, Action.CHECK, Action.SQL},
    "--engine": {Action.SQL},
    "--query": {Action.SQL},
    "--python": {Action.SQL},
    "--spark-option": {Action.SQL},
}


def archive(  # noqa: PLR0913 -- a command's parameters are its options
    *,
    action: Action,
    run: list[str] | None,
    before: str | None,
    older_than: float | None,
    month: str | None,
    cluster: str | None,
    dry_run: bool,
    new_archive: bool,
    json: bool,
    engine: str | None,
    query: str | None,
    python: str | None,
    spark_option: list[str] | None,
    location: str | None,
    store: str | None,
    config: str | None,
) -> int:
    """Archive finished runs as Parquet files, by cluster and month.

    `write` writes the runs that are not in the archive or have changed since, `list` shows the
    months of the archive, `check` verifies all its files, `read` restores runs to the store, and
    `sql` prints the views for DuckDB, or with --engine spark those for Spark. With --engine
    spark://HOST:PORT and --query it runs a query on that cluster and prints the rows.
    """
    given = {
        "RUN": run,
        "--before": before,
        "--older-than": older_than,
        "--month": month,
        "--cluster": cluster,
        "--dry-run": dry_run,
        "--new-archive": new_archive,
        "--json": json,
        "--engine": engine,
        "--query": query,
        "--python": python,
        "--spark-option": spark_option,
    }
    for name, value in given.items():
        if value not in (None, False, []) and action not in _OPTIONS[name]:
            raise ConfigError(f"`jobsight archive {action}` does not accept {name}")
    settings = load_settings(config)
    if store is not None:
        settings.store.location = store
    if location is not None:
        settings.archive.location = location
    if older_than is not None:
        settings.archive.older_than = older_than
    from jobsight.archive.storage import open_storage

    if action is Action.SQL:
        return _sql(settings, engine or "duckdb", query, python, spark_option or [], json=json)
    storage = open_storage(settings.archive)
    if action is Action.LIST:
        return _list(storage, json)
    if action is not Action.READ or dry_run:
        # Runs may be restored to a new store; the other actions need an existing one.
        existing_store(settings.store.location)
    if action is Action.CHECK:
        return _check(storage, settings, json)
    from jobsight.archive.writer import write_archive
    from jobsight.store.store import Store

    with Store.open(settings.store.location) as opened:
        if action is Action.WRITE:
            done = write_archive(
                opened,
                storage,
                _cutoff(settings, before),
                dry_run=dry_run,
                new_archive=new_archive,
                progress=progress_line("runs archived"),
            )
            return _show(done, storage, dry_run, json)
        return _read(opened, storage, run or [], cluster, month, dry_run)


def _sql(
    settings: Settings,
    engine: str,
    query: str | None,
    python: str | None,
    options: list[str],
    *,
    json: bool,
) -> int:
    """Print the views of an engine, or run a query on a cluster."""
    if engine in ("duckdb", "spark"):
        if query is not None:
            raise ConfigError("--query needs a cluster: --engine spark://HOST:PORT")
        if engine == "duckdb":
            from jobsight.archive.schema import views

            print(views(settings.archive))
        else:
            from jobsight.archive.spark import script

            print(script(settings.archive))
        return 0
    if not engine.startswith(("spark://", "local[")):
        raise ConfigError(f"--engine {engine!r}: expected duckdb, spark or spark://HOST:PORT")
    if query is None:
        raise ConfigError("--engine spark://HOST:PORT needs --query with a SELECT, or - for stdin")
    from jobsight.archive import spark
    from jobsight.cli.output import Table, print_table

    pairs = dict(option.partition("=")[::2] for option in options)
    text = sys.stdin.read() if query == "-" else query
    answer = spark.query(
        settings.archive, engine, text.strip().rstrip(";"), python=python, options=pairs
    )
    if json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        print(msgspec.json.encode(rows).decode())
        return 0
    table = Table(*answer.columns)
    for row in answer.rows:
        table.add(*("" if value is None else readable_text(str(value)) for value in row))
    print_table(table)
    return 0


def _cutoff(settings: Settings, before: str | None) -> int:
    if before is None:
        return time.time_ns() - round(settings.archive.older_than * _DAY)
    try:
        moment = datetime.fromisoformat(before)
    except ValueError:
        raise ConfigError(
            f"--before {before!r} is not a date; expected 2026-11-01 or 2026-11-01T12:00"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) * SECOND


def _show(done: Archived, storage: Storage, dry_run: bool, json: bool) -> int:
    for problem in done.problems:
        print(f"jobsight: {problem}", file=sys.stderr)
    code = 1 if done.problems else 0
    if json:
        print(msgspec.json.encode(done).decode())
        return code
    if dry_run:
        for month, count in done.months.items():
            print(f"{month}  {count:,} runs")
    if done.removed:
        print(f"{done.removed} files of an incomplete attempt were deleted")
    again = f", {done.again:,} of them again after a change" if done.again else ""
    if dry_run:
        print(f"{done.runs:,} runs would be archived in {storage.location}{again}")
    else:
        print(
            f"{done.runs:,} runs archived in {storage.location}{again}: {done.parts} parts, "
            f"{done.samples:,} samples, {_size(done.size)}"
        )
    return code


def _size(size: int) -> str:
    from jobsight.util.units import format_bytes

    return format_bytes(size)


def _list(storage: Storage, json: bool) -> int:
    from jobsight.archive.verify import list_months

    months = list_months(storage)
    if json:
        print(msgspec.json.encode(months).decode())
        return 0
    rows = [("CLUSTER", "MONTH", "RUNS", "SAMPLES", "PARTS", "SIZE")]
    rows += [
        (
            row.cluster,
            row.month,
            f"{row.runs:,}",
            f"{row.samples:,}",
            f"{row.parts:,}",
            _size(row.size),
        )
        for row in months
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    return 0


def _check(storage: Storage, settings: Settings, json: bool) -> int:
    from jobsight.archive.verify import check_archive
    from jobsight.store.store import Store

    with Store.open(settings.store.location) as opened:
        checked = check_archive(storage, opened, progress_line("parts checked"))
    if json:
        print(msgspec.json.encode(checked).decode())
    else:
        print(
            f"{checked.parts:,} parts, {checked.files:,} files, {checked.runs:,} runs, "
            f"{_size(checked.size)}: {len(checked.problems) or 'no'} problems"
        )
        for problem in checked.problems:
            print(f"jobsight: {problem}", file=sys.stderr)
    return 1 if checked.problems else 0


def _read(
    store: Store,
    storage: Storage,
    references: list[str],
    cluster: str | None,
    month: str | None,
    dry_run: bool,
) -> int:
    from jobsight.archive.reader import Reader
    from jobsight.archive.restore import restore
    from jobsight.store.read.archiving import is_complete

    if bool(references) == (month is not None):
        raise ConfigError("expected either runs or --month YYYY-MM")
    if month is not None and not re.fullmatch(r"\d{4}-\d\d", month, re.ASCII):
        raise ConfigError(f"--month {month!r}: expected 2026-11")
    reader = Reader(storage)
    found = (
        reader.versions(cluster, month)
        if month is not None
        else [_find(reader, text, cluster) for text in references]
    )
    count = 0
    show = progress_line("runs read")
    for number, run in enumerate(found, 1):
        if dry_run:
            count += not is_complete(store.database, run)
        else:
            count += restore(store, reader, run)
        show(number, len(found))
    verb = "would be restored" if dry_run else "restored"
    print(f"{count:,} of {len(found):,} runs {verb}; the others are complete in the store")
    return 0


def _find(reader: Reader, text: str, cluster: str | None) -> ArchivedRun:
    try:
        reference = RunReference.parse(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    found = reader.versions(reference.cluster or cluster, reference=reference)
    if not found:
        raise JobsightError(f"the archive {reader.storage.location} has no run {text}")
    return max(found, key=lambda run: run.start)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("archive", archive.__doc__)
    parser.add_argument(
        "action",
        type=one_of(Action),
        metavar="ACTION",
        help="write, list, check, read or sql",
    )
    parser.add_argument("run", nargs="*", metavar="RUN", help="read: runs to restore")
    parser.add_argument(
        "--before", metavar="DATE", help="write: only runs that ended before this date"
    )
    parser.add_argument(
        "--older-than",
        type=bounded_float(0, 36600),
        metavar="DAYS",
        help="write: only runs that ended at least this long ago (default: 7)",
    )
    parser.add_argument("--month", metavar="YYYY-MM", help="read: all runs of this month")
    parser.add_argument("--cluster", metavar="NAME", help="read: only runs of this cluster")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write, read: show what would be done and change nothing",
    )
    parser.add_argument(
        "--new-archive",
        action="store_true",
        help="write: start a new archive in storage of the one the store refers to",
    )
    parser.add_argument("--json", action="store_true", help="write, list, check, sql: print JSON")
    parser.add_argument(
        "--engine",
        metavar="ENGINE",
        help="sql: duckdb, spark, or a cluster spark://HOST:PORT (default: duckdb)",
    )
    parser.add_argument("--query", metavar="SQL", help="sql: run this on the cluster; - is stdin")
    parser.add_argument(
        "--python", metavar="PATH", help="sql: a Python with pyspark (default: that of jobsight)"
    )
    parser.add_argument(
        "--spark-option",
        action="append",
        metavar="KEY=VALUE",
        help="sql: a setting of the Spark session; may be repeated",
    )
    parser.add_argument(
        "--archive", dest="location", metavar="LOCATION", help="Directory or s3://bucket/prefix"
    )
    add_store_options(parser)
    return parser.run(archive, arguments)
