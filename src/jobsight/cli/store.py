"""``jobsight store``: inspect, check, compact, prune, back up, restore and move a store."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    Subcommand,
    add_json_option,
    add_store_options,
    existing_store,
    run_group,
)
from jobsight.cli.output import (
    Table,
    print_table,
    shown_progress,
    write_json,
)
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError, StoreError
from jobsight.model import SECOND
from jobsight.util.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_duration,
    format_time,
)

if TYPE_CHECKING:
    from jobsight.config.settings import RetentionSettings
    from jobsight.store.maintenance.inventory import Inventory, LastHeard
    from jobsight.store.maintenance.pruned import Pruned


def backup(*, file: Path, force: bool, store: str | None, config: str | None) -> None:
    """Back up the store to one file while the server is running.

    The file is a compressed snapshot of all rows with a digest. Its format is the same for SQLite
    and PostgreSQL, and it can be restored to either. It is written atomically with mode 0600,
    because it holds the names of users and their executables.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.maintenance.dump import back_up
    from jobsight.store.store import Store

    with Store.open(location) as opened, shown_progress() as progress:
        written = back_up(opened.database, file, progress, replace=force)
    rows, size = sum(written.counts.values()), format_bytes(file.stat().st_size)
    print(f"{rows:,} rows, {written.counts['runs']:,} runs, {size}: {file}")


def restore(
    *, file: Path, replace: bool, yes: bool, dry_run: bool, store: str | None, config: str | None
) -> None:
    """Restore a backup to a new store, or replace the content of a store.

    The file is verified first; a damaged or truncated file is refused and nothing is changed. The
    rows are written in one transaction and counted before its commit: the restore is complete or
    has no effect, also if the command is killed. A backup of an older version is upgraded. Stop the
    server first; agents keep their batches in the meantime.
    """
    location = store or load_settings(config).store.location
    from jobsight.store.maintenance import dump as files

    with shown_progress() as progress:
        if dry_run:
            restored = files.verify(file, progress)
        else:
            _confirm(replace, yes)
            restored = files.restore(location, file, progress, replace=replace)
    rows, runs = sum(restored.counts.values()), restored.counts.get("runs", 0)
    print(
        f"{rows:,} rows, {runs:,} runs of {format_time(restored.created, None)} "
        f"({restored.engine}, jobsight {restored.jobsight}) "
        f"{'would be restored' if dry_run else 'restored'}"
    )


def _confirm(replace: bool, yes: bool) -> None:
    if replace and not yes:
        raise ConfigError(
            "--replace: deletes the present content of the store; back it up, then use "
            "--replace --yes"
        )
    if yes and not replace:
        raise ConfigError("--yes: is only valid with --replace")


def move(*, source: str, target: str) -> None:
    """Copy a store to another location, from SQLite to PostgreSQL or the reverse.

    Stop the server first: rows that are written after the copy has begun are not copied. The rows
    are copied in bounded memory and one transaction and counted at the end: TO is filled completely
    or stays empty, also if the command is killed. A store TO that is not empty is refused. FROM is
    not changed, except that the schema of an older version is upgraded first.

    Then set store.location to the new location and start the server. The token of the pages is a
    file next to an SQLite store; it is created again.
    """
    existing_store(source)
    if Path(source).absolute() == Path(target).absolute():
        raise StoreError("FROM and TO are the same store")
    from jobsight.store.maintenance import dump

    with shown_progress() as progress:
        copied = dump.copy_store(source, target, progress)
    rows = sum(copied.counts.values())
    print(f"{rows:,} rows, {copied.counts['runs']:,} runs copied; FROM is unchanged")


_DESCRIPTION = "Inspect, check, compact, prune, back up and move the store."
#: Agents that have sent nothing for this long are listed.
_SILENT_AFTER = 3600 * SECOND
_MAX_LISTED = 10


