"""``jobsight software``: what ran, under what name, and the rules that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobsight.cli.output import (
    CsvOption,
    JsonOption,
    add_row,
    new_table,
    print_table,
    write_csv,
    write_json,
)
from jobsight.cli.software.report import SinceOption, first_day, hours, report
from jobsight.cli.software.update import name_text, update
from jobsight.cli.typed import ConfigOption, StoreOption, existing_store, run_group
from jobsight.config.load import load_settings
from jobsight.reports.units import UNKNOWN, format_count, format_time
from jobsight.text import path_bytes, readable_text

if TYPE_CHECKING:
    from jobsight.software.queries import AboutPath, AboutSoftware
    from jobsight.software.suggestions import Suggestion
    from jobsight.store.rollups.catalogue import PathRow

_ABOUT = "What ran, under what name, for whom; and the rules that name it."

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many rows")]


def list_(
    json: JsonOption = False,
    csv: CsvOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """List the names that the rules have given, with their use.

    What no rule knows (undetermined) and what no program accounts for (not attributed) stand last.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.store.rollups.catalogue import SoftwareRow, list_software
    from jobsight.store.store import Store

    with Store.open(location) as opened, opened.database.read() as connection:
        rows = list_software(connection)
    if json:
        write_json(rows)
        return
    if csv:
        write_csv(rows, SoftwareRow.__struct_fields__)
        return
    figures = ("paths", "jobs", "users", "core hours", "CPU hours")
    table = new_table("software", "version", *figures, "last used", "", right=figures)
    for row in rows:
        flags = ["user's own"] * row.user_provided + ["ignored"] * row.ignored
        version = " ".join(filter(None, (row.version, row.local_version)))
        counts = [format_count(value) for value in (row.paths, row.jobs, row.users)]
        add_row(
            table,
            readable_text(row.software or row.kind),
            readable_text(version),
            *counts,
            hours(row.core_hours),
            hours(row.cpu_hours),
            row.last or UNKNOWN,
            ", ".join(flags),
            style=None if row.software else "yellow",
        )
    print_table(table)


