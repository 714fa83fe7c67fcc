"""``jobsight fit``: the request that would have fitted, from earlier runs of the same work."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from jobsight.cli.arguments import (
    CommandParser,
    UsageError,
    add_json_option,
    add_run_argument,
    add_store_options,
)
from jobsight.cli.report import job_of_this_shell, parse_run, user_name
from jobsight.config.load import load_settings
from jobsight.errors import JobsightError, StoreError
from jobsight.model import RunReference
from jobsight.transport.login import Login, read_login

if TYPE_CHECKING:
    from jobsight.findings.reported import Recommendation
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
    login = None if store else read_login()
    if login is not None:
        fitted = _from_login(login, run, script, name)
    else:
        settings = load_settings(config)
        with Store.open(store or settings.store.location) as opened:
            stored = opened.find(_reference(opened, run, script, name))
            found = recommendations(opened, stored)
        fitted = _Fitted(str(stored.run), stored.info.name, found)
    found = fitted.recommendations
    if json:
        encoded = msgspec.json.encode({"run": fitted.run, "recommendations": found})
        sys.stdout.write(msgspec.json.format(encoded).decode() + "\n")
        return
    title = f"{fitted.run}  {fitted.job_name or ''}".strip()
    print(readable_text(title))
    if not found:
        print("  Nothing is known of this work yet: no run of it has completed.")
    for each in found:
        print(f"  {each.option:24} {each.text}")


class _Fitted(NamedTuple):
    run: str
    job_name: str | None
    recommendations: list[Recommendation]


def _from_login(login: Login, run: str | None, script: str | None, name: str | None) -> _Fitted:
    """What the server that the user has logged in to says of a run."""
    from jobsight.findings.reported import Recommendation

    wanted = run or (None if script or name else job_of_this_shell())
    if wanted is None:
        wanted = _latest_from_login(login, script, name)
    else:
        parse_run(wanted)
    form: Any = msgspec.defstruct(
        "Fit",
        [
            ("run", str),
            ("job_name", str | None),
            ("recommendations", list[Recommendation]),
        ],
    )
    reply = login.get(f"/api/v1/jobs/{quote(wanted)}/fit", form)
    return _Fitted(reply.run, reply.job_name, reply.recommendations)


def _latest_from_login(login: Login, script: str | None, name: str | None) -> str:
    """The last run that the user may see, of a script or of a name if one is given."""
    if script is not None:
        key = script_key_of(script).hex()
        rows: Any = msgspec.defstruct("Script", [("key", str), ("run", str)])
        scripts: Any = msgspec.defstruct("Scripts", [("scripts", list[rows])])
        listed = login.get("/api/v1/scripts?limit=200", scripts).scripts
        found: list[str] = [each.run for each in listed if each.key == key]
    else:
        row: Any = msgspec.defstruct("Row", [("run", str)])
        jobs: Any = msgspec.defstruct("Jobs", [("jobs", list[row])])
        query = urlencode({"limit": "1"} if name is None else {"limit": "1", "name": name})
        found = [each.run for each in login.get(f"/api/v1/jobs?{query}", jobs).jobs]
    if not found:
        of = f" with the script {script}" if script else f" with the name {name}" if name else ""
        raise StoreError(f"the server {login.url} has no run{of} that you may see; expected RUN")
    return found[0]


def script_key_of(file: str) -> bytes:
    """The key of the batch script in a file."""
    from jobsight.util.script_key import MAX_SCRIPT_SIZE, script_key

    try:
        with Path(file).open("rb") as opened:
            text = opened.read(MAX_SCRIPT_SIZE).decode("utf-8", "replace")
    except OSError as error:
        raise JobsightError(f"{file}: the script cannot be read: {error.strerror}") from None
    return script_key(text)


def _reference(store: Store, run: str | None, script: str | None, name: str | None) -> RunReference:
    from jobsight.findings.work import name_key
    from jobsight.store.history import latest_run

    if script is None and name is None:
        wanted = run or job_of_this_shell()
        if wanted is None:
            latest = store.latest(user_name())
            if latest is None:
                raise StoreError(f"the store has no job of {user_name()}; expected RUN")
            wanted = str(latest.run)
        return parse_run(wanted)
    if script is not None:
        found = latest_run(store.database, user_name(), key=script_key_of(script))
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
