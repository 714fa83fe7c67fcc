"""``jobsight software``: usage by software name, and the rules that assign the names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobsight.cli.arguments import (
    CommandParser,
    Subcommand,
    add_csv_option,
    add_json_option,
    add_limit_option,
    add_since_option,
    add_store_options,
    existing_store,
    run_group,
)
from jobsight.cli.output import (
    Table,
    print_table,
    write_csv,
    write_json,
)
from jobsight.cli.rule_tests import add_rule_options, chosen_files, report_tests
from jobsight.cli.software.report import (
    SINCE,
    add_report_options,
    first_day,
    report,
)
from jobsight.cli.software.update import add_update_options, name_text, update
from jobsight.config.load import load_settings
from jobsight.text import path_bytes, readable_text
from jobsight.util.units import UNKNOWN, format_count, format_hours, format_time

if TYPE_CHECKING:
    from jobsight.software.queries import AboutPath, AboutSoftware
    from jobsight.software.suggestions import Suggestion
    from jobsight.store.rollups.catalogue import PathRow

_DESCRIPTION = "Report the usage of software, and manage the rules that name it."


def list_(*, json: bool, csv: bool, store: str | None, config: str | None) -> None:
    """List the software names in the store with their usage.

    The last rows are undetermined (paths that no rule matches) and not attributed (CPU time of no
    known executable).
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
    table = Table(
        "software", "version", *figures, "last used", "", right=figures, cut=("software", "version")
    )
    for row in rows:
        flags = ["user's own"] * row.user_provided + ["ignored"] * row.ignored
        version = " ".join(filter(None, (row.version, row.local_version)))
        counts = [format_count(value) for value in (row.paths, row.jobs, row.users)]
        table.add(
            readable_text(row.software or row.kind),
            readable_text(version),
            *counts,
            format_hours(row.core_hours),
            format_hours(row.cpu_hours),
            row.last or UNKNOWN,
            ", ".join(flags),
            style=None if row.software else "yellow",
        )
    print_table(table)


def show(
    *,
    name: str,
    version: str | None,
    since: str | None,
    limit: int,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Show the versions, users and paths of a software name, or the rule that matches a path.

    To list the users of a version: jobsight software show NAME --version 1.2 --since 90d
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
    *, since: str | None, limit: int, json: bool, csv: bool, store: str | None, config: str | None
) -> None:
    """List the paths that no rule matches, by core hours, and suggest rules for them.

    Core hours are each path's share of the allocation of its runs, by CPU time. No rule is
    suggested for an executable of which only the command name is known. Check a rule before use:
    `jobsight software update --dry-run --rules FILE` shows the names that it would change.
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


def try_rules(*, files: list[Path] | None, ready: bool, json: bool, config: str | None) -> int:
    """Run the tests in rule files and report the paths that get another name.

    Without rule files, the tests of the built-in rules are run. The exit code is 1 if a test fails.
    """
    from jobsight.software.rules import run_expectations

    chosen = chosen_files(files, load_settings(config).software.rules)
    outcomes = run_expectations(chosen, ready=ready)
    return report_tests(outcomes, json=outcomes if json else None)


def _show_software(about: AboutSoftware) -> None:
    print(f"{readable_text(about.software)} {readable_text(about.version or '')}".strip())
    figures = ("core hours", "CPU hours", "jobs", "users")
    table = Table("version", *figures, "last used", right=figures, cut=("version",))
    for row in about.versions:
        version = " ".join(filter(None, (row.version, row.local_version))) or UNKNOWN
        hours_used = (format_hours(row.core_hours), format_hours(row.cpu_hours))
        counts = (format_count(row.jobs), format_count(row.users))
        table.add(readable_text(version), *hours_used, *counts, row.last)
    print()
    print_table(table)
    users = Table(
        *("user", "account", "version", "core hours", "jobs", "last used"),
        right=("core hours", "jobs"),
        cut=("user", "account", "version"),
    )
    for row in sorted(about.users, key=lambda row: row.last, reverse=True):
        names = [readable_text(text or UNKNOWN) for text in (row.user, row.account, row.version)]
        users.add(*names, format_hours(row.core_hours), format_count(row.jobs), row.last)
    print()
    print_table(users)
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
            f"  use       {format_hours(use.core_hours)} core hours, "
            f"{format_hours(use.cpu_hours)} CPU hours, "
            f"{use.executions:,} executions in {use.jobs:,} jobs of {use.users:,} users"
        )
        print(f"  last      {format_time(use.last)}")


def _show_paths(rows: Sequence[PathRow]) -> None:
    figures = ("core hours", "CPU hours", "jobs", "executions")
    table = Table("path", *figures, right=figures, wrap=["path"])
    for row in rows:
        table.add(row.path, format_hours(row.core_hours), format_hours(row.cpu_hours),
                format_count(row.jobs), format_count(row.executions))  # fmt: skip
    print()
    print_table(table)


def _show_suggestions(found: Sequence[Suggestion]) -> None:
    if not found:
        print("every path of the store has a name")
        return
    for one in found:
        paths = f"{one.paths:,} {'path' if one.paths == 1 else 'paths'}"
        print(
            f"# {format_hours(one.core_hours)} core hours, "
            f"{format_hours(one.cpu_hours)} CPU hours in "
            f"{one.jobs:,} jobs: {paths if one.path_known else 'path not known'}"
        )
        for path in one.examples:
            print(f"#   {path}")
        print(f"{one.rule}\n" if one.rule else "")


def _add_list_options(parser: CommandParser) -> None:
    add_json_option(parser)
    add_csv_option(parser)
    add_store_options(parser)


def _add_show_options(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME|PATH", help="Software name, or path of an executable")
    parser.add_argument("--version", metavar="NAME", help="Only this version")
    add_since_option(parser, SINCE)
    add_limit_option(parser, 20)
    add_json_option(parser)
    add_store_options(parser)


def _add_undetermined_options(parser: CommandParser) -> None:
    add_since_option(parser, SINCE)
    add_limit_option(parser, 20)
    add_json_option(parser)
    add_csv_option(parser)
    add_store_options(parser)


def _add_try_rules_options(parser: CommandParser) -> None:
    add_rule_options(parser, "--ready", "Apply the built-in rules after them")


COMMANDS = {
    "report": Subcommand(report, add_report_options),
    "list": Subcommand(list_, _add_list_options),
    "show": Subcommand(show, _add_show_options),
    "undetermined": Subcommand(undetermined, _add_undetermined_options),
    "test": Subcommand(try_rules, _add_try_rules_options),
    "update": Subcommand(update, add_update_options),
}


def main(arguments: Sequence[str]) -> int:
    return run_group(COMMANDS, "software", _DESCRIPTION, arguments)
