"""``jobsight software update``: applies changed rules to names and rollups, or previews it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    add_json_option,
    add_store_options,
    existing_store,
)
from jobsight.cli.output import (
    Table,
    print_table,
    shown_progress,
    write_json,
)
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.text import readable_path, readable_text
from jobsight.util.units import format_count, format_hours

if TYPE_CHECKING:
    from jobsight.software.preview import Change
    from jobsight.software.rules import SoftwareName
    from jobsight.store.rollups.catalogue import SoftwareRow
    from jobsight.store.store import Store

#: Microseconds.
_HOUR = 3.6e9


def update(
    *, dry_run: bool, rules: list[str] | None, json: bool, store: str | None, config: str | None
) -> None:
    """Assign names to new paths, apply changed rules to all stored paths, and update the rollups.

    `jobsight serve` does the same in the background; this command waits for the end and shows the
    usage of each software name before and after. Transactions are short, and an interrupted update
    can be repeated.
    """
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    if rules and not dry_run:
        raise ConfigError("--rules is for --dry-run; rules that shall hold stand in software.rules")
    if rules:
        settings.software.rules = rules
    from jobsight.software import worker
    from jobsight.software.preview import preview
    from jobsight.store.rollups.rollups import sum_up_all
    from jobsight.store.store import Store

    chosen = worker.load_rules(settings.software)
    with Store.open(location) as opened, shown_progress() as progress:
        if dry_run:
            moves = preview(
                opened.database, chosen, lambda done, total: progress("runs", done, total)
            )
        else:
            # What waited before must not look like the work of the rules.
            sum_up_all(opened.database, lambda done: progress("runs that waited", done, 0))
            before = _names(opened)
            done = worker.update(
                opened,
                chosen,
                renaming=lambda done, total: progress("paths", done, total),
                summing=lambda done: progress("runs", done, 0),
            )
            after = _names(opened)
    if dry_run:
        _show_moves(moves, json)
    else:
        _show_difference(before, after, done.runs, json)


def _names(opened: Store) -> dict[int, SoftwareRow]:
    from jobsight.store.rollups.catalogue import list_software

    with opened.database.read() as connection:
        return {row.id: row for row in list_software(connection)}


def _show_moves(moves: list[Change], json: bool) -> None:
    if json:
        write_json([_document(move) for move in moves])
        return
    if not moves:
        print("no path would get another name")
        return
    figures = ("core hours", "CPU hours", "jobs", "paths")
    wrap = ("from", "to", "for example")
    table = Table("from", "to", *figures, "for example", right=figures, wrap=wrap)
    for move in moves:
        table.add(
            name_text(move.before),
            name_text(move.after),
            format_hours(move.core_time / _HOUR),
            format_hours(move.cpu_time / _HOUR),
            format_count(move.runs),
            format_count(move.paths),
            readable_path(move.examples[0]),
        )
    print_table(table)
    print("\nNothing was changed.")


def _document(move: Change) -> dict[str, object]:
    return {
        "before": move.before,
        "after": move.after,
        "paths": move.paths,
        "examples": [readable_path(path) for path in move.examples],
        "jobs": move.runs,
        "cpu_hours": move.cpu_time / _HOUR,
        "core_hours": move.core_time / _HOUR,
        "gpu_hours": move.gpu_time / _HOUR,
    }


def name_text(name: SoftwareName | None) -> str:
    """A name in one line, with the other values of its rule."""
    if name is None:
        return "undetermined"
    flags = ["user's own"] * name.user_provided + ["ignored"] * name.ignored
    texts = filter(None, (name.software, name.version, name.local_version))
    return " ".join([*map(readable_text, texts), *(f"({flag})" for flag in flags)])


def _show_difference(
    before: dict[int, SoftwareRow], after: dict[int, SoftwareRow], runs: int, json: bool
) -> None:
    changes = []
    for id, row in after.items():
        old = before[id].core_hours if id in before else 0.0
        if old != row.core_hours:
            changes.append((row, old))
    changes.sort(key=lambda change: -abs(change[0].core_hours - change[1]))
    if json:
        rows = [
            {"software": row.software, "version": row.version, "kind": row.kind, "before": old,
             "after": row.core_hours}
            for row, old in changes
        ]  # fmt: skip
        write_json({"runs": runs, "changes": rows})
        return
    if changes:
        figures = ("before", "after", "change")
        cut = ("software", "version")
        table = Table("software", "version", *figures, right=figures, cut=cut)
        for row, old in changes:
            name, version = (
                readable_text(row.software or row.kind),
                readable_text(row.version or ""),
            )
            change = row.core_hours - old
            sign = "+" if change > 0 else "-"
            table.add(name, version, format_hours(old), format_hours(row.core_hours),
                    f"{sign}{format_hours(abs(change))}")  # fmt: skip
        print_table(table)
        print("\nCore hours before and after.", end=" ")
    print(f"{runs:,} runs were summed up.")


def add_update_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Show which usage would change its name, and change nothing",
    )
    parser.add_argument(
        "--rules", action="append", metavar="FILE", help="With --dry-run: rule files to try"
    )
    add_json_option(parser)
    add_store_options(parser)