def info(*, json: bool, store: str | None, config: str | None) -> None:
    """Show the size and the age of the store's content, and which agents report.

    Sizes are those of the engine and include indices. The size of a value of a time series is
    estimated from a sample of the chunks. Agents that have sent nothing for an hour are listed. An
    SQLite file is read completely, which takes about as long as copying it.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.maintenance.inventory import take_inventory
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        found = take_inventory(opened.database)
    if json:
        write_json(found)
    else:
        _show_inventory(found)


def check(
    *, repair: bool, remove_damaged: bool, json: bool, store: str | None, config: str | None
) -> int:
    """Check the consistency of the store and list each damaged run, node and chunk.

    The check covers the database file, every chunk of a time series (that it can be decoded and
    matches its row), the totals of each run against those of its nodes, the chunks that are not
    joined yet, the digests of paths, the sequence numbers of batches, and all references. The
    server may be running. The exit code is 1 if a fault was found and not repaired.

    --repair recomputes values that follow from other rows: times, row counts and summaries of
    chunks, totals of runs, counters. The time series of a run with a damaged chunk cannot be shown;
    restore the chunk from a backup, or delete it with --remove-damaged.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.maintenance.check import Checker
    from jobsight.store.store import Store

    with Store.open(location) as opened, shown_progress() as progress:
        checker = Checker(opened.database, progress, repair=repair, remove_damaged=remove_damaged)
        found = checker.run()
    if json:
        write_json({"sound": found.sound} | msgspec.to_builtins(found))
        return 0 if found.sound else 1
    for fault in found.faults:
        print(f"{fault.where}: {fault.text}{' (repaired)' if fault.repaired else ''}")
    for note in found.notes:
        print(f"note: {note}")
    print(
        f"{found.runs:,} runs, {found.nodes:,} nodes of runs, {found.chunks:,} chunks, "
        f"{found.paths:,} paths: {_verdict(len(found.faults), found.sound)}"
    )
    return 0 if found.sound else 1


def _verdict(faults: int, sound: bool) -> str:
    if not faults:
        return "all sound"
    return f"{faults:,} faults, {'all repaired' if sound else 'see above'}"


def dead_letters(
    *, retry: list[str], drop: list[str], json: bool, store: str | None, config: str | None
) -> None:
    """List work that failed and is set aside, have it tried again, or give it up.

    A run whose daily rollups cannot be computed is set aside, so that the rollups of all other runs
    go on; a day of a node whose time series cannot be joined, too. It is marked before the work
    begins: work that ended the process is not tried again at the next start. A dead letter is tried
    again an hour later, three times in all; after that only by --retry.

    --retry has the work tried again by the next round of the server. --drop gives it up: a run then
    keeps the share in the daily rollups that it had before, if any, and retention may remove it.
    Both take the name in the first column (kind:key), or "all", and may be repeated.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store import dead_letters as letters
    from jobsight.store.store import Store

    with Store.open(location) as opened:
        for names, act in ((retry, letters.retry), (drop, letters.drop)):
            for name in names:
                chosen = letters.all_names(opened.database) if name == "all" else [name]
                for letter in chosen:
                    act(opened.database, letter)
        found = letters.list_dead_letters(opened.database)
    if json:
        write_json(found)
        return
    if not found:
        print("no dead letters")
        return
    table = Table(
        "name", "run", "first", "last", "tries", "reason", right=("tries",), wrap=("reason",)
    )
    for each in found:
        times = [format_time(moment, None) for moment in (each.first, each.last)]
        table.add(each.name, each.run or UNKNOWN, *times, str(each.tries), each.reason)
    print_table(table)


def compact(*, vacuum: bool, json: bool, store: str | None, config: str | None) -> None:
    """Join small chunks, delete unused rows, and release free pages.

    A run without a final batch, for example after a node crash, leaves its time series in many
    small chunks; these are joined and compressed. Paths of executables that no run refers to are
    deleted. Then the database is rewritten without its free pages (VACUUM), and the statistics of
    the query planner are updated.

    Joining does not block the server. VACUUM of an SQLite file blocks all writes while it lasts,
    so agents keep their batches in the spool, and needs free disk space of twice the file size.
    With --no-vacuum the free pages stay in the file and are reused.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.maintenance import compact as work
    from jobsight.store.store import Store

    with Store.open(location) as opened, shown_progress() as progress:
        done = work.compact(opened.database, progress, vacuum=vacuum)
    if json:
        write_json(done)
        return
    print(
        f"joined   {done.nodes:,} nodes of runs: {done.chunks_before:,} chunks are "
        f"{done.chunks_after:,}, {format_bytes(done.series_before)} are "
        f"{format_bytes(done.series_after)}"
    )
    if done.node_days:
        print(f"         {done.node_days:,} days of nodes")
    if done.damaged:
        print(f"damaged  {done.damaged:,} nodes of runs; see jobsight store check")
    print(f"removed  {done.paths:,} unused paths")
    print(f"size     {format_bytes(done.size_before)} before, {format_bytes(done.size_after)} now")


