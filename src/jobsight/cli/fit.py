"""``jobsight fit``: the request that would have fitted, from earlier runs of the same work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    UsageError,
    add_json_option,
    add_run_argument,
    add_store_options,
)
from jobsight.cli.report import job_of_this_shell, user_name
from jobsight.config.load import load_settings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import RunReference

if TYPE_CHECKING:
    from jobsight.store.store import Store


def show_fit(
    *,
    run: str | None,
    script: str | None,
    name: str | None,
    json: bool,
    store: str | None,
    config: str | None,
) -> None:
    """Show the memory, time, cores and GPUs that would have fitted.

    The recommendation is computed from a run and the earlier runs of the same work: those of the
    same user and batch script, or of the same name and programs. It says how many of them it would
    have held. With --script or --name it is that of your last run with this script or name.
    """
    from jobsight.findings.recommendations import recommendations
    from jobsight.store.store import Store
    from jobsight.text import readable_text

    if sum(each is not None for each in (run, script, name)) > 1:
        raise UsageError("RUN, --script and --name exclude each other; expected one of them")
    settings = load_settings(config)
    with Store.open(store or settings.store.location) as opened:
        stored = opened.find(_reference(opened, run, script, name))
        found = recommendations(opened, stored)
    if json:
        encoded = msgspec.json.encode({"run": str(stored.run), "recommendations": found})
        sys.stdout.write(msgspec.json.format(encoded).decode() + "\n")
        return
    title = f"{stored.run}  {stored.info.name or ''}".strip()
    print(readable_text(title))
    if not found:
        print("  Nothing is known of this work yet: no run of it has completed.")
    for each in found:
        print(f"  {each.option:24} {each.text}")


def _reference(store: Store, run: str | None, script: str | None, name: str | None) -> RunReference:
    from jobsight.findings.work import name_key
    from jobsight.store.history import latest_run
    from jobsight.util.script_key import MAX_SCRIPT_SIZE, script_key

    if script is None and name is None:
        wanted = run or job_of_this_shell()
        if wanted is None:
            latest = store.latest(user_name())
            if latest is None:
                raise StoreError(f"the store has no job of {user_name()}; expected RUN")
            wanted = str(latest.run)
        try:
            return RunReference.parse(wanted)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if script is not None:
        try:
            with Path(script).open("rb") as file:
                text = file.read(MAX_SCRIPT_SIZE).decode("utf-8", "replace")
        except OSError as error:
            raise JobsightError(f"{script}: the script cannot be read: {error.strerror}") from None
        found = latest_run(store.database, user_name(), key=script_key(text))
    else:
        found = latest_run(store.database, user_name(), name=name_key(name))
    if found is None:
        what = f"script {script}" if script is not None else f"name {name}"
        raise StoreError(f"the store has no judged run of {user_name()} with the {what}")
    return RunReference(found.job_id, found.cluster, found.start)


def main(arguments: Sequence[str]) -> int:
    parser = CommandParser("fit", show_fit.__doc__)
    add_run_argument(parser, "the job of this shell or your last job")
    parser.add_argument("--script", metavar="FILE", help="Your last run of this batch script")
    parser.add_argument("--name", metavar="NAME", help="Your last run with this job name")
    add_json_option(parser)
    add_store_options(parser)
    return parser.run(show_fit, arguments)