def show(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A software, or a path")],
    version: Annotated[str | None, typer.Option(help="Only this version")] = None,
    since: SinceOption = None,
    limit: LimitOption = 20,
    json: JsonOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Show a software with its versions, users and paths; or what a path is called, and why.

    Who still uses a version: jobsight software show NAME --version 1.2 --since 90d
    """
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    from jobsight.software.queries import about_path, about_software
    from jobsight.software.worker import load_rules
    from jobsight.store.store import Store

    about: AboutPath | AboutSoftware
    with Store.open(location) as opened, opened.database.read() as connection:
        if name.startswith("/"):
            about = about_path(connection, load_rules(settings.software), path_bytes(name))
        else:
            about = about_software(connection, name, version, first_day(since), limit)
    if json:
        write_json(about)
    elif name.startswith("/"):
        _show_path(about)  # type: ignore[arg-type]
    else:
        _show_software(about)  # type: ignore[arg-type]


def undetermined(
    since: SinceOption = None,
    limit: LimitOption = 20,
    json: JsonOption = False,
    csv: CsvOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """List what no rule knows, by core hours, with a rule that would name each cluster of paths.

    Where only a command's name is known, and not its path, no rule is suggested.
    Core hours are each path's share of what its runs had, by CPU time. Look at a rule before you
    take it: `jobsight software update --dry-run --rules FILE` shows what it would move.
    """
    location = existing_store(store or load_settings(config).store.location)
    from jobsight.software.suggestions import Suggestion, suggest
    from jobsight.store.rollups.catalogue import undetermined_paths
    from jobsight.store.rollups.shares import DAY
    from jobsight.store.store import Store

    day = first_day(since)
    with Store.open(location) as opened, opened.database.read() as connection:
        rows = undetermined_paths(connection, 10_000, None if day is None else day * DAY)
    found = suggest(rows)[:limit]
    if json:
        write_json(found)
    elif csv:
        names = [name for name in Suggestion.__struct_fields__ if name not in ("examples", "rule")]
        write_csv(found, names)
    else:
        _show_suggestions(found)


def try_rules(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Files of rules [default: those of the settings]"),
    ] = None,
    ready: Annotated[
        bool, typer.Option("--ready/--no-ready", help="Ask the ready rules after them")
    ] = True,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """Run the tests that stand in files of rules, and say where the rules name otherwise.

    Without any file the ready rules try themselves. The exit code is 1 where a test fails.
    """
    if not files:
        files = [Path(file).expanduser() for file in load_settings(config).software.rules]
    from jobsight.software.rules import run_expectations

    outcomes = run_expectations(files, ready=ready)
    failed = [outcome for outcome in outcomes if outcome.differences]
    if json:
        write_json(outcomes)
        return 1 if failed else 0
    for outcome in failed:
        print(outcome)
    print(f"{len(outcomes):,} tests, {len(failed):,} of them fail")
    return 1 if failed else 0


def _show_software(about: AboutSoftware) -> None:
    print(f"{readable_text(about.software)} {readable_text(about.version or '')}".strip())
    figures = ("core hours", "CPU hours", "jobs", "users")
    table = new_table("\nversion", *(f"\n{name}" for name in figures), "\nlast used",
                      right=[f"\n{name}" for name in figures])  # fmt: skip
    for row in about.versions:
        version = " ".join(filter(None, (row.version, row.local_version))) or UNKNOWN
        add_row(table, readable_text(version), hours(row.core_hours), hours(row.cpu_hours),
                format_count(row.jobs), format_count(row.users), row.last)  # fmt: skip
    print_table(table)
    table = new_table("\nuser", "\naccount", "\nversion", "\ncore hours", "\njobs", "\nlast used",
                      right=("\ncore hours", "\njobs"))  # fmt: skip
    for row in sorted(about.users, key=lambda row: row.last, reverse=True):
        names = [readable_text(text or UNKNOWN) for text in (row.user, row.account, row.version)]
        add_row(table, *names, hours(row.core_hours), format_count(row.jobs), row.last)
    print_table(table)
    _show_paths(about.paths)


def _show_path(about: AboutPath) -> None:
    print(about.path)
    print(f"  called    {name_text(about.name) if about.use else 'never seen in this store'}")
    print(f"  by rules  {name_text(about.name_by_rules)}")
    if about.rule is not None:
        print(f"  rule      {about.rule[1]} of {about.rule[0]}")
    if about.use is not None:
        use = about.use
        print(
            f"  use       {hours(use.core_hours)} core hours, {hours(use.cpu_hours)} CPU hours, "
            f"{use.executions:,} executions in {use.jobs:,} jobs of {use.users:,} users"
        )
        print(f"  last      {format_time(use.last)}")


def _show_paths(rows: Sequence[PathRow]) -> None:
    figures = ("\ncore hours", "\nCPU hours", "\njobs", "\nexecutions")
    table = new_table("\npath", *figures, right=figures, wrap=["\npath"])
    for row in rows:
        add_row(table, row.path, hours(row.core_hours), hours(row.cpu_hours),
                format_count(row.jobs), format_count(row.executions))  # fmt: skip
    print_table(table)


def _show_suggestions(found: Sequence[Suggestion]) -> None:
    if not found:
        print("every path of the store has a name")
        return
    for one in found:
        paths = f"{one.paths:,} {'path' if one.paths == 1 else 'paths'}"
        print(
            f"# {hours(one.core_hours)} core hours, {hours(one.cpu_hours)} CPU hours in "
            f"{one.jobs:,} jobs: {paths if one.path_known else 'path not known'}"
        )
        for path in one.examples:
            print(f"#   {path}")
        print(f"{one.rule}\n" if one.rule else "")


COMMANDS: dict[str, Callable[..., object]] = {
    "report": report,
    "list": list_,
    "show": show,
    "undetermined": undetermined,
    "test": try_rules,
    "update": update,
}


def main(arguments: Sequence[str]) -> int:
    return run_group(COMMANDS, "software", _ABOUT, arguments)