def prune(*, dry_run: bool, json: bool, store: str | None, config: str | None) -> None:
    """Downsample and delete the data that is older than the retention settings.

    The settings store.retention.series, downsampled, executables and runs give the days after the
    end of a run for which each class of data is kept; 0 is for ever. By default, time series are
    downsampled after a year and nothing is deleted. A run without a known end is never touched.
    With store.retention.only_archived, only runs that are in the archive are touched. Daily rollups
    are kept.

    `jobsight serve` does the same once a day unless store.retention.daily is false. Transactions
    are short, so that agents and pages are not blocked; Ctrl-C stops between two of them.
    """
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    keep = settings.store.retention
    from jobsight.software.worker import load_rules, update
    from jobsight.store.maintenance import retention
    from jobsight.store.store import Store

    with Store.open(location) as opened, shown_progress() as progress:
        if dry_run:
            pruned = retention.preview(opened.database, keep)
        else:
            if keep.runs or keep.executables:
                # Only data in the daily rollups may be deleted, and rollups need software names.
                update(opened, load_rules(settings.software))
            pruned = retention.prune(opened.database, keep, progress=progress)
    if json:
        write_json({"dry_run": dry_run, "classes": msgspec.to_builtins(pruned)})
    else:
        _show_pruned(pruned, keep, dry_run)


