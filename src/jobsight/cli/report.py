"""``jobsight report``: what a job asked for and used, in place of ``seff``."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from jobsight.cli.typed import ConfigOption, StoreOption, run_typed
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import Settings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import RunReference
from jobsight.reports.report import JobReport

if TYPE_CHECKING:
    from jobsight.store.read.queries import StoredRun
    from jobsight.store.store import Store


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="12, 62_3, 88+1 or cluster:12:start; else the job of this shell, else your last",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same report as JSON")] = False,
    all_rows: Annotated[bool, typer.Option("--all", help="Every executable and node")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Report what a job asked for and used, by which programs, and how sure each figure is."""
    settings = load_settings(config)
    location = store or settings.store.location
    wanted = run or job_of_this_shell()
    made = find_report(location, wanted, settings)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(made)).decode() + "\n")
        return
    from jobsight.reports.terminal import print_report

    print_report(made, all_rows=all_rows)


def job_of_this_shell() -> str | None:
    """The job in which this command itself runs, if any."""
    own = os.environ.get("JOBSIGHT_JOB")
    if own:
        return own
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return os.environ.get("SLURM_JOB_ID") or None


def find_report(location: str, wanted: str | None, settings: Settings | None = None) -> JobReport:
    """Build the report from the store itself, or ask the server that may read it."""
    reference = _reference(wanted) if wanted else None
    if _readable(location):
        from jobsight.archive.reader import attach
        from jobsight.reports.build import build_report
        from jobsight.store.store import Store

        opened = Store.open(location)
        if settings is not None:
            from jobsight.server.promql import attach_promql

            attach(opened, settings.archive)
            attach_promql(opened, settings.server)
        try:
            return build_report(opened, _choose(opened, reference))
        finally:
            opened.close()
    from jobsight.cli.remote import fetch_report

    made = fetch_report(paths.server_file(location), wanted, user_name())
    if made is None:
        raise _no_store(location)
    return made


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _reference(text: str) -> RunReference:
    try:
        return RunReference.parse(text)
    except ValueError as error:
        wrong = JobsightError(str(error))
        wrong.exit_code = 2
        raise wrong from None


def _choose(store: Store, reference: RunReference | None) -> StoredRun:
    if reference is not None:
        return store.find(reference)
    latest = store.latest(user_name())
    if latest is None:
        raise StoreError(
            f"the store has no job of {user_name()}; `jobsight run -- COMMAND` makes one"
        )
    return latest


def _readable(location: str) -> bool:
    return "://" in location or os.access(location, os.R_OK)


def _no_store(location: str) -> StoreError:
    try:
        kept_from_us = Path(location).exists()
    except PermissionError:
        # Its folder may not be entered.
        kept_from_us = True
    if kept_from_us:
        return StoreError(f"the store {location} may not be read by {user_name()}")
    return StoreError(
        f"there is no store at {location} yet; `jobsight run -- COMMAND` makes one, "
        "or name another with --store"
    )


def main(arguments: Sequence[str]) -> int:
    return run_typed(report, "report", arguments)
