"""``jobsight findings update``: judges all runs by the current rules, or shows the changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from jobsight.cli.arguments import (
    CommandParser,
    add_json_option,
    add_store_options,
    existing_store,
)
from jobsight.cli.output import Table, print_table, shown_progress, write_json
from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from jobsight.util.units import format_count


def update(
    *, dry_run: bool, rules: list[str] | None, json: bool, store: str | None, config: str | None
) -> None:
    """Judge all runs by the current rules, and remove findings that no longer hold.

    `jobsight serve` does the same in the background; this command waits for the end. Figures of
    runs that have not changed are not computed again. An interrupted update can be repeated.
    """
    settings = load_settings(config)
    location = existing_store(store or settings.store.location)
    if rules and not dry_run:
        raise ConfigError("--rules is for --dry-run; rules that shall hold stand in findings.rules")
    if rules:
        settings.findings.rules = rules
    from jobsight.findings.service import FindingsService
    from jobsight.findings.worker import update_all
    from jobsight.store.store import Store

    with Store.open(location) as opened, shown_progress() as progress:
        judge = FindingsService(opened, settings.findings).judge()
        done = update_all(
            opened,
            judge,
            dry_run=dry_run,
            progress=lambda done, total: progress("runs", done, total),
        )
    if json:
        write_json({"runs": done.runs, "failed": done.failed, "kinds": _by_kind(done.changes)})
        return
    _print(done.changes)
    failed = f", {done.failed:,} failed; see `jobsight store dead-letters`" if done.failed else ""
    print(f"{done.runs:,} runs were judged{failed}.")
    if dry_run:
        print("Nothing was changed.")


def _by_kind(changes: Mapping[tuple[str, str], int]) -> dict[str, Counter[str]]:
    kinds: dict[str, Counter[str]] = {}
    for (kind, what), count in sorted(changes.items()):
        kinds.setdefault(kind, Counter())[what] = count
    return kinds


def _print(changes: Mapping[tuple[str, str], int]) -> None:
    if not changes:
        print("no finding changes")
        return
    figures = ("new", "changed", "gone")
    table = Table("finding", *figures, right=figures)
    for kind, counts in _by_kind(changes).items():
        table.add(kind, *(format_count(counts[what]) for what in figures))
    print_table(table)


def add_update_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="Show what would change by kind, and change nothing"
    )
    parser.add_argument(
        "--rules", action="append", metavar="FILE", help="With --dry-run: rule files to try"
    )
    add_json_option(parser)
    add_store_options(parser)