def _show_pruned(pruned: dict[str, Pruned], keep: RetentionSettings, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    for name in ("runs", "series", "executables", "downsampled"):
        part = pruned.get(name)
        days = getattr(keep, {"series": "downsampled", "downsampled": "series"}.get(name, name))
        title = "downsampled" if name == "downsampled" else f"{name} removed"
        if part is None:
            print(f"{title:<20} never" if not days else f"{title:<20} nothing: removed before")
            continue
        print(f"{title:<20} after {days:g} days: {_describe_pruned(name, part, would, dry_run)}")
        if part.waiting:
            print(f"{'':<20} {part.waiting:,} runs are kept: not archived or not in daily rollups")
        if part.damaged:
            print(f"{'':<20} {part.damaged:,} nodes of runs are damaged: jobsight store check")
    for name, part in pruned.items():
        if name.startswith("node days"):
            what = "downsampled" if name.endswith("downsampled") else "removed"
            size = f"{part.rows:,} chunks, {format_bytes(part.bytes)} of series"
            print(f"{f'node days {what}':<20} {part.runs:,}, {size}")
    if "paths" in pruned:
        print(f"{'paths removed':<20} {pruned['paths'].rows:,}")


def _describe_pruned(name: str, part: Pruned, would: str, dry_run: bool) -> str:
    rows = {"downsampled": "chunks", "series": "chunks"}.get(name, "rows")
    counts = f"{part.runs:,} runs, {part.rows:,} {rows}"
    if name == "executables":
        return f"{counts} {would}deleted"
    size = f", {format_bytes(part.bytes)} of series"
    if name == "downsampled" and not dry_run:
        size += f" are {format_bytes(part.bytes_left)}"
    return counts + size


def _show_inventory(found: Inventory) -> None:
    free = "" if found.reusable is None else f", {format_bytes(found.reusable)} of it free"
    disk = "" if found.disk_free is None else f"; {format_bytes(found.disk_free)} left on the disk"
    print(f"store    {found.location}")
    print(f"engine   {found.engine}, schema version {found.version}")
    print(f"size     {format_bytes(found.size)}{free}{disk}")
    print(
        f"runs     {found.runs:,} ({found.open_runs:,} open), {found.nodes:,} nodes of runs; "
        f"started {format_time(found.oldest, None)} to {format_time(found.newest, None)}"
    )
    value = UNKNOWN if found.bytes_a_value is None else f"{found.bytes_a_value:.2f}"
    print(
        f"series   {found.chunks:,} chunks ({found.downsampled_chunks:,} downsampled), "
        f"{value} bytes per value"
    )
    print(_agents_line(found.agents, time.time_ns()))
    print()
    table = Table("class", "rows", "size", right=("rows", "size"))
    for name, held in found.classes.items():
        table.add(name, format_count(held.rows), format_bytes(held.bytes))
    print_table(table)


def _agents_line(agents: list[LastHeard], now: int) -> str:
    if not agents:
        return "agents   none"
    silent = [agent for agent in agents if now - agent.received > _SILENT_AFTER]
    line = f"agents   {len(agents):,}, last heard {format_time(agents[0].received, None)}"
    if silent:
        named = ", ".join(
            f"{agent.cluster}/{agent.node} for {format_duration(now - agent.received)}"
            for agent in silent[:_MAX_LISTED]
        )
        more = f" and {len(silent) - _MAX_LISTED:,} more" if len(silent) > _MAX_LISTED else ""
        line += f"; silent: {named}{more}"
    return line


def _add_backup_options(parser: CommandParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="File to write")
    parser.add_argument("--force", action="store_true", help="Replace an existing file")
    add_store_options(parser)


def _add_restore_options(parser: CommandParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="File written by `jobsight store backup`"
    )
    parser.add_argument(
        "--replace", action="store_true", help="Replace the content of a store; requires --yes"
    )
    parser.add_argument(
        "--yes", action="store_true", help="Confirm that the present content is lost"
    )
    parser.add_argument("--dry-run", action="store_true", help="Verify the file and change nothing")
    add_store_options(parser)


def _add_move_options(parser: CommandParser) -> None:
    parser.add_argument("source", metavar="FROM", help="Store to copy: file or URL")
    parser.add_argument("target", metavar="TO", help="New store: file or URL")


def _add_info_options(parser: CommandParser) -> None:
    add_json_option(parser)
    add_store_options(parser)


def _add_check_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--repair", action="store_true", help="Recompute values that follow from other rows"
    )
    parser.add_argument(
        "--remove-damaged",
        action="store_true",
        help="Delete chunks that cannot be read",
    )
    add_json_option(parser)
    add_store_options(parser)


def _add_dead_letters_options(parser: CommandParser) -> None:
    for option, help in (
        ("--retry", "Try this work again"),
        ("--drop", "Give this work up"),
    ):
        parser.add_argument(option, action="append", default=[], metavar="NAME", help=help)
    add_json_option(parser)
    add_store_options(parser)


def _add_compact_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--vacuum",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Rewrite the database without its free pages",
    )
    add_json_option(parser)
    add_store_options(parser)


def _add_prune_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="Show what would be deleted and change nothing"
    )
    add_json_option(parser)
    add_store_options(parser)


COMMANDS = {
    "info": Subcommand(info, _add_info_options),
    "check": Subcommand(check, _add_check_options),
    "dead-letters": Subcommand(dead_letters, _add_dead_letters_options),
    "compact": Subcommand(compact, _add_compact_options),
    "prune": Subcommand(prune, _add_prune_options),
    "backup": Subcommand(backup, _add_backup_options),
    "restore": Subcommand(restore, _add_restore_options),
    "move": Subcommand(move, _add_move_options),
}


def main(arguments: Sequence[str]) -> int:
    return run_group(COMMANDS, "store", _DESCRIPTION, arguments)
