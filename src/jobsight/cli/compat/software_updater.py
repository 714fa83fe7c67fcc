"""``sams-software-updater.py``: applies a site's rules to the paths in the store; run by cron."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from jobsight.cli.compat.common import common_parser, run_on_store, warn
from jobsight.cli.output import progress_line
from jobsight.sams.settings import UpdaterSettings, load_updater
from jobsight.text import path_bytes

if TYPE_CHECKING:
    from jobsight.software.queries import KnownPath
    from jobsight.software.rules import RuleSet, SoftwareName
    from jobsight.store.store import Store

PROGRAM: Final = "sams-software-updater"


def parser() -> argparse.ArgumentParser:
    parser = common_parser(PROGRAM, "Assign software names to the paths of executables.")
    parser.add_argument(
        "--dry-run", action="store_true", help="Show which names would change, and change nothing"
    )
    parser.add_argument(
        "--reset-path", metavar="GLOB", help="Name these paths again, and export their jobs again"
    )
    parser.add_argument(
        "--reset-software", metavar="GLOB", help="The same for all paths of a software"
    )
    parser.add_argument("--show-paths", action="store_true", help="Show all paths")
    parser.add_argument("--show-path", metavar="GLOB", help="Show matching paths")
    parser.add_argument("--show-software", metavar="GLOB", help="Show the paths of a software")
    parser.add_argument(
        "--show-undetermined", action="store_true", help="Show the paths that no rule matches"
    )
    parser.add_argument("--test-path", metavar="PATH", help="Show the name of a path by the rules")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    return run_on_store(PROGRAM, parser().parse_args(arguments), load_updater, work)


def work(options: argparse.Namespace, settings: UpdaterSettings) -> int:
    """Do what the options request; of several, the first in SAMS's order."""
    from jobsight.cli.arguments import existing_store
    from jobsight.software.rules import RuleSet
    from jobsight.store.store import Store

    rules = RuleSet.load(settings.rules, ready=settings.ready_rules)
    warn(PROGRAM, rules.warnings)
    if options.test_path is not None:
        _test(rules, options.test_path)
        return 0
    with Store.open(existing_store(settings.store)) as store:
        if options.show_software or options.show_path or options.show_paths:
            _show(store, _chosen(store, options.show_path, options.show_software))
        elif options.show_undetermined:
            _show_undetermined(store)
        elif options.reset_path or options.reset_software:
            # If both are given, SAMS resets the paths.
            software = None if options.reset_path else options.reset_software
            _reset(store, _chosen(store, options.reset_path, software), options.dry_run)
            _update(store, rules, options.dry_run)
        else:
            _update(store, rules, options.dry_run)
    return 0


def _test(rules: RuleSet, path: str) -> None:
    name = rules.name(path_bytes(path))
    print(f"Testing: {path}")
    if name is None:
        print("No matching software for path.")
    else:
        _print_name(name, str)


def _chosen(store: Store, path: str | None, software: str | None) -> list[KnownPath]:
    from jobsight.software.queries import known_paths, matcher, with_use

    path_matches, software_matches = matcher(path or "*"), matcher(software or "*")
    return with_use(
        store.database,
        (
            known
            for known in known_paths(store.database)
            if path_matches(known.path)
            and (software is None or (known.name and software_matches(known.name.software)))
        ),
    )


def _show(store: Store, paths: Iterable[KnownPath]) -> None:
    for known in paths:
        print(f"Path: {known.path}")
        if known.name is None:
            print("\tSoftware is not determined")
        else:
            _print_name(known.name, int)
        print(f"\tCore Hours   : {known.core_hours:.1f}")
        print(f"\tJob Count    : {known.runs}")


def _print_name(name: SoftwareName, flag: type[int] | type[str]) -> None:
    """SAMS prints flags as integers from its database, and as booleans from its rules."""
    print(f"\tSoftware     : {name.software}")
    print(f"\tVersion      : {name.version}")
    print(f"\tLocal Version: {name.local_version}")
    print(f"\tUser Provided: {flag(name.user_provided)}")
    print(f"\tIgnore       : {flag(name.ignored)}")


def _show_undetermined(store: Store) -> None:
    from jobsight.software.queries import known_paths

    for path in sorted(known.path for known in known_paths(store.database) if known.name is None):
        print(path)


def _reset(store: Store, paths: list[KnownPath], dry_run: bool) -> None:
    from jobsight.store.write.exports import report_again

    _show(store, paths)
    if not dry_run:
        report_again(store.database, [known.id for known in paths])


def _update(store: Store, rules: RuleSet, dry_run: bool) -> None:
    from jobsight.software.preview import preview
    from jobsight.software.worker import update

    if not dry_run:
        update(store, rules, renaming=progress_line("paths"))
        return
    for change in preview(store.database, rules, progress_line("jobs")):
        print(
            f"{_shown(change.before)} -> {_shown(change.after)}: {change.paths:,} paths, "
            f"{change.runs:,} jobs, {change.core_time / 3.6e9:.1f} core hours"
        )


def _shown(name: SoftwareName | None) -> str:
    if name is None:
        return "undetermined"
    texts = [name.software, name.version, name.local_version and f"({name.local_version})"]
    flags = ["user provided"] * name.user_provided + ["ignored"] * name.ignored
    return " ".join(text for text in texts if text) + "".join(f", {flag}" for flag in flags)


if __name__ == "__main__":
    sys.exit(main())
